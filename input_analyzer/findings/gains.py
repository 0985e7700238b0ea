"""What it is expected to give to mend a finding, computed from the times of the stages.

`pace.time_us` gives the time of a sample from the self times of the stages, the lanes in which they work side
by side (TensorFlow's own optimizations included) and the CPUs. The gain is that time before over that time
after the change. Hand-overs between threads are not in it, so it is the most that can be expected. Where the
analyzer can make the change itself, it measures instead (`input_analyzer.gains`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from input_analyzer.analysis import Gain, StageCost
from input_analyzer.findings.context import Context
from input_analyzer.lanes import lanes
from input_analyzer.pace import time_us
from input_analyzer.pipeline import AUTOTUNE, Pipeline, Stage, StageTime, Value

_NO_GAIN = 1.005
_MOST = 20.0
"""A larger ratio says only that little is left, within the error of the times."""


def not_speed(text: str) -> Gain:
    """Something other than speed is won."""
    return Gain("not-speed", text)


def side_by_side(pipeline: Pipeline, context: Context, stage: Stage) -> Gain | None:
    """Calls or files of a stage are worked on at once, by as many threads as suit the CPUs."""
    parallel: dict[str, Value] = {"kinds": ("ParallelInterleaveDataset",), "num_parallel_calls": AUTOTUNE}
    if stage.op != "map":
        parallel["cycle_length"] = AUTOTUNE
    changed = replace(stage, attributes={**stage.attributes, **parallel})
    stages = tuple(changed if one is stage else one for one in pipeline.stages)
    return _expected(pipeline, context, [stage], replace(pipeline, stages=stages), context.times)


def spared(pipeline: Pipeline, context: Context, stages: Collection[Stage]) -> Gain | None:
    """Stages cost nothing any more."""
    names = {stage.name for stage in stages}
    left = {name: time for name, time in context.times.items() if name not in names}
    return _expected(pipeline, context, stages, pipeline, left)


def not_repeated(
    pipeline: Pipeline, context: Context, stages: Collection[Stage], workers: int
) -> Gain | None:
    """Stages whose work all workers but one throw away; the times are those of a single worker."""
    times = dict(context.times)
    for stage in stages:
        if stage.name in times:
            one = times[stage.name]
            times[stage.name] = replace(one, cpu_us=workers * one.cpu_us, wait_us=workers * one.wait_us)
    wasteful = replace(context, times=times)
    gain = _expected(pipeline, wasteful, stages, pipeline, context.times)
    return gain and replace(gain, text=f"{gain.text} in a job of {workers} workers")


def overlapped() -> Gain:
    """Batches are made while the training works on others, not before: (a + b) / max(a, b) is 2 at most."""
    text = "up to twice the rate, where a step of the training takes as long as its input"
    return Gain("expected", text, 2.0)


def figure(times: float) -> str:
    """A ratio for a reader."""
    return f"{times:.2f}" if times < 10 else f"{times:.0f}"


def counted_cpus(cpus: int) -> str:
    """1 CPU, 2 CPUs."""
    return "1 CPU" if cpus == 1 else f"{cpus} CPUs"


def _expected(
    pipeline: Pipeline,
    context: Context,
    stages: Collection[Stage],
    changed: Pipeline,
    changed_times: Mapping[str, StageTime],
) -> Gain | None:
    """None without times, or where the CPUs are not known."""
    if context.cpus is None or not context.times:
        return None
    # What stands before a cache is done in the first epoch, and only there.
    first = any(context.times[stage.name].once for stage in stages if stage.name in context.times)
    before = time_us(_costs(pipeline, context.times, first), context.cpus)
    after = time_us(_costs(changed, changed_times, first), context.cpus)
    if not before:
        return None
    times = before / after if after else _MOST
    if times >= _MOST:
        times, text = _MOST, f"up to {100 * (1 - after / before):.0f} % of the time of the input"
    else:
        text = f"up to {figure(times)} times the rate" if times >= _NO_GAIN else "nothing"
    epoch = " in the first epoch" if first else ""
    return Gain("expected", f"{text} with {counted_cpus(context.cpus)}{epoch}", times, cpus=context.cpus)


def _costs(pipeline: Pipeline, times: Mapping[str, StageTime], first: bool) -> list[StageCost]:
    lane_of = lanes(pipeline)
    return [
        StageCost(
            stage.name,
            stage.op,
            stage.position,
            times[stage.name].self_time_us,
            times[stage.name].cpu_us,
            times[stage.name].wait_us,
            times[stage.name].once and not first,
            lane=lane_of[stage.name],
        )
        for stage in pipeline.stages
        if stage.name in times
    ]
