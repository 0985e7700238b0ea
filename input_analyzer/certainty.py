"""How sure an expected rate is, from what was measured and how well the model goes through it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from input_analyzer.analysis import Layout, Measurement, Recommendation


def with_interval(
    found: Recommendation, measurements: Sequence[Measurement], model_error: float
) -> Recommendation:
    """A recommendation with the interval of its rate.

    Each node has, relative to its rate, the interval of the measurement that is nearest to its workers: with
    the CPUs per task of the layout and, of these, as many tasks as the node has workers, or the next smaller
    or larger number. What is wrong with one measurement may be wrong with all, so the intervals of nodes add
    up as they are, each by its part of the rate. The distance of the model from all measurements is
    independent of that, so the squares of the two add up.

    Args:
        found: what is recommended.
        measurements: all of them, at least one.
        model_error: root mean square of the relative distance of the model from the measurements.
    """
    rate, low, high = 0.0, 0.0, 0.0
    for nodes, workers in _filled(found.layout):
        nearest = _nearest(measurements, workers, found.layout.cpus_per_task)
        share = nodes * workers / nearest.tasks
        rate += share * nearest.samples_per_s
        low += share * nearest.low
        high += share * nearest.high
    below = math.hypot(1 - low / rate, model_error)
    above = math.hypot(high / rate - 1, model_error)
    expected = found.samples_per_s
    return replace(found, low=expected * max(0.0, 1 - below), high=expected * (1 + above))


def _filled(layout: Layout) -> list[tuple[int, int]]:
    """(nodes, workers of each): one task of the first node is the chief."""
    full, tasks = layout.nodes - 1, layout.tasks_per_node
    both = [(full, tasks), (1, layout.workers - full * tasks)]
    return [(nodes, workers) for nodes, workers in both if nodes * workers > 0]


def _nearest(measurements: Sequence[Measurement], workers: int, cpus: int) -> Measurement:
    """The measurement that is nearest to a node; of two that are as near the looser one."""

    def distance(one: Measurement) -> tuple[int, int, float]:
        width = (one.high - one.low) / one.samples_per_s
        return abs(one.cpus_per_task - cpus), abs(one.tasks - workers), -width

    return min(measurements, key=distance)
