"""Find what could be better in an input function without running its pipeline."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cs_toolkit.random_numbers import preserve_random_state
from input_rules.findings import Finding
from input_rules.pipeline import Pipeline
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.rules.sharding import Split, find_split
from input_rules.tf.operations import calls_python, find_inputs
from input_rules.tf.pipeline import GraphBuilder, TracedDataset, call_in_graph, trace

NOT_COMPARED = "It was not checked whether the workers read different records: {}."
SHARING_UNKNOWN = "It is unknown whether the workers read different records: {}."
PYTHON_UNSEEN = "graphs do not show what Python code reads, and only cs_input_analyzer compares records"
_SEED = 20190731
# Calls the input function as one of (number of workers, index of the worker) would.
Make = Callable[[int, int], Any]
# Returns the names of the tensors of an element, given its `element_spec`.
Names = Callable[[Any], Sequence[str]]


@dataclass(frozen=True)
class Inspection:
    """A traced input and the findings about it.

    Attributes:
        traced: The dataset as the only worker, or the first one, reads it.
        context: The run that it is for.
        findings: Findings of all rules.
        split: Files that are distributed among the workers; None if they share records, or if it is unknown.
        by_python: Python code decides which records workers read, so only reading shows whether they differ.
        notes: Remarks for readers, one sentence each.
    """

    traced: TracedDataset
    context: Context
    findings: tuple[Finding, ...]
    split: Split | None = None
    by_python: bool = False
    notes: tuple[str, ...] = ()

    @property
    def pipeline(self) -> Pipeline:
        """The stages."""
        return self.traced.pipeline


def inspect(
    make: Make,
    *,
    workers: int = 1,
    training: bool = True,
    shared: bool = True,
    seed: int | None = None,
    memory_bytes: int | None = None,
    samples_per_element: int | None = None,
    in_graph: GraphBuilder = call_in_graph,
    names: Names | None = None,
    patience_s: float | None = None,
) -> Inspection:
    """Trace an input function, also as another worker, and apply all rules.

    Args:
        make: Calls the function.
        workers: Tasks that read input.
        training: The input is read for training.
        shared: Several workers may read it; only then it is called as another worker.
        seed: Graph seed.
        memory_bytes: Memory for the input of a worker.
        samples_per_element: Records of an element, if known.
        in_graph: Makes the dataset of a function in a graph.
        names: Returns other names for the tensors of an element, given its `element_spec`; findings use them
            if their number matches.
        patience_s: A function whose call takes longer is not called as another worker.

    Raises:
        WrongTypeError: the function returns no Dataset.
        Exception: anything that it raises, unchanged.
    """
    start = time.monotonic()
    traced = trace(partial(make, workers, 0), seed, samples_per_element, in_graph=in_graph)
    took_s = time.monotonic() - start
    traced = add_listed_files(traced)
    element = traced.pipeline.element
    known = () if names is None else names(traced.dataset.element_spec)
    if len(known) == len(element):
        renamed = tuple(replace(tensor, name=name) for name, tensor in zip(known, element, strict=True))
        traced = replace(traced, pipeline=replace(traced.pipeline, element=renamed))
    context = Context(training=training, workers=workers, memory_bytes=memory_bytes)
    if not shared:
        return Inspection(traced, context, find(traced.pipeline, context))
    if patience_s is not None and took_s > patience_s:
        note = NOT_COMPARED.format(f"a call of the input function takes longer than {patience_s:g} s")
        return Inspection(traced, context, find(traced.pipeline, context), notes=(note,))
    try:
        # The use of shards only shows with at least two workers.
        first, last = _trace_as_workers(make, max(workers, 2), seed, in_graph)
    except Exception as error:
        # For example, too few records or files for another worker; the run itself may have one worker.
        reason = f"called as one of {max(workers, 2)} workers, it raises {type(error).__name__}"
        found = find(traced.pipeline, context)
        return Inspection(traced, context, found, notes=(NOT_COMPARED.format(reason),))
    return _compare_workers(traced, context, first, last)


def _compare_workers(
    traced: TracedDataset, context: Context, first: TracedDataset, last: TracedDataset
) -> Inspection:
    """Compare the input of the first and of the last worker, and apply all rules."""
    differ = fingerprint(first.graph) != fingerprint(last.graph)
    by_python = not differ and calls_python(first.graph)
    files: list[int] = []
    caches = []
    for pipeline in (first.pipeline, last.pipeline):
        counts = [stage.attributes.get("files") for stage in pipeline.stages]
        files += [count for count in counts if isinstance(count, int)][:1]
        names = (stage.attributes.get("filename") for stage in pipeline.stages if stage.op == "cache")
        caches.append(frozenset(name for name in names if isinstance(name, str) and name))
    context = replace(
        context, sharded=None if by_python else differ, shared_caches=frozenset.intersection(*caches)
    )
    return Inspection(
        traced,
        context,
        find(traced.pipeline, context),
        find_split(traced.pipeline, first.pipeline, tuple(files)) if context.workers == 1 else None,
        by_python,
        (SHARING_UNKNOWN.format(PYTHON_UNSEEN),) if by_python else (),
    )


def _trace_as_workers(
    make: Make, workers: int, seed: int | None, in_graph: GraphBuilder
) -> tuple[TracedDataset, TracedDataset]:
    """Trace the function as the first and as the last of several workers, with equal random numbers.

    Raises:
        Exception: anything that it raises then, unchanged.
    """
    found = []
    for index in (0, workers - 1):
        # The function may draw a seed, as the directory loaders of Keras do: that is no sharding.
        with equal_random_numbers():
            traced = trace(partial(make, workers, index), seed, in_graph=in_graph)
            found.append(add_listed_files(traced))
    return found[0], found[1]


@contextmanager
def equal_random_numbers() -> Iterator[None]:
    """Seed Python and NumPy with a fixed value for the duration of the context."""
    with preserve_random_state():
        random.seed(_SEED)
        np.random.seed(_SEED)
        yield


# Attribute of an operation with the path of a file that is named after its content.
MAPPED_FILE = "memory_region_name"

# Names that differ between traces of the same data.
_NAMES = frozenset(
    {"token", "container", "shared_name", "debug_name", "metadata", "stateful_state", "f_name"}
)


def fingerprint(graph: Any) -> str:
    """Return a digest of all operations and constants of a graph and its functions, without names."""
    definition = graph.as_graph_def()
    parts = [_digest_nodes(definition.node)]
    # Sorted, as the library is ordered by names of functions, which contain a counter.
    parts += sorted(_digest_nodes(function.node_def) for function in definition.library.function)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _digest_nodes(nodes: Iterable[Any]) -> str:
    """Return a digest of operations (NodeDef) without names and inputs."""
    digest = hashlib.sha256()
    # Sorted, as the order of nodes in functions differs between traces.
    for text in sorted(map(_encode_node, nodes)):
        digest.update(text)
    return digest.hexdigest()


def _encode_node(node: Any) -> bytes:
    """Encode the kind of an operation and a digest of its attributes, without names and functions."""
    digest = hashlib.sha256()
    for name in sorted(node.attr):
        value = node.attr[name]
        if name in _NAMES or name.startswith("_") or value.HasField("func") or value.list.func:
            continue
        digest.update(name.encode())
        if name == MAPPED_FILE:  # every process has its own folder
            digest.update(Path(value.s.decode()).name.encode())
        else:
            digest.update(value.SerializeToString(deterministic=True))
    return str(node.op).encode() + b"\0" + digest.digest()


_PASSING_ON = ("Identity", "Reshape")


def list_files(node: Any) -> tuple[str, ...] | None:
    """Return the names of files that an operation delivers one by one; None if it delivers something else.

    Patterns of `list_files` are expanded as the run would.
    """
    if not node.type.startswith("TensorSlice"):
        return None
    components = find_inputs(node)["components"]
    if len(components) != 1 or components[0].dtype != tf.string:
        return None
    tensor = components[0]
    value = tf.get_static_value(tensor)
    while value is None and tensor.op.type in _PASSING_ON:
        tensor = tensor.op.inputs[0]
        value = tf.get_static_value(tensor)
    if value is not None:
        return tuple(name.decode(errors="replace") for name in value.reshape(-1).tolist())
    patterns = tf.get_static_value(tensor.op.inputs[0]) if tensor.op.type == "MatchingFiles" else None
    if patterns is None:
        return None
    try:
        return tuple(tf.io.gfile.glob([pattern.decode() for pattern in patterns.reshape(-1).tolist()]))
    except (tf.errors.OpError, UnicodeDecodeError):
        return None  # the run itself will report the error


def add_listed_files(traced: TracedDataset) -> TracedDataset:
    """Set `files` and `records` of stages that list files by a pattern."""
    stages = []
    for stage in traced.pipeline.stages:
        nodes = traced.nodes[stage.name]
        if not stage.inputs and not {"files", "records", "reads"} & set(stage.attributes):
            names = list_files(nodes[0])
            if names is not None and all(node.type.startswith("Shuffle") for node in nodes[1:]):
                count = len(names)
                stage = replace(stage, attributes={**stage.attributes, "files": count, "records": count})
        stages.append(stage)
    return replace(traced, pipeline=replace(traced.pipeline, stages=tuple(stages)))
