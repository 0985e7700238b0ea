"""Findings about an input function, without running its pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from input_analyzer.analysis import Finding
from input_analyzer.findings import find
from input_analyzer.findings.context import Context
from input_analyzer.findings.sharding import Split, split_of
from input_analyzer.pipeline import Pipeline
from input_analyzer.tf.fingerprint import fingerprint
from input_analyzer.tf.graph import Traced, trace
from input_analyzer.tf.listed import with_listed_files
from input_analyzer.tf.record_files import with_estimates

PATIENCE_S = 2.0
"""An input function that takes longer is not called again for a second worker."""

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

    Raises:
        WrongTypeError: the function returns no Dataset.
        Exception: whatever it raises, unchanged.
    """
    start = time.monotonic()
    traced = trace(lambda: make(workers, 0), seed, samples_per_element, eager=eager)
    sharded: bool | None = None
    files: tuple[int, ...] = ()
    split: Split | None = None
    patient = time.monotonic() - start < PATIENCE_S
    traced = with_estimates(with_listed_files(traced))
    if shared and patient:
        # What a function does with its shard shows only where there are several.
        compared = _compare(make, max(workers, 2), seed, eager)
        if compared is not None:
            sharded, files, first = compared
            split = split_of(traced.pipeline, first, files) if workers == 1 else None
    context = Context(
        training=training,
        workers=workers,
        sharded=sharded,
        files_by_worker=files if workers > 1 else (),
        memory_bytes=memory_bytes,
    )
    return Inspection(traced, context, find(traced.pipeline, context), split)


def _compare(
    make: Make, workers: int, seed: int | None, eager: bool
) -> tuple[bool, tuple[int, ...], Pipeline] | None:
    """Whether the first and the last worker read different data, the files of both, what the first reads.

    None where it cannot be called as one of several.
    """
    try:
        first, last = (
            with_listed_files(trace(partial(make, workers, index), seed, eager=eager))
            for index in (0, workers - 1)
        )
    except Exception:
        # Too few records or files for another worker, say: the run itself has one worker.
        return None
    files = tuple(_files(traced.pipeline) for traced in (first, last))
    differ = fingerprint(first.graph) != fingerprint(last.graph)
    return differ, tuple(count for count in files if count is not None), first.pipeline


def _files(pipeline: Pipeline) -> int | None:
    for stage in pipeline.stages:
        count = stage.attributes.get("files")
        if isinstance(count, int):
            return count
    return None
