"""Findings about an input function, without running its pipeline."""

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

from cs_toolkit.random_numbers import random_numbers_kept
from input_rules.findings import Finding
from input_rules.pipeline import Pipeline
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.rules.sharding import Split, find_split
from input_rules.tf.operations import calls_python, input_lists
from input_rules.tf.pipeline import InGraph, Traced, called, trace

NOT_COMPARED = "It was not looked at whether the workers read different records: {}."
SHARING_UNKNOWN = "Whether the workers read different records cannot be told: {}."
PYTHON_UNSEEN = "no graph shows what Python code reads, and records are compared by cs_input_analyzer alone"
_SEED = 20190731
Make = Callable[[int, int], Any]
"""Calls the input function as one of (number of workers, index of this one) would."""
Names = Callable[[Any], Sequence[str]]
"""What the tensors of an element with an `element_spec` are called."""


@dataclass(frozen=True)
class Inspection:
    """A traced input and what was found about it.

    Attributes:
        traced: As an only worker, or the first one, reads it.
        context: The run that it is for.
        findings: Of all rules.
        split: Files that workers share out among them; None where they share records, or nobody knows.
        by_python: Python code decides what workers read: only reading tells what they share.
        notes: What a reader must know, one sentence each.
    """

    traced: Traced
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
    in_graph: InGraph = called,
    names: Names | None = None,
    patience_s: float | None = None,
) -> Inspection:
    """Traces an input function, and once more for another worker, and applies all rules.

    Args:
        make: Calls the function.
        workers: Tasks that read input.
        training: Whether it is read for training.
        shared: Whether several workers may read it; only then it is called for another worker.
        seed: Of the graph.
        memory_bytes: What the input of a worker may use.
        samples_per_element: Records of an element, where that is known.
        in_graph: Makes the dataset of a function in a graph.
        names: What the tensors of an element are called elsewhere, by the `element_spec`; as long as there
            are as many, findings call them so.
        patience_s: A function of which a call takes longer is not called for another worker.

    Raises:
        WrongTypeError: the function returns no Dataset.
        Exception: whatever it raises, unchanged.
    """
    start = time.monotonic()
    traced = trace(partial(make, workers, 0), seed, samples_per_element, in_graph=in_graph)
    took_s = time.monotonic() - start
    traced = _named(with_listed_files(traced), names)
    context = Context(training=training, workers=workers, memory_bytes=memory_bytes)
    if not shared:
        return Inspection(traced, context, find(traced.pipeline, context))
    if patience_s is not None and took_s > patience_s:
        note = NOT_COMPARED.format(f"a call of the input function takes longer than {patience_s:g} s")
        return Inspection(traced, context, find(traced.pipeline, context), notes=(note,))
    try:
        # What a function does with its shard shows only where there are several.
        first, last = _as_workers(make, max(workers, 2), seed, in_graph)
    except Exception as error:
        # Too few records or files for another worker, say: the run itself has one worker.
        said = f"called as one of {max(workers, 2)} workers it raises {type(error).__name__}"
        found = find(traced.pipeline, context)
        return Inspection(traced, context, found, notes=(NOT_COMPARED.format(said),))
    return _compared(traced, context, first, last)


def _compared(traced: Traced, context: Context, first: Traced, last: Traced) -> Inspection:
    """With what the first and the last of several workers are seen to share out."""
    differ = fingerprint(first.graph) != fingerprint(last.graph)
    by_python = not differ and calls_python(first.graph)
    both = (first.pipeline, last.pipeline)
    files = tuple(count for count in map(_files, both) if count is not None)
    context = replace(
        context,
        sharded=None if by_python else differ,
        shared_caches=frozenset.intersection(*map(_cache_files, both)),
    )
    alone = context.workers == 1
    return Inspection(
        traced,
        context,
        find(traced.pipeline, context),
        find_split(traced.pipeline, first.pipeline, files) if alone else None,
        by_python,
        (SHARING_UNKNOWN.format(PYTHON_UNSEEN),) if by_python else (),
    )


def _as_workers(make: Make, workers: int, seed: int | None, in_graph: InGraph) -> tuple[Traced, Traced]:
    """What the function gives the first and the last of several workers, with equal random numbers.

    It may draw a seed from them, as the directory loaders of Keras do: that is no part of its own.

    Raises:
        Exception: whatever it raises then, unchanged.
    """
    found = []
    for index in (0, workers - 1):
        with random_numbers_alike():
            traced = trace(partial(make, workers, index), seed, in_graph=in_graph)
            found.append(with_listed_files(traced))
    return found[0], found[1]


@contextmanager
def random_numbers_alike() -> Iterator[None]:
    """Those of Python and NumPy begin alike, and go on afterwards from where they are now."""
    with random_numbers_kept():
        random.seed(_SEED)
        np.random.seed(_SEED)
        yield


def _named(traced: Traced, names: Names | None) -> Traced:
    known = () if names is None else names(traced.dataset.element_spec)
    element = traced.pipeline.element
    if len(known) != len(element):
        return traced
    called = tuple(replace(tensor, name=name) for name, tensor in zip(known, element, strict=True))
    return replace(traced, pipeline=replace(traced.pipeline, element=called))


def _cache_files(pipeline: Pipeline) -> frozenset[str]:
    names = (stage.attributes.get("filename") for stage in pipeline.stages if stage.op == "cache")
    return frozenset(name for name in names if isinstance(name, str) and name)


def _files(pipeline: Pipeline) -> int | None:
    for stage in pipeline.stages:
        count = stage.attributes.get("files")
        if isinstance(count, int):
            return count
    return None


MAPPED_FILE = "memory_region_name"
"""Attribute of an operation with the path of a file, which is named after what is in it."""

# Names differ from one trace to the next; they say nothing about the data.
_NAMES = frozenset(
    {"token", "container", "shared_name", "debug_name", "metadata", "stateful_state", "f_name"}
)


def fingerprint(graph: Any) -> str:
    """A digest of all operations and constants of a graph and of its functions, without any names."""
    definition = graph.as_graph_def()
    parts = [_digest(definition.node)]
    # The numbers in names of functions count up, so the order of the library is no order.
    parts += sorted(_digest(function.node_def) for function in definition.library.function)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _digest(nodes: Iterable[Any]) -> str:
    """A digest of operations (NodeDef), without any names and what they read."""
    digest = hashlib.sha256()
    # Nodes of functions come in an order that differs from one trace to the next.
    for text in sorted(map(_node, nodes)):
        digest.update(text)
    return digest.hexdigest()


def _node(node: Any) -> bytes:
    kept = sorted((name, value) for name, value in node.attr.items() if _says_something(name, value))
    described = b"".join(name.encode() + _value(name, value) for name, value in kept)
    return str(node.op).encode() + b"\0" + hashlib.sha256(described).digest()


def _value(name: str, value: Any) -> bytes:
    if name == MAPPED_FILE:  # its folder is another one in every process
        return Path(value.s.decode()).name.encode()
    serialized: bytes = value.SerializeToString(deterministic=True)
    return serialized


def _says_something(name: str, value: Any) -> bool:
    is_function = value.HasField("func") or bool(value.list.func)
    return not (is_function or name in _NAMES or name.startswith("_"))


_HANDING_ON = ("Identity", "Reshape")


def names_of(node: Any) -> tuple[str, ...] | None:
    """The names of files that an operation delivers one by one; None where it delivers something else.

    What matches the pattern of `list_files` is looked up, as the run would.
    """
    if not node.type.startswith("TensorSlice"):
        return None
    components = input_lists(node)["components"]
    if len(components) != 1 or components[0].dtype != tf.string:
        return None
    tensor = components[0]
    value = tf.get_static_value(tensor)
    while value is None and tensor.op.type in _HANDING_ON:
        tensor = tensor.op.inputs[0]
        value = tf.get_static_value(tensor)
    if value is not None:
        return tuple(name.decode(errors="replace") for name in value.reshape(-1).tolist())
    return _matching(tensor.op) if tensor.op.type == "MatchingFiles" else None


def _matching(node: Any) -> tuple[str, ...] | None:
    patterns = tf.get_static_value(node.inputs[0])
    if patterns is None:
        return None
    try:
        return tuple(tf.io.gfile.glob([pattern.decode() for pattern in patterns.reshape(-1).tolist()]))
    except (tf.errors.OpError, UnicodeDecodeError):
        return None  # the run itself will say what is wrong with it


def with_listed_files(traced: Traced) -> Traced:
    """The same with `files` and `records`, the number of files, where a stage lists them by a pattern."""
    stages = []
    for stage in traced.pipeline.stages:
        nodes = traced.nodes[stage.name]
        if not stage.inputs and not {"files", "records", "reads"} & set(stage.attributes):
            names = names_of(nodes[0])
            if names is not None and all(node.type.startswith("Shuffle") for node in nodes[1:]):
                count = len(names)
                stage = replace(stage, attributes={**stage.attributes, "files": count, "records": count})
        stages.append(stage)
    return replace(traced, pipeline=replace(traced.pipeline, stages=tuple(stages)))
