"""Calls that run one at a time, or a fixed number of times at once."""

from __future__ import annotations

from collections.abc import Iterator

from input_rules.findings import Finding
from input_rules.pipeline import AUTOTUNE, Pipeline, Stage
from input_rules.rules.batching import MUCH
from input_rules.rules.context import Context, choosing_behind, finding, flag, number
from input_rules.rules.expected_gains import (
    FILES_AT_ONCE,
    argument,
    files_at_once,
    most_cpus_for,
    side_by_side,
)
from input_rules.throughput import is_parallel, lanes

_CALLING = ("map", "interleave")


def parallel_calls(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """`num_parallel_calls` is left out, or fixed."""
    for stage in pipeline.stages:
        python = flag(stage, "python")
        if stage.op not in _CALLING or flag(stage, "free") or (python and stage.op != "map"):
            continue
        share = context.share((stage,))
        if share is not None and share < MUCH:
            continue
        calls = number(stage, "num_parallel_calls")
        gain = side_by_side(pipeline, context, stage)
        if python and context.times and not (gain and (gain.times or 0.0) > 1 + MUCH):
            continue  # it computes, which Python does one call at a time
        if calls is None and not is_parallel(stage):
            by_itself = lanes(pipeline)[stage.name].threads_per_cpu > 0
            yield finding(
                "parallel-calls-missing",
                "info" if by_itself or (python and not context.times) else "warning",
                stage,
                _one_by_one(context, stage, by_itself),
                f"{stage.op}(..., num_parallel_calls=CS_AUTOTUNE)",
                gain,
                by_hand=_by_hand(pipeline, stage),
            )
        elif calls is not None and calls != AUTOTUNE:
            yield finding(
                "parallel-calls-fixed",
                "info",
                stage,
                f"{calls} calls run at once, whatever number of CPUs the worker gets",
                f"{stage.op}(..., num_parallel_calls=CS_AUTOTUNE)",
                gain,
                by_hand=_by_hand(pipeline, stage),
            )


def _by_hand(pipeline: Pipeline, stage: Stage) -> str | None:
    """Why only the author can tell that several calls at once give the same records."""
    if flag(stage, "python"):
        return "it calls Python, which may do something else in another order of calls"
    if flag(stage, "random"):
        return "it draws random numbers out of a state, which its calls would share"
    return choosing_behind(pipeline, stage) if stage.op == "interleave" else None


def _one_by_one(context: Context, stage: Stage, by_itself: bool) -> str:
    """What is wrong with a call that does not say how many run at once."""
    if by_itself:
        return (
            "it does not say how many calls may run at once: TensorFlow makes that as many as there are CPUs "
            "only while its optimizations are on and the function keeps no state"
        )
    if flag(stage, "python"):
        waits = "each mostly waits" if context.times else "what waits in them, for a file say, does so alone"
        return f"its calls of Python run one after the other, and {waits}: several can wait at once"
    return "its calls run one after the other, on one CPU, however many the worker has"


def cycle_length(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """An interleave over a fixed number of files, though it could be tuned."""
    for stage in pipeline.stages:
        length = number(stage, "cycle_length")
        if stage.op != "interleave" or length is None or length == AUTOTUNE:
            continue
        if number(stage, "num_parallel_calls") is None:
            continue
        # With few CPUs CS_AUTOTUNE reads one file at a time, which is worse than a number.
        wanted = AUTOTUNE if length >= FILES_AT_ONCE else files_at_once(context.cpus)
        if wanted == AUTOTUNE and context.cpus is not None and context.cpus <= most_cpus_for(length):
            continue
        many = f", where a worker has more than {most_cpus_for(length)} CPUs" if wanted == AUTOTUNE else ""
        yield finding(
            "cycle-length-fixed",
            "info",
            stage,
            f"it reads {_counted(length, stage)} at once, whatever number of CPUs the worker gets",
            f"interleave(..., cycle_length={argument(wanted)}, num_parallel_calls=CS_AUTOTUNE){many}",
            side_by_side(pipeline, context, stage, wanted),
            None if wanted == AUTOTUNE else wanted,
            choosing_behind(pipeline, stage),
        )


def _counted(number: int, stage: Stage) -> str:
    """What a stage takes turns between: files, or what else its function makes of an element."""
    what = "file" if stage.attributes.get("reads") else "dataset"
    return f"{number} {what}{'' if number == 1 else 's'}"


RULES = (parallel_calls, cycle_length)
