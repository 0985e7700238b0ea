"""Findings about an input function, without running its pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from input_analyzer.analysis import Finding
from input_analyzer.findings import find
from input_analyzer.findings.context import Context, Places
from input_analyzer.findings.sharding import Split, split_of
from input_analyzer.pipeline import Pipeline
from input_analyzer.tf.alike import Role, calls_python, records_differ
from input_analyzer.tf.fingerprint import fingerprint
from input_analyzer.tf.graph import Traced, trace
from input_analyzer.tf.listed import with_listed_files
from input_analyzer.tf.places import repeat_place, shard_place
from input_analyzer.tf.record_files import with_estimates

PATIENCE_S = 2.0
"""An input function that takes longer is not called again for a second worker."""

_SEED = 1
Make = Callable[[int, int], Any]
"""Calls the input function as one of (number of workers, index of this one) would."""


@dataclass(frozen=True)
class Inspection:
    """A traced input and what was found about it.

    Attributes:
        traced: As an only worker, or the first one, reads it.
        context: The run that it is for.
        findings: Of all rules.
        split: Files that workers share out among them; None where they share records, or nobody knows.
    """

    traced: Traced
    context: Context
    findings: tuple[Finding, ...]
    split: Split | None = None

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
    eager: bool = False,
    role: Role | None = None,
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
        eager: The function is written for eager execution.
        role: Of a worker that reads. With it records are compared where the input calls Python, which may
            take any part of the data; without it nothing is said of such an input.

    Raises:
        WrongTypeError: the function returns no Dataset.
        Exception: whatever it raises, unchanged.
    """
    start = time.monotonic()
    traced = trace(lambda: make(workers, 0), seed, samples_per_element, eager=eager)
    compared: _Compared | None = None
    patient = time.monotonic() - start < PATIENCE_S
    traced = with_estimates(with_listed_files(traced))
    if shared and patient:
        # What a function does with its shard shows only where there are several.
        compared = _compare(make, max(workers, 2), seed, eager, role)
    places = _places(traced, max(workers, 2))
    context = Context(training=training, workers=workers, memory_bytes=memory_bytes, places=places)
    split: Split | None = None
    if compared is not None:
        context = replace(
            context,
            sharded=compared.differ,
            files_by_worker=compared.files if workers > 1 else (),
            shared_caches=compared.caches,
        )
        split = split_of(traced.pipeline, compared.first, compared.files) if workers == 1 else None
    return Inspection(traced, context, find(traced.pipeline, context), split)


def _places(traced: Traced, workers: int) -> Places:
    """The stages where mends put a shard and a repeat."""
    stage_of = {node.name: stage for stage, nodes in traced.nodes.items() for node in nodes}

    def stage(node: Any) -> Any:
        return None if node is None else traced.pipeline.by_name[stage_of[node.name]]

    with traced.graph.as_default():
        last = tf.data.experimental.to_variant(traced.dataset).op
    functions = {f.signature.name: f for f in traced.graph.as_graph_def().library.function}
    repeated, batch = repeat_place(last, functions)
    return Places(stage(shard_place(last, workers, functions)[0]), stage(repeated), stage(batch))


@dataclass(frozen=True)
class _Compared:
    """The inputs of the first and the last of several workers.

    Attributes:
        first: That of the first one.
        differ: Whether they read different data; None where nobody can tell.
        files: How many the sources of both have, where that is known.
        caches: Names of files in which both keep a cache.
    """

    first: Pipeline
    differ: bool | None
    files: tuple[int, ...]
    caches: frozenset[str]


def _compare(make: Make, workers: int, seed: int | None, eager: bool, role: Role | None) -> _Compared | None:
    """None where the function cannot be called as one of several."""
    try:
        first, last = (
            with_listed_files(trace(partial(make, workers, index), seed, eager=eager))
            for index in (0, workers - 1)
        )
    except Exception:
        # Too few records or files for another worker, say: the run itself has one worker.
        return None
    both = (first.pipeline, last.pipeline)
    differ: bool | None = fingerprint(first.graph) != fingerprint(last.graph)
    if not differ and calls_python(first.graph):
        # With a seed the two have the same random numbers.
        again = partial(_traced_again, make, _SEED if seed is None else seed, eager)
        differ = None if role is None else records_differ(again, workers, role)
    files = tuple(count for count in map(_files, both) if count is not None)
    return _Compared(first.pipeline, differ, files, frozenset.intersection(*map(_cache_files, both)))


def _cache_files(pipeline: Pipeline) -> frozenset[str]:
    names = (stage.attributes.get("filename") for stage in pipeline.stages if stage.op == "cache")
    return frozenset(name for name in names if isinstance(name, str) and name)


def _traced_again(make: Make, seed: int, eager: bool, workers: int, index: int) -> Traced:
    return trace(partial(make, workers, index), seed, eager=eager)


def _files(pipeline: Pipeline) -> int | None:
    for stage in pipeline.stages:
        count = stage.attributes.get("files")
        if isinstance(count, int):
            return count
    return None
