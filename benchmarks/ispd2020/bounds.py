"""Lower bounds of the objective, so that a result can be judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.ispd2020.curves import KernelCurves
from benchmarks.ispd2020.format import ContestError
from benchmarks.ispd2020.model import ContestGraph

_PRECISION = 1e-4
_FINE_STEP, _COARSE_STEP = 1.02, 1.2
_LARGEST_TARGET = 1e15


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of legal solutions.

    Attributes:
        area_time: the time below which the smallest rectangles have more tiles than the fabric, cycles.
        kernel_time: the least time of the kernel that is hardest to split, cycles.
        objective: of time and wires together, without adapters: the centers of two kernels are at least half
            of their two shorter sides apart.
    """

    area_time: float
    kernel_time: float
    objective: float

    @property
    def time(self) -> float:
        """The higher of the two bounds of the time."""
        return max(self.area_time, self.kernel_time)


def bounds(graph: ContestGraph, curves: Sequence[KernelCurves], wires: bool = True) -> Bounds:
    """Lower bounds for a graph; the area bound is exact to 0.01 %, rounded down.

    Args:
        graph: the graph.
        curves: rectangles of each kernel.
        wires: whether the bound of the objective has to count them, which takes some time.

    Raises:
        ContestError: a kernel, or all kernels together, do not fit on the fabric at any speed.
    """
    distinct = {id(curve): curve for curve in curves}
    for curve in distinct.values():
        _check_kernel(graph, curves, curve)
    counts = {key: sum(1 for curve in curves if id(curve) == key) for key in distinct}
    tiles = graph.width * graph.height

    def area(target: float) -> int:
        return sum(count * distinct[key].min_area(target) for key, count in counts.items())

    if area(_LARGEST_TARGET) > tiles:
        raise ContestError(
            f"all {len(curves)} kernels together need {area(_LARGEST_TARGET)} tiles at their smallest, "
            f"expected at most {graph.width} x {graph.height} = {tiles}; split the graph or take a larger "
            "fabric"
        )
    kernel_time = max(_least(curve.fits) for curve in distinct.values())
    area_time = _least(lambda target: area(target) <= tiles)
    time = max(kernel_time, area_time)
    objective = _objective_bound(graph, curves, time) if wires else graph.wdeltat * time
    return Bounds(area_time, kernel_time, objective)


def _check_kernel(graph: ContestGraph, curves: Sequence[KernelCurves], curve: KernelCurves) -> None:
    if curve.fits(_LARGEST_TARGET):
        return
    kernel = graph.kernels[next(index for index, other in enumerate(curves) if other is curve)]
    formal = " ".join(str(number) for number in kernel.formal)
    raise ContestError(
        f"kernel {kernel.name} = {kernel.kind}( {formal} ) does not fit on {graph.width} x {graph.height} "
        f"tiles of {graph.memlimit:g} words at any speed; split the kernel or take a larger fabric"
    )


def _least(possible: Callable[[float], bool]) -> float:
    """The lowest target that is possible, rounded down."""
    low, high = 0.0, 1.0
    while not possible(high):
        low, high = high, high * 4
    while high - low > _PRECISION * high:
        middle = (low + high) / 2 if low == 0.0 else (low * high) ** 0.5
        low, high = (low, middle) if possible(middle) else (middle, high)
    return low


def _objective_bound(graph: ContestGraph, curves: Sequence[KernelCurves], time: float) -> float:
    """Minimum over intervals of targets: time at the lower end, shortest sides at the upper end."""
    floor = [curve.least_side(_LARGEST_TARGET) for curve in curves]
    best, low = np.inf, time
    while graph.wdeltat * low < best:
        # Fine steps where the best targets are, coarse ones for graphs of heavy wires.
        high = low * (_FINE_STEP if low < 10 * time else _COARSE_STEP)
        sides = [curve.least_side(high) for curve in curves]
        wires = sum(sides[edge.source] + sides[edge.target] for edge in graph.edges) / 2
        best = min(best, graph.wdeltat * low + graph.wlength * wires)
        if sides == floor:
            break
        low = high
    return float(best)
