"""Which stage bounds a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from input_analyzer.analysis import Bottleneck, StageCost


def bottleneck_of(stages: Sequence[StageCost]) -> Bottleneck | None:
    """The stage with the largest self time, once the first epoch is over; None where none was timed."""
    timed = [stage for stage in stages if stage.self_time_us_per_sample and not stage.once]
    if not timed:
        return None
    slowest = max(timed, key=_time)
    share = 100 * _time(slowest) / sum(map(_time, timed))
    waits = slowest.wait_us_per_sample or 0.0
    kind = "waiting" if waits > _time(slowest) / 2 else "computing"
    reason = f"{_time(slowest):,.4g} us of {kind} per sample, {share:.0f} % of the time of all stages"
    return Bottleneck(slowest.name, slowest.op, reason)


def _time(stage: StageCost) -> float:
    return stage.self_time_us_per_sample or 0.0
