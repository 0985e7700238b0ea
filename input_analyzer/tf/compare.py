"""Compare the rates of a tf.data input with and without what findings recommend.

Both inputs are read as a worker reads them, by one thread and with their own options.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from input_analyzer.batch_forms import VECTORIZED
from input_analyzer.changed_source import changed_source
from input_analyzer.gains import PREFETCHING, Ratio, measure_ratio
from input_analyzer.tf.eager_graph import rebuild_in_graph
from input_analyzer.tf.private_files import with_own_files
from input_analyzer.tf.rebuild import (
    as_dataset,
    copy_attributes,
    create,
    element_specs,
    initializers,
    rebuild,
    remove_buffers,
    with_arguments,
)
from input_rules.input_export import InputProgram, Shard
from input_rules.rules.base import files_at_once, most_cpus_for
from input_rules.tf.elements import BATCHING
from input_rules.tf.inspection import equal_random_numbers
from input_rules.tf.operations import (
    constant_input,
    dataset_inputs,
    find_inputs,
    function_library,
    function_traits,
    topological_order,
)
from input_rules.tf.pipeline import TracedDataset, call_in_graph, trace


def compare(
    program: InputProgram,
    findings: Mapping[str, int | None],
    seconds: float,
    say: Callable[[], None],
    files: Mapping[str, str] = MappingProxyType({}),
) -> Ratio | None:
    """Measure the ratio of the rates with and without some changes, and its 95 % interval.

    Args:
        program: The input.
        findings: Identifiers of findings.
        seconds: Time to take.
        say: Called now and then.
        files: Changed sources of the program by path, for findings that change these.

    Returns:
        None if nothing changes in the graph, or batches are too slow for the time.
    """
    traced = _trace(program)
    changed = traced
    if files:
        with changed_source(files):
            changed = _trace(program)
    other = apply_findings(changed.dataset, findings)
    if other is None:
        if changed is traced:
            return None
        other = changed.dataset
    ahead = PREFETCHING.issuperset(findings)
    with _reading(traced.graph, traced.dataset) as before, _reading(changed.graph, other) as after:
        return measure_ratio(before, after, seconds, say, while_training=ahead)


def _trace(program: InputProgram) -> TracedDataset:
    return trace(
        lambda: program.build(Shard(1, 0)),
        program.seed,
        in_graph=rebuild_in_graph if program.eager else call_in_graph,
    )


def choose_form(program: InputProgram, forms: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the first form of a change of the source with which the input delivers the same batches.

    Args:
        program: The input.
        forms: Changed sources by form and path.

    Returns:
        None if there is none: the changed program fails, or its batches differ.
    """
    with equal_random_numbers():
        wanted = list(_first_batches(_trace(program)))
    for form, files in forms.items():
        # The change may be anything but right: a shape that was not written, a function that fails.
        with suppress(Exception), changed_source(files), equal_random_numbers():
            changed = _trace(program)
            found = list(_first_batches(changed, len(wanted)))
            equal = len(found) == len(wanted) and all(map(_are_equal, wanted, found))
            # `tf.vectorized_map` aligns the ranks.
            if equal and (form == VECTORIZED or not _mixes_ranks(changed)):
                return form
    return None


def _mixes_ranks(traced: TracedDataset) -> bool:
    """Return True if a function of batches combines two values of a batch that have different ranks.

    The records of one would meet the columns of the other. That fails, except if there are as many columns as
    records; and it is the same for data such as weights that all are 1.
    """
    last = tf.data.experimental.to_variant(traced.dataset).op
    functions = function_library(last)
    batched: set[str] = set()
    for node in topological_order(last):
        before = [other for other in dataset_inputs(node) if other.name in batched]
        if before or node.type.startswith(BATCHING):
            batched.add(node.name)
        if before and "MapDataset" in node.type:
            count = len(element_specs(before[0]))
            graph = function_def_to_graph(
                functions[node.get_attr("f").name],
                input_shapes=[spec.shape for spec in element_specs(before[0])]
                + [tensor.shape for tensor in find_inputs(node)["other_arguments"]],
            )
            of_batch = {tensor.ref() for tensor in graph.inputs[:count]}
            for operation in graph.get_operations():
                values = [tensor for tensor in operation.inputs if tensor.ref() in of_batch]
                if values:
                    of_batch |= {tensor.ref() for tensor in operation.outputs}
                ranks = {tensor.shape.rank for tensor in values}
                if operation.type in _BROADCASTING and len(ranks) > 1:
                    return True
    return False


# Operations that align the dimensions of their operands from the last one on.
_BROADCASTING = frozenset(
    {
        *("Add", "AddV2", "Sub", "Mul", "MulNoNan", "Div", "RealDiv", "DivNoNan", "FloorDiv", "FloorMod"),
        *("Mod", "TruncateDiv", "TruncateMod", "Maximum", "Minimum", "Pow", "SquaredDifference", "Atan2"),
        *("Xdivy", "Xlogy", "LogicalAnd", "LogicalOr", "Equal", "NotEqual", "Less", "LessEqual", "Greater"),
        *("GreaterEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "SelectV2"),
    }
)


_FEW_BATCHES, _FEW_S = 8, 2.0


def _first_batches(traced: TracedDataset, count: int = _FEW_BATCHES) -> Iterator[list[Any]]:
    """Yield the first batches of an input, whose records are not shuffled: operations draw other seeds."""
    last = tf.data.experimental.to_variant(traced.dataset).op
    with traced.graph.as_default():
        dataset = as_dataset(rebuild(last, remove_buffers), traced.dataset.element_spec)
    end = time.monotonic() + _FEW_S
    with _reading(traced.graph, dataset) as take:
        for number in range(count):
            yield list(map(np.asarray, cast("list[Any]", take())))
            if number and time.monotonic() > end:
                return


def _are_equal(batch: list[Any], other: list[Any]) -> bool:
    """Return True if two batches are equal up to rounding, as sums may be added in another order."""
    for one, two in zip(batch, other, strict=True):
        if one.dtype != two.dtype or one.shape != two.shape:
            return False
        if one.dtype.kind not in "fc":
            if not np.array_equal(one, two):
                return False
        elif not np.allclose(one, two, rtol=1e-5, atol=1e-6 * float(np.max(np.abs(one), initial=0.0))):
            return False
    return True


@contextmanager
def _reading(graph: Any, dataset: Any) -> Iterator[Callable[[], object]]:
    """Provide a function that takes a batch of a dataset, in a session that frees its buffers at the end."""
    with graph.as_default():
        # Repeated, as the end of the data is not compared.
        iterator = tf.compat.v1.data.make_initializable_iterator(with_own_files(dataset).repeat())
        leaves = tf.nest.flatten(iterator.get_next())
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initializers(graph))
        session.run(iterator.initializer)
        yield session.make_callable(leaves)


_IN_ORDER = {"deterministic": tf.compat.v1.AttrValue(s=b"true")}


def apply_findings(dataset: Any, findings: Collection[str]) -> Any:
    """Return a dataset with what findings recommend.

    Args:
        dataset: Made in a graph, not eagerly.
        findings: Identifiers of findings, see `gains.COMPARED`.

    Returns:
        None if nothing changes.
    """
    last = tf.data.experimental.to_variant(dataset).op
    work = _FindingChange(frozenset(findings), last)
    tensor = rebuild(last, work.change)
    with last.graph.as_default():
        result = as_dataset(tensor, dataset.element_spec)
        if work.findings & {"prefetch-missing", "prefetch-not-last"}:
            return result.prefetch(tf.data.AUTOTUNE)
    return result if tensor is not last.outputs[0] else None


class _FindingChange:
    """The combined change of all findings."""

    def __init__(self, findings: frozenset[str], last: Any) -> None:
        self.findings = findings
        self._functions = function_library(last)

    def change(self, node: Any, datasets: list[Any]) -> Any:
        """Return the replacement of an operation; None to keep it."""
        asked, functions = self.findings, self._functions
        # Sequential operations become parallel ones.
        if node.type == "MapDataset" and "parallel-calls-missing" in asked:
            if function_traits(node, functions).get("free"):
                return None
            inputs = [*datasets, *find_inputs(node)["other_arguments"], _autotune()]
            attributes = copy_attributes(node, "f", "Targuments") | _IN_ORDER
            return create(node.graph, "ParallelMapDatasetV2", inputs, attributes)
        if node.type == "InterleaveDataset" and "parallel-calls-missing" in asked:
            return _parallel_interleave(node, datasets, find_inputs(node)["cycle_length"][0])
        of_files = asked & {"flat-map-of-files", "parallel-reads-missing"}
        if node.type == "FlatMapDataset" and of_files and function_traits(node, functions).get("reads"):
            return _parallel_interleave(node, datasets, _files_at_once())
        # Parallel operations get other arguments.
        arguments: dict[str, Any] = {}
        empty = node.type == "PrefetchDataset" and not constant_input(node, "buffer_size")
        if empty and "prefetch-empty" in asked:
            arguments["buffer_size"] = _autotune()
        calls = constant_input(node, "num_parallel_calls")
        if "parallel-calls-fixed" in asked and calls not in (None, tf.data.AUTOTUNE):
            kind = find_inputs(node)["num_parallel_calls"][0].dtype
            arguments["num_parallel_calls"] = tf.constant(tf.data.AUTOTUNE, kind)
        if "cycle-length-fixed" in asked and node.type.startswith("ParallelInterleave"):
            length = constant_input(node, "cycle_length")
            wanted, cpus = files_at_once(_cpus()), _cpus()
            if length not in (None, tf.data.AUTOTUNE) and (
                cpus > most_cpus_for(length) if wanted == tf.data.AUTOTUNE else length < wanted
            ):  # it reads fewer files at once than this process may
                arguments["cycle_length"] = _files_at_once()
        return with_arguments(node, datasets, arguments) if arguments else None


def _parallel_interleave(node: Any, datasets: list[Any], cycle: Any) -> Any:
    lists = find_inputs(node)
    block = lists.get("block_length", [tf.constant(1, tf.int64)])[0]
    inputs = [*datasets, *lists["other_arguments"], cycle, block, _autotune(), _autotune(), _autotune()]
    attributes = copy_attributes(node, "f", "Targuments") | _IN_ORDER
    return create(node.graph, "ParallelInterleaveDatasetV4", inputs, attributes)


def _files_at_once() -> Any:
    """Return the number of files that an interleave of this process should read at once."""
    return tf.constant(files_at_once(_cpus()), tf.int64)


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _autotune() -> Any:
    return tf.constant(tf.data.AUTOTUNE, tf.int64)
