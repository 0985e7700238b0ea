"""Choose the size and the position of every kernel.

A pipeline is as fast as its slowest kernel, so all kernels share one target of cycles per sample. Each takes
a small rectangle that meets it; the search finds the lowest target at which all rectangles pack into the
fabric, then shortens the wires at that target.

Three conditions can end the search before the fabric is full:

- The target is not below the cycles of a kernel that cannot be split further: other kernels would only wait.
- Speed has a price in area, and part of the fabric stays free where possible (`cgc.placement.shapes`).
- If memory for activations is short, fewer samples are in flight (`fills`).

The floorplan search is `cgc.placement.engine`, which also solves the graphs of the ISPD 2020 contest. Its
budget is a number of moves, not a time, so that results are deterministic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from cgc.errors import PlacementError
from cgc.kernels.configurations import Ints
from cgc.kernels.graph import KernelGraph
from cgc.placement.engine.anneal import Schedule, anneal, push
from cgc.placement.engine.problem import Edges, Floorplan, Problem, Weights
from cgc.placement.engine.starts import (
    DENSE,
    SHORT,
    band_trees,
    fit_bands,
    fit_by_annealing,
    fit_tight,
    orders_to_fit,
    shorten_order,
)
from cgc.placement.engine.tree import Node
from cgc.placement.model import Placement, Rect
from cgc.placement.shapes import (
    AREA_PER_SPEED,
    MAX_FABRIC_SHARE,
    GraphShapes,
    KernelShapes,
    areas,
    economical_target,
    graph_too_large,
    targets_from,
)
from cs_toolkit.fabric import Fabric

_BOXES_PER_HALVING = 8
# Budgets as moves times kernels: the time of a move is about proportional to the number of kernels.
_ORDER_WORK, _ANNEAL_WORK, _PUSH_WORK = 3_000_000, 1_000_000, 300
_MOVES_PER_KERNEL, _MAX_MOVES = 60, 5_000
_TOTAL_HEAT, _STEEPNESS = 0.05, 5.0
_MAX_BISECTIONS, _FIT_MOVES = 4, 1_500
_FIT_TO_WIRES = 4.0  # weight of fitting relative to the wires while these are shortened

# Fills are powers of `_FILL_STEP` with exponents 0 .. `_MAX_EXPONENT`, searched with decreasing strides.
_FILL_STEP = 0.98
_STRIDES = (32, 8, 2, 1)
_MAX_EXPONENT = 320

# Shares of the fabric that the areas of the kernels may add up to; 1.0 is the last resort.
_FABRIC_SHARES = (MAX_FABRIC_SHARE, 0.95, 0.98, 1.0)


def place(graph: KernelGraph, fabric: Fabric, area_per_speed: float = AREA_PER_SPEED) -> Placement:
    """Place all kernels of a graph on a fabric, deterministically.

    Args:
        graph: kernels in data-flow order.
        fabric: the fabric, or the part of one, to place them on.
        area_per_speed: percent of area that one percent of speed may cost; larger values use more of the
            fabric.

    Raises:
        PlacementError: a kernel, or all of them together, do not fit; it names the kernel and the resources
            needed and available.
        KernelGraphError: the cost function of a kernel cannot use its parameters.
    """
    return place_variants(graph, fabric, area_per_speed)[0]


def place_variants(
    graph: KernelGraph, fabric: Fabric, area_per_speed: float = AREA_PER_SPEED
) -> tuple[Placement, Placement]:
    """Place all kernels as `place` does, and return the draft as well, which may suit an exchange better.

    Raises:
        PlacementError: a kernel, or all of them together, do not fit.
        KernelGraphError: the cost function of a kernel cannot use its parameters.
    """
    if not graph.kernels:
        raise PlacementError(
            "the graph has no kernels, expected at least one; compile a step that computes something"
        )
    all_shapes = GraphShapes(graph.kernels, fabric)
    start = economical_target(graph, area_per_speed)
    for fill in fills(all_shapes, start, fabric.processing_elements):
        placer = _Placer.find(graph, fabric, all_shapes, start, fill)
        if placer is not None:
            return placer.place(), placer.draft()
    raise graph_too_large(graph.kernels, fabric)


def draft(graph: KernelGraph, fabric: Fabric, fill: float) -> Placement | None:
    """Place all kernels without the search for the shortest wires, which takes three quarters of the time.

    Target, layouts and box are nearly those of `place`.

    Args:
        graph: kernels in data-flow order.
        fabric: the fabric, or the part of one, to place them on.
        fill: samples in flight relative to a full pipeline, of `fit_by_area`.

    Returns:
        The placement; None if it does not fit.
    """
    try:
        all_shapes = GraphShapes(graph.kernels, fabric)
    except PlacementError:
        return None
    start = economical_target(graph, AREA_PER_SPEED)
    placer = _Placer.find(graph, fabric, all_shapes, start, fill)
    return None if placer is None else placer.draft()


class _Placer:
    """The fastest floorplan of a graph at a fill, in the smallest box that works."""

    def __init__(
        self,
        graph: KernelGraph,
        fabric: Fabric,
        shapes: Sequence[KernelShapes],
        fill: float,
        search: _Search,
        plan: Floorplan,
    ) -> None:
        self._graph, self._fabric, self._shapes, self._fill = graph, fabric, shapes, fill
        self._search = search
        self._plan, self._problem = search.shrink_box(plan)

    @classmethod
    def find(
        cls, graph: KernelGraph, fabric: Fabric, all_shapes: GraphShapes, start: int, fill: float
    ) -> _Placer | None:
        """Find the fastest floorplan, with `start` as the least target; None if the kernels do not fit."""
        shapes = all_shapes.shapes_at(fill)
        if shapes is None:
            return None
        position = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
        edges = [(position[edge.src], position[edge.dst]) for edge in graph.edges]
        floor = max(int(kernel.cycles[0]) for kernel in shapes)
        search = _Search(fabric, shapes, edges)
        plan = search.find_fastest(targets_from(shapes, max(floor, start)))
        return None if plan is None else cls(graph, fabric, shapes, fill, search, plan)

    def draft(self) -> Placement:
        """Return the placement in the box, before the search for the shortest wires."""
        return self._make(self._plan, moves=0)

    def place(self) -> Placement:
        """Return the placement with the shortest wires."""
        plan = self._search.shorten_wires(self._plan, self._problem)
        return self._make(plan, moves=_PUSH_WORK // len(self._shapes))

    def _make(self, plan: Floorplan, moves: int) -> Placement:
        rectangles = self._search.rectangles(plan, moves)
        return _make_placement(
            self._graph, self._shapes, self._fabric, rectangles, int(plan.target), self._fill
        )


class _Search:
    """The floorplan search for one graph on one fabric."""

    def __init__(self, fabric: Fabric, shapes: Sequence[KernelShapes], edges: Edges) -> None:
        self._fabric = fabric
        self._shapes = shapes
        self._edges = edges
        self._rng = random.Random(0)
        self._problem = Problem(fabric.width, fabric.height, shapes, edges, Weights(1.0, 0.0))
        count = len(shapes)
        sizes = [math.sqrt(kernel.min_area(int(kernel.cycles[-1]))) for kernel in shapes]
        moves = min(_ORDER_WORK // count, _MOVES_PER_KERNEL * count)
        self._flow = shorten_order(range(count), self._problem.edges, sizes, moves, self._rng)
        self._moves = min(_MOVES_PER_KERNEL * count, _MAX_MOVES, _ANNEAL_WORK // count)

    def find_fastest(self, targets: Ints) -> Floorplan | None:
        """Find a floorplan at the lowest feasible target; return None if no target is feasible."""
        total = areas(self._shapes, targets)
        is_possible = total <= self._fabric.processing_elements
        if not is_possible.any():
            return None
        is_roomy = total <= MAX_FABRIC_SHARE * self._fabric.processing_elements
        first = int(np.argmax(is_roomy if is_roomy.any() else is_possible))
        index, plan = self._find_lowest_target(targets, first)
        return None if plan is None else self._lower_target(targets[first:index], plan)

    def _find_lowest_target(self, targets: Ints, first: int) -> tuple[int, Floorplan | None]:
        """Find the lowest target from `first` at which bands fit, by exponential, then binary search."""
        failed, stride, index = first - 1, 1, first
        while (plan := fit_bands(self._problem, self._flow, int(targets[index]))) is None:
            if index == len(targets) - 1:
                return index, fit_tight(self._problem, int(targets[index]), _FIT_MOVES, self._rng)
            failed, index = index, min(len(targets) - 1, index + stride)
            stride *= 2
        while index - failed > 1:
            middle = (index + failed) // 2
            found = fit_bands(self._problem, self._flow, int(targets[middle]))
            if found is None:
                failed = middle
            else:
                index, plan = middle, found
        return index, plan

    def _lower_target(self, targets: Ints, plan: Floorplan) -> Floorplan:
        """Anneal a floorplan to fit at lower targets, found by bisection."""
        low, high = 0, len(targets)
        for _ in range(_MAX_BISECTIONS):
            if low >= high:
                break
            middle = (low + high) // 2
            moves = min(self._moves, _FIT_MOVES)
            found = fit_by_annealing(self._problem, plan.tree, int(targets[middle]), moves, self._rng)
            if found is None:
                low = middle + 1
            else:
                plan, high = found, middle
        return plan

    def shorten_wires(self, plan: Floorplan, problem: Problem) -> Floorplan:
        """Minimize the wire length at the target of a floorplan in a box, of `shrink_box`."""
        if plan.objective == 0:
            return plan
        fit = _FIT_TO_WIRES * plan.objective / plan.target
        weighted = self._problem_with_wires(problem.width, problem.height, fit)
        schedule = Schedule(self._moves, _TOTAL_HEAT / max(8, len(self._shapes)), _STEEPNESS)

        def realize(tree: Node, limit: float) -> Floorplan | None:
            found = weighted.floorplan(tree, plan.target)
            return found if found is not None and found.objective < limit else None

        best = anneal(weighted, plan.tree, plan.target, schedule, self._rng, realize)
        return best or plan

    def shrink_box(self, plan: Floorplan) -> tuple[Floorplan, Problem]:
        """Find the smallest box with the fabric's proportions that bands fit in, and its shortest wires."""
        area = sum(kernel.min_area(int(plan.target)) for kernel in self._shapes)
        boxes = [self._problem_with_wires(width, height) for width, height in _boxes(self._fabric, area)]
        for order in orders_to_fit(self._problem, self._flow, plan.target):
            for problem in boxes:
                bands = partial(band_trees, problem, order, plan.target, problem.width, problem.height)
                dense = list(bands(DENSE))
                if not dense:  # bands of short columns, which are less dense, do not fit either
                    continue
                trees = chain(bands(SHORT), dense)
                found = [fitted for tree in trees if (fitted := problem.floorplan(tree, plan.target))]
                if found:
                    return min(found, key=lambda fitted: fitted.objective), problem
        fitted = boxes[-1].floorplan(plan.tree, plan.target)
        assert fitted is not None
        return fitted, boxes[-1]

    def _problem_with_wires(self, width: int, height: int, fit: float = 0.0) -> Problem:
        return Problem(width, height, self._shapes, self._edges, Weights(fit, 1.0))

    def rectangles(self, plan: Floorplan, moves: int) -> list[tuple[Rect, int]]:
        """Return the rectangle and the layout number of each kernel, moved in its piece to shorten wires.

        Args:
            plan: the floorplan.
            moves: rounds of moves.
        """
        pieces = self._problem.pieces(plan)
        chosen = [
            kernel.shapes_at(plan.target).smallest_within(piece.width, piece.height)
            for kernel, piece in zip(self._shapes, pieces, strict=True)
        ]
        sizes = np.array([(shape.width, shape.height) for shape in chosen])
        corners = np.array([(piece.x, piece.y) for piece in pieces])
        spare = np.array([(piece.width, piece.height) for piece in pieces]) - sizes
        placed = push(self._problem, corners + spare // 2, sizes, moves)
        return [
            (Rect(int(x), int(y), shape.width, shape.height), shape.layout)
            for (x, y), shape in zip(placed, chosen, strict=True)
        ]


def _boxes(fabric: Fabric, area: int) -> Iterator[tuple[int, int]]:
    """Yield boxes with the fabric's proportions, from the smallest with `area` PEs to the whole fabric."""
    for step in range(40 * _BOXES_PER_HALVING, -1, -1):
        scale = 2.0 ** (-step / _BOXES_PER_HALVING)
        width, height = round(fabric.width * scale), round(fabric.height * scale)
        if width * height >= area:
            yield width, height


def _make_placement(
    graph: KernelGraph,
    shapes: Sequence[KernelShapes],
    fabric: Fabric,
    rectangles: Sequence[tuple[Rect, int]],
    target: int,
    fill: float,
) -> Placement:
    names = [kernel.name for kernel in graph.kernels]
    rects = {name: rect for name, (rect, _) in zip(names, rectangles, strict=True)}
    layouts = [
        found.layouts.with_activations(layout, kernel.stash_bytes(fill))
        for kernel, found, (_, layout) in zip(graph.kernels, shapes, rectangles, strict=True)
    ]
    active = sum(rect.area for rect in rects.values())
    centers = {name: rect.center for name, rect in rects.items()}
    return Placement(
        fabric=fabric.name,
        rects=rects,
        layouts=dict(zip(names, layouts, strict=True)),
        target_cycles=target,
        fill=fill,
        active_pes=active,
        total_utilization=active / fabric.processing_elements,
        wire_length=sum(_distance(centers[edge.src], centers[edge.dst]) for edge in graph.edges),
    )


def _distance(a: tuple[float, float], b: tuple[float, float]) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


@dataclass(frozen=True)
class AreaFit:
    """The speed at which kernels fit a fabric by their areas, without a floorplan.

    Attributes:
        interval: cycles between samples.
        fill: samples in flight relative to a full pipeline.
        full: True if more PEs would make the kernels faster.
        areas: PEs of each kernel at that speed, by name.
    """

    interval: int
    fill: float
    full: bool
    areas: Mapping[str, int]


def fit_by_area(graph: KernelGraph, fabric: Fabric) -> AreaFit | None:
    """Return the speed at which kernels take at most `MAX_FABRIC_SHARE`; None if they take more at any.

    Where `full` is False, it is the speed of their floorplan.
    """
    try:
        all_shapes = GraphShapes(graph.kernels, fabric)
    except PlacementError:
        return None
    one_sample = all_shapes.shapes_at(0)
    assert one_sample is not None
    start = max(economical_target(graph, AREA_PER_SPEED), *(int(kernel.cycles[0]) for kernel in one_sample))
    best = _FillSearch(all_shapes, start, MAX_FABRIC_SHARE * fabric.processing_elements).best()
    shapes = None if best is None else all_shapes.shapes_at(best.fill)
    if best is None or shapes is None:
        return None
    target = int(best.interval * best.fill + 0.5)
    taken = {kernel.name: own.min_area(target) for kernel, own in zip(graph.kernels, shapes, strict=True)}
    return AreaFit(math.ceil(best.interval), best.fill, best.interval > start, taken)


class _Best(NamedTuple):
    """The best fill, and its cycles between samples."""

    fill: float
    interval: float


class _FillSearch:
    """Search for the fill with the shortest interval between samples, by the areas of the kernels only.

    Args:
        shapes: layouts of all kernels.
        start: cycles below which speed is not worth its area.
        available: PEs that the kernels may take together.
    """

    def __init__(self, shapes: GraphShapes, start: int, available: float) -> None:
        self._shapes = shapes
        self._start = start
        self._available = available
        self._found: dict[int, float] = {}

    def best(self) -> _Best | None:
        """Return the fill with the shortest interval; None if the kernels do not fit at any fill."""
        best: int | None = None
        exponents = range(0, _MAX_EXPONENT + 1, _STRIDES[0])
        for stride, next_stride in zip(_STRIDES, (*_STRIDES[1:], 0), strict=True):
            for exponent in exponents:
                bound = math.inf if best is None else self._interval(best)
                if self._start / _FILL_STEP**exponent >= bound:
                    break
                if self._interval(exponent) < bound:
                    best = exponent
            if best is None or not next_stride:
                break
            exponents = range(
                max(0, best - stride + next_stride), min(_MAX_EXPONENT, best + stride), next_stride
            )
        return None if best is None else _Best(_FILL_STEP**best, self._interval(best))

    def _interval(self, exponent: int) -> float:
        """Return the minimum cycles between samples at a fill; infinite if the kernels do not fit."""
        if exponent not in self._found:
            self._found[exponent] = self._compute_interval(_FILL_STEP**exponent)
        return self._found[exponent]

    def _compute_interval(self, fill: float) -> float:
        shapes = self._shapes.shapes_at(fill)
        if shapes is None:
            return math.inf
        targets = targets_from(shapes, max(self._start, *(int(kernel.cycles[0]) for kernel in shapes)))
        fitting = areas(shapes, targets) <= self._available
        return float(targets[np.argmax(fitting)]) / fill if fitting.any() else math.inf


def fills(shapes: GraphShapes, start: int, available: int) -> Iterator[float]:
    """Yield the fills to try, best first; none if the kernels do not fit at any fill.

    Kernels take more than `MAX_FABRIC_SHARE` only if the speedup is worth the area by `AREA_PER_SPEED`. The
    fills of smaller shares follow, for kernels that would fit by their area but do not pack.

    Args:
        shapes: layouts of all kernels.
        start: cycles below which speed is not worth its area.
        available: PEs of the fabric.
    """
    one_sample = shapes.shapes_at(0)
    assert one_sample is not None
    if sum(int(kernel.min_area(int(kernel.cycles[-1]))) for kernel in one_sample) > available:
        return
    start = max(start, *(int(kernel.cycles[0]) for kernel in one_sample))
    found: dict[float, _Best] = {}
    for share in _FABRIC_SHARES:
        best = _FillSearch(shapes, start, share * available).best()
        if best is not None:
            found[share] = best
            if best.interval <= start:
                break
    candidates = [share for share in found if share < 1] or list(found)
    if candidates:
        chosen = min(candidates, key=lambda share: found[share].interval * share**AREA_PER_SPEED)
        yield from dict.fromkeys(found[share].fill for share in reversed(candidates) if share <= chosen)
