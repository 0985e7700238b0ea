"""Calls that run one at a time, or a fixed number of times at once."""

from __future__ import annotations

from collections.abc import Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings.batching import MUCH
from input_analyzer.findings.context import Context, finding, flag, number
from input_analyzer.findings.gains import side_by_side
from input_analyzer.lanes import is_parallel
from input_analyzer.pipeline import AUTOTUNE, Pipeline

_CALLING = ("map", "interleave")


def parallel_calls(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """`num_parallel_calls` is left out, or fixed."""
    for stage in pipeline.stages:
        if stage.op not in _CALLING or flag(stage, "free") or flag(stage, "python"):
            continue
        share = context.share((stage,))
        if share is not None and share < MUCH:
            continue
        calls = number(stage, "num_parallel_calls")
        if calls is None and not is_parallel(stage):
            yield finding(
                "parallel-calls-missing",
                "warning",
                stage,
                "its calls run one after the other, on one CPU, however many the worker has",
                f"{stage.op}(..., num_parallel_calls=CS_AUTOTUNE)",
                side_by_side(pipeline, context, stage),
            )
        elif calls is not None and calls != AUTOTUNE:
            yield finding(
                "parallel-calls-fixed",
                "info",
                stage,
                f"{calls} calls run at once, whatever number of CPUs the worker gets",
                f"{stage.op}(..., num_parallel_calls=CS_AUTOTUNE)",
                side_by_side(pipeline, context, stage),
            )


def cycle_length(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """An interleave over a fixed number of files, though it could be tuned."""
    for stage in pipeline.stages:
        length = number(stage, "cycle_length")
        if stage.op != "interleave" or length is None or length == AUTOTUNE:
            continue
        if number(stage, "num_parallel_calls") is None:
            continue
        yield finding(
            "cycle-length-fixed",
            "info",
            stage,
            f"it reads {length} files at once, whatever number of CPUs the worker gets",
            "interleave(..., cycle_length=CS_AUTOTUNE, num_parallel_calls=CS_AUTOTUNE)",
            side_by_side(pipeline, context, stage),
        )


RULES = (parallel_calls, cycle_length)
