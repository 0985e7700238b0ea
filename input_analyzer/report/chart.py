"""The plot of a page: rate against workers, as shapes in the coordinates of an SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from input_analyzer.analysis import Analysis
from input_analyzer.recommend import used_part
from input_analyzer.report.words import rate

WIDTH, HEIGHT = 1240.0, 380.0
LEFT, RIGHT, TOP, BOTTOM = 84.0, 20.0, 26.0, 46.0
_FAR_ABOVE = 3.0
"""A target so many times the highest rate would press all points to the axis: it is named at the edge."""
_MOST_TICKS = 12


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A measurement with its interval."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """What the model predicts for a number of CPUs per task, and what was measured for it."""

    number: int
    cpus_per_task: int
    path: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """All shapes.

    Attributes:
        target_y: height of the target line; None where there is none in the plot.
        target_text: what stands at it, or at the upper edge.
        chosen: the recommended layout as a point; None where it has no place.
    """

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    target_y: float | None
    target_text: str
    chosen: Mark | None


def chart(analysis: Analysis) -> Chart:
    """The plot of an analysis."""
    rates = _filled_nodes(analysis)
    most = max([max(points) for points in rates.values()] + [m.tasks for m in analysis.measurements])
    highest = max(
        [value for points in rates.values() for value in points.values()]
        + [m.high for m in analysis.measurements]
    )
    target = None if analysis.target is None else analysis.target.samples_per_s
    shown_target = target is not None and target <= _FAR_ABOVE * highest
    top = _round_up(max(highest, target or 0.0) if shown_target else highest)

    def x(workers: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * workers / (most + 0.5)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value, top) / top

    curves = []
    for number, (cpus, points) in enumerate(rates.items()):
        line = sorted(points.items())
        path = "M" + "L".join(f"{x(n):.1f} {y(value):.1f}" for n, value in [(0, 0.0), *line])
        marks = tuple(
            Mark(
                x(m.tasks),
                y(m.samples_per_s),
                y(m.low),
                y(m.high),
                f"{m.tasks} side by side with {cpus} CPUs each: {rate(m.samples_per_s)} samples/s measured, "
                f"{rate(m.low)} to {rate(m.high)}",
            )
            for m in analysis.measurements
            if m.cpus_per_task == cpus
        )
        curves.append(Curve(number, cpus, path, marks))
    found = analysis.recommendation
    at = y(found.samples_per_s)
    text = f"recommended: {rate(found.samples_per_s)} samples/s expected"
    return Chart(
        tuple(Tick(x(n), str(n)) for n in _worker_ticks(most)),
        tuple(Tick(y(top * step / 5), rate(top * step / 5)) for step in range(6)),
        tuple(curves),
        y(target) if shown_target and target is not None else None,
        "" if target is None else f"target {rate(target)}",
        Mark(x(found.layout.workers), at, at, at, text),
    )


def _filled_nodes(analysis: Analysis) -> dict[int, dict[int, float]]:
    """By CPUs per task the rate of 1, 2, ... workers where one node after the other is filled.

    On the measured node all tasks count, as all copies were workers; of more nodes one task is the chief.
    Where files are shared out, there are no more workers than files, and the part of their rate that counts.
    """
    filled, files = {}, analysis.model.files
    for cpus, points in sorted(analysis.model.curves.items()):
        node = dict(points)
        tasks = max(node)
        most = max(tasks, analysis.available_nodes * tasks - 1)
        most = most if files is None else min(most, files)
        filled[cpus] = {
            n: (n // tasks * node[tasks] + node.get(n % tasks, 0.0)) * used_part(files, n)
            for n in range(1, most + 1)
        }
    return filled


def _worker_ticks(most: int) -> Sequence[int]:
    step = max(1, math.ceil(most / _MOST_TICKS))
    return range(step, most + 1, step)


def _round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)
