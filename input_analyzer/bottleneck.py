"""Which stage bounds a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from input_analyzer.analysis import Bottleneck
from input_analyzer.report.words import rate
from input_rules.throughput import NEARLY_ALL, StageCost, time_us

_FASTER = 1.005  # what is less is not worth a word
_SOME = 0.05  # of a time, what is less is within its error
_ALIKE = 0.02  # gains that differ by so little, as parts of the whole time, are the same


def bottleneck_of(
    stages: Sequence[StageCost], cpus: int = 1, unaccounted_us: float = 0.0
) -> Bottleneck | None:
    """The stage without which the pipeline would be fastest, once the first epoch is over.

    In one thread, and on one CPU where nothing waits, that is the stage with the largest self time. Where
    lanes work side by side it is a stage of the slowest one, and where the CPUs are too few for all of them
    the stage whose CPU time they lack most. Of several that are alike in this the one with the largest self
    time is taken.

    Args:
        stages: All stages of a pipeline.
        cpus: CPUs of a task.
        unaccounted_us: CPU time per sample in no stage, which stays whatever stage is left out.

    Returns:
        None where no stage was timed.
    """
    timed = [stage for stage in stages if stage.self_time_us_per_sample and not stage.once]
    if not timed:
        return None
    whole = time_us(timed, cpus)
    spared = {stage.name: whole - time_us(_without(timed, stage), cpus) for stage in timed}
    most = max(spared.values())
    chosen = max((s for s in timed if spared[s.name] >= most - _ALIKE * whole), key=_time)
    return Bottleneck(chosen.name, chosen.op, _reason(chosen, timed, cpus, unaccounted_us))


def _without(stages: Sequence[StageCost], left_out: StageCost) -> list[StageCost]:
    return [stage for stage in stages if stage is not left_out]


def _reason(chosen: StageCost, timed: Sequence[StageCost], cpus: int, unaccounted_us: float) -> str:
    of_stages = sum(map(_time, timed))
    share = 100 * _time(chosen) / of_stages
    threads = chosen.lane.threads_on(cpus)
    where = "" if threads == 1 else f" in {threads} threads"
    text = f"{_spent(chosen)}{where}, {share:.0f} % of the time of all stages"
    on = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
    if unaccounted_us > of_stages:
        return (
            f"{text}; more time goes into no stage: {rate(unaccounted_us)} us of CPU time per sample into "
            "calls and into handing elements over, which fewer and larger ones spare"
        )
    left = time_us(_without(timed, chosen), cpus, unaccounted_us)
    if left <= 0 or len(timed) == 1:
        return text
    times = time_us(timed, cpus, unaccounted_us) / left
    if unaccounted_us and times < _FASTER:
        return text
    if times >= NEARLY_ALL:
        return f"{text}; almost nothing else takes time: without it a task with {on} could be {_MORE} as fast"
    faster = f"a task with {on} could be {times:.3g} times as fast"
    if unaccounted_us <= _ALIKE * of_stages:
        return f"{text}; without it {faster}"
    return (
        f"{text}; without that, and with the {rate(unaccounted_us)} us of CPU time in no stage (calls, "
        f"handing elements over) as they are, {faster}; a change that spares some of these, too, gives more"
    )


_MORE = f"more than {NEARLY_ALL:.0f} times"


def _spent(stage: StageCost) -> str:
    """The time of a stage, and what it does in it."""
    waits, time = stage.wait_us_per_sample or 0.0, _time(stage)
    if waits < _SOME * time:
        return f"{rate(time)} us of computing per sample"
    if waits > (1 - _SOME) * time:
        return f"{rate(time)} us of waiting per sample"
    return f"{rate(time)} us per sample, of that {rate(waits)} us waiting"


def _time(stage: StageCost) -> float:
    return stage.self_time_us_per_sample or 0.0
