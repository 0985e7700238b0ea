"""Chooses the size and the place of every kernel.

The pipeline is as fast as its slowest kernel. So all kernels get one target of cycles per sample, each takes
a small rectangle that keeps it, and the target is the lowest one at which all rectangles pack into the
fabric. At that target the wires are made short.

Three things end the search before the fabric is full. No target is below the cycles of a kernel that cannot
be split further: the others would only wait for it. Speed must pay, and a share of the fabric stays free
where it can, see `cgc.placement.shapes`. Where memory for activations is short, fewer samples are let in,
see `cgc.placement.place`.

The search is the one of `cgc.placement.engine`, which also solves the graphs of the ISPD 2020 contest. It
counts moves, not seconds: the result depends on nothing but the arguments.
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
_ORDER_WORK, _ANNEAL_WORK, _PUSH_WORK = 3_000_000, 1_000_000, 300
"""Moves of each search times the number of kernels, to which the time of a move is about proportional."""

_MOVES_PER_KERNEL, _MOST_MOVES = 60, 5_000
_HEAT_OF_ALL, _STEEPNESS = 0.05, 5.0
_SQUEEZES, _FIT_MOVES = 4, 1_500
_FIT_OVER_WIRES = 4.0


def place(graph: KernelGraph, fabric: Fabric, area_per_speed: float = AREA_PER_SPEED) -> Placement:
    """Places all kernels of a graph; the result depends on nothing but the arguments.

    Args:
        graph: kernels in data-flow order.
        fabric: where to place them.
        area_per_speed: percent of area that one percent of speed may cost; larger values use more of the
            fabric.

    Raises:
        PlacementError: a kernel does not fit, or all of them together do not: which, what is needed and
            available.
        KernelGraphError: parameters of a kernel that its cost function cannot use.
    """
    if not graph.kernels:
        raise PlacementError(
            "the graph has no kernels, expected at least one; compile a step that computes something"
        )
    all_shapes = GraphShapes(graph.kernels, fabric)
    start = paying_target(graph, area_per_speed)
    for fill in fills(all_shapes, start, fabric.processing_elements):
        shapes = all_shapes.at(fill)
        assert shapes is not None
        floor = max(int(kernel.cycles[0]) for kernel in shapes)
        search = _Search(fabric, shapes, _edges(graph))
        plan = search.fastest(targets_from(shapes, max(floor, start)))
        if plan is not None:
            plan = search.shortest(plan)
            return _placement(graph, shapes, fabric, search.rectangles(plan), int(plan.target), fill)
    raise graph_too_large(graph.kernels, fabric)


def _edges(graph: KernelGraph) -> Edges:
    position = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
    return [(position[edge.src], position[edge.dst]) for edge in graph.edges]


class _Search:
    """The search for one graph on one fabric."""

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

    def fastest(self, targets: Ints) -> Floorplan | None:
        """A floorplan at the lowest target that works, None where none does."""
        total = areas(self._shapes, targets)
        possible = total <= self._fabric.processing_elements
        if not possible.any():
            return None
        roomy = total <= MOST_OF_FABRIC * self._fabric.processing_elements
        first = int(np.argmax(roomy if roomy.any() else possible))
        index, plan = self._lowest(targets, first)
        return None if plan is None else self._squeezed(targets[first:index], plan)

    def _lowest(self, targets: Ints, first: int) -> tuple[int, Floorplan | None]:
        """The lowest target from `first` on at which bands fit: growing strides up, then halving back."""
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

    def _squeezed(self, targets: Ints, plan: Floorplan) -> Floorplan:
        """Changes the best bands for lower targets."""
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

    def shortest(self, plan: Floorplan) -> Floorplan:
        """A floorplan of short wires at the same target, in the smallest box that works."""
        plan, problem = self._boxed(plan)
        if plan.objective == 0:
            return plan
        fit = _FIT_OVER_WIRES * plan.objective / plan.target
        weighed = self._wired(problem.width, problem.height, fit)
        schedule = Schedule(self._moves, _HEAT_OF_ALL / max(8, len(self._shapes)), _STEEPNESS)

        def realise(tree: Node, limit: float) -> Floorplan | None:
            found = weighed.floorplan(tree, plan.target)
            return found if found is not None and found.objective < limit else None

        best = anneal(weighed, plan.tree, plan.target, schedule, self._rng, realise)
        return best or plan

    def _boxed(self, plan: Floorplan) -> tuple[Floorplan, Problem]:
        """The shortest wires of bands in the smallest box of the fabric's proportions that works."""
        area = sum(kernel.least_area(int(plan.target)) for kernel in self._shapes)
        boxes = [self._wired(width, height) for width, height in _boxes(self._fabric, area)]
        for order in orders_to_fit(self._problem, self._flow, plan.target):
            for problem in boxes:
                bands = partial(band_trees, problem, order, plan.target, problem.width, problem.height)
                dense = list(bands(DENSE))
                if not dense:  # then bands of short columns do not fit either
                    continue
                trees = chain(bands(SHORT), dense)
                found = [made for tree in trees if (made := problem.floorplan(tree, plan.target))]
                if found:
                    return min(found, key=lambda made: made.objective), problem
        made = boxes[-1].floorplan(plan.tree, plan.target)
        assert made is not None
        return made, boxes[-1]

    def _wired(self, width: int, height: int, fit: float = 0.0) -> Problem:
        return Problem(width, height, self._shapes, self._edges, Weights(fit, 1.0))

    def rectangles(self, plan: Floorplan) -> list[tuple[Rect, int]]:
        """Rectangle and number of the layout of each kernel."""
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
    """Boxes in the fabric's proportions, from the first one that has `area` PEs up to the fabric."""
    for step in range(40 * _BOXES_PER_HALVING, -1, -1):
        scale = 2.0 ** (-step / _BOXES_PER_HALVING)
        width, height = round(fabric.width * scale), round(fabric.height * scale)
        if width * height >= area:
            yield width, height


def _placement(
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


_STEP = 0.98
_STRIDES = (32, 8, 2, 1)
_EMPTIEST = 320
"""Fills are powers of `_STEP` up to this one, searched in strides that become shorter."""

_SHARES = (MOST_OF_FABRIC, 0.95, 0.98, 1.0)
"""Of the fabric that kernels may take by their area; the whole of it only where they need it."""


class _Best(NamedTuple):
    """A fill, and the cycles between samples at it."""

    fill: float
    interval: float


class _FillSearch:
    """The shortest interval between samples by the fill, from the areas of the kernels.

    Args:
        shapes: of all kernels.
        start: cycles below which speed does not pay.
        available: PEs.
    """

    def __init__(self, shapes: GraphShapes, start: int, available: float) -> None:
        self._shapes = shapes
        self._start = start
        self._available = available
        self._found: dict[int, float] = {}

    def best(self) -> _Best | None:
        """The fill of the shortest interval, None where the kernels do not fit at any."""
        best: int | None = None
        tried = range(0, _EMPTIEST + 1, _STRIDES[0])
        for stride, shorter in zip(_STRIDES, (*_STRIDES[1:], 0), strict=True):
            for exponent in tried:
                bound = math.inf if best is None else self._interval(best)
                if self._start / _fill_of(exponent) >= bound:
                    break
                if self._interval(exponent) < bound:
                    best = exponent
            if best is None or not shorter:
                break
            tried = range(max(0, best - stride + shorter), min(_EMPTIEST, best + stride), shorter)
        return None if best is None else _Best(_fill_of(best), self._interval(best))

    def _interval(self, exponent: int) -> float:
        """Cycles between samples at a fill; infinite where the kernels do not fit."""
        if exponent not in self._found:
            self._found[exponent] = self._shortest(_fill_of(exponent))
        return self._found[exponent]

    def _shortest(self, fill: float) -> float:
        shapes = self._shapes.at(fill)
        if shapes is None:
            return math.inf
        targets = targets_from(shapes, max(self._start, *(int(kernel.cycles[0]) for kernel in shapes)))
        fitting = areas(shapes, targets) <= self._available
        return float(targets[np.argmax(fitting)]) / fill if fitting.any() else math.inf


def _fill_of(exponent: int) -> float:
    """The fill of an exponent."""
    return _STEP**exponent


def fills(shapes: GraphShapes, start: int, available: int) -> Iterator[float]:
    """Fills to pack at, best first; none where the kernels do not fit at any.

    Kernels take more than `MOST_OF_FABRIC` only where that speeds the pipeline by more than `AREA_PER_SPEED`
    for the area. The fills of smaller shares follow, for kernels that would fit by their area but do not
    pack.

    Args:
        shapes: of all kernels.
        start: cycles below which speed does not pay.
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
