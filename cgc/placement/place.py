"""Choose the size and the position of every kernel.

A pipeline is as fast as its slowest kernel. All kernels therefore share one target of cycles per sample: each
takes a small rectangle that meets it, and the target is the lowest one at which all rectangles pack into the
fabric. The search then shortens the wires at that target.

Three conditions can end the search before the fabric is full:

- The target is never below the cycles of a kernel that cannot be split further; the others would only wait.
- Speed has a price in area, and part of the fabric stays free where possible (`cgc.placement.shapes`).
- If memory for activations is short, fewer samples are in flight (`fills`).

The floorplan search is `cgc.placement.engine`, which also solves the graphs of the ISPD 2020 contest. Its
budget is a number of moves, not a time, so that results are deterministic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
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
    fit_changed,
    fit_hard,
    orders_to_fit,
    short_order,
)
from cgc.placement.engine.tree import Node
from cgc.placement.model import Placement, Rect
from cgc.placement.shapes import (
    AREA_PER_SPEED,
    MOST_OF_FABRIC,
    GraphShapes,
    KernelShapes,
    areas,
    graph_too_large,
    paying_target,
    targets_from,
)
from cs_toolkit.fabric import Fabric

_BOXES_PER_HALVING = 8
# Budgets as moves times kernels: the time of a move is about proportional to the number of kernels.
_ORDER_WORK, _ANNEAL_WORK, _PUSH_WORK = 3_000_000, 1_000_000, 300
_MOVES_PER_KERNEL, _MOST_MOVES = 60, 5_000
_HEAT_OF_ALL, _STEEPNESS = 0.05, 5.0
_SQUEEZES, _FIT_MOVES = 4, 1_500
_FIT_OVER_WIRES = 4.0

# Fills are `_FILL_STEP` to the power of 0 .. `_MAX_EXPONENT`, searched in strides from coarse to fine.
_FILL_STEP = 0.98
_STRIDES = (32, 8, 2, 1)
_MAX_EXPONENT = 320

# Shares of the fabric that kernels may take by their area; all of it only as a last resort.
_SHARES = (MOST_OF_FABRIC, 0.95, 0.98, 1.0)


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
    if not graph.kernels:
        raise PlacementError(
            "the graph has no kernels, expected at least one; compile a step that computes something"
        )
    position = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
    edges = [(position[edge.src], position[edge.dst]) for edge in graph.edges]
    all_shapes = GraphShapes(graph.kernels, fabric)
    start = paying_target(graph, area_per_speed)
    for fill in fills(all_shapes, start, fabric.processing_elements):
        shapes = all_shapes.at(fill)
        assert shapes is not None
        floor = max(int(kernel.cycles[0]) for kernel in shapes)
        search = _Search(fabric, shapes, edges)
        plan = search.find_fastest(targets_from(shapes, max(floor, start)))
        if plan is not None:
            plan = search.shorten_wires(plan)
            return _make_placement(graph, shapes, fabric, search.rectangles(plan), int(plan.target), fill)
    raise graph_too_large(graph.kernels, fabric)


class _Search:
    """The floorplan search for one graph on one fabric."""

    def __init__(self, fabric: Fabric, shapes: Sequence[KernelShapes], edges: Edges) -> None:
        self._fabric = fabric
        self._shapes = shapes
        self._edges = edges
        self._rng = random.Random(0)
        self._problem = Problem(fabric.width, fabric.height, shapes, edges, Weights(1.0, 0.0))
        count = len(shapes)
        sizes = [math.sqrt(kernel.least_area(int(kernel.cycles[-1]))) for kernel in shapes]
        moves = min(_ORDER_WORK // count, _MOVES_PER_KERNEL * count)
        self._flow = short_order(range(count), self._problem.edges, sizes, moves, self._rng)
        self._moves = min(_MOVES_PER_KERNEL * count, _MOST_MOVES, _ANNEAL_WORK // count)

    def find_fastest(self, targets: Ints) -> Floorplan | None:
        """Find a floorplan at the lowest feasible target; None if no target is feasible."""
        total = areas(self._shapes, targets)
        possible = total <= self._fabric.processing_elements
        if not possible.any():
            return None
        roomy = total <= MOST_OF_FABRIC * self._fabric.processing_elements
        first = int(np.argmax(roomy if roomy.any() else possible))
        index, plan = self._find_lowest_target(targets, first)
        return None if plan is None else self._lower_target(targets[first:index], plan)

    def _find_lowest_target(self, targets: Ints, first: int) -> tuple[int, Floorplan | None]:
        """Find the lowest target from `first` on at which bands fit, by exponential, then binary search."""
        failed, stride, index = first - 1, 1, first
        while (plan := fit_bands(self._problem, self._flow, int(targets[index]))) is None:
            if index == len(targets) - 1:
                return index, fit_hard(self._problem, int(targets[index]), _FIT_MOVES, self._rng)
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
        for _ in range(_SQUEEZES):
            if low >= high:
                break
            middle = (low + high) // 2
            moves = min(self._moves, _FIT_MOVES)
            found = fit_changed(self._problem, plan.tree, int(targets[middle]), moves, self._rng)
            if found is None:
                low = middle + 1
            else:
                plan, high = found, middle
        return plan

    def shorten_wires(self, plan: Floorplan) -> Floorplan:
        """Minimize the wire length at the target of a floorplan, in the smallest box that works."""
        plan, problem = self._shrink_box(plan)
        if plan.objective == 0:
            return plan
        fit = _FIT_OVER_WIRES * plan.objective / plan.target
        weighed = self._problem_with_wires(problem.width, problem.height, fit)
        schedule = Schedule(self._moves, _HEAT_OF_ALL / max(8, len(self._shapes)), _STEEPNESS)

        def realize(tree: Node, limit: float) -> Floorplan | None:
            found = weighed.floorplan(tree, plan.target)
            return found if found is not None and found.objective < limit else None

        best = anneal(weighed, plan.tree, plan.target, schedule, self._rng, realize)
        return best or plan

    def _shrink_box(self, plan: Floorplan) -> tuple[Floorplan, Problem]:
        """Find the smallest box of the fabric's proportions that bands fit into, and its shortest wires."""
        area = sum(kernel.least_area(int(plan.target)) for kernel in self._shapes)
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

    def rectangles(self, plan: Floorplan) -> list[tuple[Rect, int]]:
        """Return the rectangle and the layout number of each kernel, with the slack of the pieces used."""
        pieces = self._problem.pieces(plan)
        chosen = [
            kernel.at(plan.target).inside(piece.width, piece.height)
            for kernel, piece in zip(self._shapes, pieces, strict=True)
        ]
        sizes = np.array([(shape.width, shape.height) for shape in chosen])
        corners = np.array([(piece.x, piece.y) for piece in pieces])
        spare = np.array([(piece.width, piece.height) for piece in pieces]) - sizes
        places = push(self._problem, corners + spare // 2, sizes, _PUSH_WORK // len(chosen))
        return [
            (Rect(int(x), int(y), shape.width, shape.height), shape.layout)
            for (x, y), shape in zip(places, chosen, strict=True)
        ]


def _boxes(fabric: Fabric, area: int) -> Iterator[tuple[int, int]]:
    """Yield boxes in the fabric's proportions, from the smallest that has `area` PEs to the whole fabric."""
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


def _distance(one: tuple[float, float], other: tuple[float, float]) -> float:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


class _Best(NamedTuple):
    """A fill and its cycles between samples."""

    fill: float
    interval: float


class _FillSearch:
    """Search for the fill of the shortest interval between samples, from the areas of the kernels only.

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
        """Return the fill of the shortest interval; None if the kernels fit at no fill."""
        best: int | None = None
        exponents = range(0, _MAX_EXPONENT + 1, _STRIDES[0])
        for stride, shorter in zip(_STRIDES, (*_STRIDES[1:], 0), strict=True):
            for exponent in exponents:
                bound = math.inf if best is None else self._interval(best)
                if self._start / _FILL_STEP**exponent >= bound:
                    break
                if self._interval(exponent) < bound:
                    best = exponent
            if best is None or not shorter:
                break
            exponents = range(max(0, best - stride + shorter), min(_MAX_EXPONENT, best + stride), shorter)
        return None if best is None else _Best(_FILL_STEP**best, self._interval(best))

    def _interval(self, exponent: int) -> float:
        """Return the least cycles between samples at a fill; infinite if the kernels do not fit."""
        if exponent not in self._found:
            self._found[exponent] = self._compute_interval(_FILL_STEP**exponent)
        return self._found[exponent]

    def _compute_interval(self, fill: float) -> float:
        shapes = self._shapes.at(fill)
        if shapes is None:
            return math.inf
        targets = targets_from(shapes, max(self._start, *(int(kernel.cycles[0]) for kernel in shapes)))
        fitting = areas(shapes, targets) <= self._available
        return float(targets[np.argmax(fitting)]) / fill if fitting.any() else math.inf


def fills(shapes: GraphShapes, start: int, available: int) -> Iterator[float]:
    """Yield the fills to pack at, best first; nothing if the kernels fit at no fill.

    Kernels take more than `MOST_OF_FABRIC` only if the speedup is worth the area by `AREA_PER_SPEED`. The
    fills of smaller shares follow, for kernels that would fit by their area but do not pack.

    Args:
        shapes: layouts of all kernels.
        start: cycles below which speed is not worth its area.
        available: PEs of the fabric.
    """
    emptiest = shapes.at(0)
    assert emptiest is not None
    if sum(int(kernel.least_area(int(kernel.cycles[-1]))) for kernel in emptiest) > available:
        return
    start = max(start, *(int(kernel.cycles[0]) for kernel in emptiest))
    found: dict[float, _Best] = {}
    for share in _SHARES:
        best = _FillSearch(shapes, start, share * available).best()
        if best is not None:
            found[share] = best
            if best.interval <= start:
                break
    wanted = [share for share in found if share < 1] or list(found)
    if wanted:
        chosen = min(wanted, key=lambda share: found[share].interval * share**AREA_PER_SPEED)
        yield from dict.fromkeys(found[share].fill for share in reversed(wanted) if share <= chosen)
