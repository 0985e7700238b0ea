"""A dataset made again in its graph with what findings recommend, to compare the rates of the two."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from input_analyzer.tf.rebuild import as_dataset, create, rebuild, with_arguments
from input_rules.rules.base import files_at_once, most_cpus_for
from input_rules.tf.operations import constant, input_lists, library_of, traits

_IN_ORDER = {"deterministic": tf.compat.v1.AttrValue(s=b"true")}


def changed(dataset: Any, findings: Collection[str]) -> Any:
    """A dataset with what findings recommend.

    Args:
        dataset: Made in a graph, not eagerly.
        findings: Identifiers of findings, see `compared.COMPARED`.

    Returns:
        None where nothing changes.
    """
    last = tf.data.experimental.to_variant(dataset).op
    work = _Change(frozenset(findings), last)
    tensor = rebuild(last, work.change)
    with last.graph.as_default():
        result = as_dataset(tensor, dataset.element_spec)
        if work.findings & {"prefetch-missing", "prefetch-not-last"}:
            return result.prefetch(tf.data.AUTOTUNE)
    return result if tensor is not last.outputs[0] else None


class _Change:
    """The Change of all findings together."""

    def __init__(self, findings: frozenset[str], last: Any) -> None:
        self.findings = findings
        self._functions = library_of(last)

    def change(self, node: Any, datasets: list[Any]) -> Any:
        """What becomes of an operation; None where it stays as it is."""
        parallel = self._parallel(node, datasets)
        if parallel is not None:
            return parallel
        arguments = self._arguments(node)
        return with_arguments(node, datasets, arguments) if arguments else None

    def _parallel(self, node: Any, datasets: list[Any]) -> Any:
        """A parallel operation in the place of one that is not."""
        if node.type == "MapDataset" and "parallel-calls-missing" in self.findings:
            if traits(node, self._functions).get("free"):
                return None
            inputs = [*datasets, *input_lists(node)["other_arguments"], _auto()]
            return create(node.graph, "ParallelMapDatasetV2", inputs, _kept(node) | _IN_ORDER)
        if node.type == "InterleaveDataset" and "parallel-calls-missing" in self.findings:
            return _parallel_interleave(node, datasets, input_lists(node)["cycle_length"][0])
        of_files = self.findings & {"flat-map-of-files", "parallel-reads-missing"}
        if node.type == "FlatMapDataset" and of_files and traits(node, self._functions).get("reads"):
            return _parallel_interleave(node, datasets, _files())
        return None

    def _arguments(self, node: Any) -> dict[str, Any]:
        """Those of an operation that get other values."""
        found: dict[str, Any] = {}
        asked = self.findings
        calls = constant(node, "num_parallel_calls")
        if "prefetch-empty" in asked and node.type == "PrefetchDataset" and not constant(node, "buffer_size"):
            found["buffer_size"] = _auto()
        if "parallel-calls-fixed" in asked and calls not in (None, tf.data.AUTOTUNE):
            kind = input_lists(node)["num_parallel_calls"][0].dtype
            found["num_parallel_calls"] = tf.constant(tf.data.AUTOTUNE, kind)
        if "cycle-length-fixed" in asked and _reads_few(node):
            found["cycle_length"] = _files()
        return found


def _parallel_interleave(node: Any, datasets: list[Any], cycle: Any) -> Any:
    lists = input_lists(node)
    block = lists.get("block_length", [tf.constant(1, tf.int64)])[0]
    inputs = [*datasets, *lists["other_arguments"], cycle, block, _auto(), _auto(), _auto()]
    return create(node.graph, "ParallelInterleaveDatasetV4", inputs, _kept(node) | _IN_ORDER)


def _kept(node: Any) -> dict[str, Any]:
    """Attributes that an operation shares with the parallel one that takes its place."""
    attributes = node.node_def.attr
    return {name: attributes[name] for name in ("f", "Targuments", "output_types", "output_shapes")}


def _files() -> Any:
    """How many files an interleave of this process is to read at once."""
    return tf.constant(files_at_once(_cpus()), tf.int64)


def _reads_few(node: Any) -> bool:
    """Whether an interleave reads fewer files at once than this process may."""
    length = constant(node, "cycle_length") if node.type.startswith("ParallelInterleave") else None
    if length in (None, tf.data.AUTOTUNE):
        return False
    wanted = files_at_once(_cpus())
    return _cpus() > most_cpus_for(length) if wanted == tf.data.AUTOTUNE else length < wanted


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _auto() -> Any:
    return tf.constant(tf.data.AUTOTUNE, tf.int64)
