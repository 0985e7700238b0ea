"""How sure an expected rate is, from what was measured and how well the model goes through it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from input_analyzer.analysis import Measurement, Recommendation


def with_interval(
    found: Recommendation, measurements: Sequence[Measurement], model_error: float
) -> Recommendation:
    """A recommendation with the interval of its rate.

    Relative to the rate it has the interval of the measurement that is nearest to a node of its: with the
    CPUs per task of the layout and, of these, as many tasks as the node has workers, or the next smaller or
    larger number. What is wrong with one node may be wrong with all. The distance of the model from all
    measurements is independent of that, so the squares of the two add up.

    Args:
        found: what is recommended.
        measurements: all of them, at least one.
        model_error: root mean square of the relative distance of the model from the measurements.
    """
    layout, expected = found.layout, found.samples_per_s
    workers = layout.workers if layout.nodes == 1 else layout.tasks_per_node  # without the chief
    nearest = _nearest(measurements, workers, layout.cpus_per_task)
    below = math.hypot(1 - nearest.low / nearest.samples_per_s, model_error)
    above = math.hypot(nearest.high / nearest.samples_per_s - 1, model_error)
    return replace(found, low=expected * max(0.0, 1 - below), high=expected * (1 + above))


def _nearest(measurements: Sequence[Measurement], workers: int, cpus: int) -> Measurement:
    """The measurement that is nearest to a node; of two that are as near the looser one."""

    def distance(one: Measurement) -> tuple[int, int, float]:
        width = (one.high - one.low) / one.samples_per_s
        return abs(one.cpus_per_task - cpus), abs(one.tasks - workers), -width

    return min(measurements, key=distance)
