"""The search for a floorplan: starts along the data flow, and annealing from the best of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.ispd2020.bounds import Bounds
from benchmarks.ispd2020.curves import ContestProblem, KernelCurves, step
from benchmarks.ispd2020.format import ContestError
from benchmarks.ispd2020.model import ContestGraph
from cgc.placement.engine.anneal import Schedule, Stop, anneal
from cgc.placement.engine.packing import MAX_COLUMN_KERNELS
from cgc.placement.engine.problem import Floorplan
from cgc.placement.engine.starts import DENSE, band_trees, column_trees, fit_tight, flow_order, shorten_order
from cgc.placement.engine.tree import Node

_BAND_SCAN, _COLUMN_SCAN, _LARGEST_SPAN = (1.15, 1.05), (1.04, 1.008), 1e4
"""Steps between targets, coarse and fine, and the largest target over the smallest."""

_FIRST_STEP, _HOPEFUL = 1.6, 1.05
_HEAT_OF_ALL = 0.025
"""Heat of the annealing times the number of kernels, of which every change concerns a few."""

_STEEPNESSES = (5.0, 20.0, 1.5)
_NEAR_TARGETS = (1.0, 0.995, 0.985, 0.97)
_FINAL_ROUNDS = 20
_STARTS = 8
_FINE_FIRST_STEP, _COARSE_FIRST_STEP = 1.03, 1.15
_ROOMS = (1.08, 1.25)
"""Sizes of boxes for bands, as multiples of the least area of all kernels."""

_ORDER_MOVES_PER_KERNEL = 120
_ELITE = 3


class _Start(NamedTuple):
    """A tree, which need not fit, and its estimate; the number keeps the order strict."""

    estimate: float
    number: int
    tree: Node
    target: float


_Make = Callable[[list[int], float, Stop], Iterator[Node]]
"""From an order and a target to floorplans."""


def first_floorplan(
    problem: ContestProblem,
    time_bound: float,
    factor: float = _COARSE_FIRST_STEP,
    stop: Stop = lambda: False,
) -> Floorplan | None:
    """The first bands along the data flow that fit, at rising targets; None where none do.

    Args:
        problem: the kernels.
        time_bound: where to start, cycles.
        factor: between targets, where these are not far from the bound.
        stop: whether time is up.
    """
    order = flow_order(len(problem.kernel_curves), problem.edges)
    target = step(time_bound, factor)
    while target < _LARGEST_SPAN * time_bound and not stop():
        for tree in band_trees(problem, order, target, problem.width, problem.height, DENSE):
            plan = problem.floorplan(tree, target)
            if plan is not None:
                return plan
        target = step(target, factor if target < 2 * time_bound else _FIRST_STEP)
    return None


class Search:
    """One search.

    Args:
        graph: the graph.
        curves: rectangles to use, by kernel.
        limits: bounds of the graph with these rectangles.
        seed: of the random changes.
        moves: changes of an annealing round.
        stop: whether time is up.
        patient: whether a first floorplan is looked for even when time is up.

    Attributes:
        problem: what is searched.
        finished: whether the search came to its end.
    """

    def __init__(
        self,
        graph: ContestGraph,
        curves: Sequence[KernelCurves],
        limits: Bounds,
        seed: int,
        moves: int,
        stop: Stop,
        patient: bool = True,
    ) -> None:
        self.graph = graph
        self.finished = False
        self.problem = ContestProblem(graph, curves)
        self.bounds = limits
        self._rng = random.Random(seed)
        self._moves = moves
        self._stop = stop
        self._first_stop: Stop = (lambda: False) if patient else stop
        self._heat = _HEAT_OF_ALL / max(8, len(curves))
        self._plans: list[Floorplan] = []
        self._starts: list[_Start] = []
        self._report: Callable[[Floorplan], None] = lambda plan: None

    def run(
        self, scan_stop: Stop, report: Callable[[Floorplan], None] = lambda plan: None
    ) -> list[Floorplan]:
        """The best floorplans that were found, the best one first.

        Args:
            scan_stop: whether the time for starts is up.
            report: is told of every floorplan that is better than all before.

        Raises:
            ContestError: no way to pack the kernels was found.
        """
        self._report = report
        problem = self.problem
        sizes = [curve.least_side(self.bounds.time) for curve in problem.kernel_curves]
        flow = flow_order(len(sizes), problem.edges)
        moves = _ORDER_MOVES_PER_KERNEL * len(sizes)
        self._first(flow)
        short = shorten_order(flow, problem.edges, sizes, moves, self._rng, scan_stop)
        orders = [flow] if short == flow else [short, flow]
        for order in orders:
            self._scan(order, self._bands, _BAND_SCAN, scan_stop)
        if len(flow) <= MAX_COLUMN_KERNELS:
            for order in orders:
                self._scan(order, self._columns, _COLUMN_SCAN, scan_stop)
        scanned = not scan_stop()
        self._anneal_starts()
        self._anneal_best()
        self.finished = scanned and not self._stop()
        return self._plans

    def _first(self, order: list[int]) -> None:
        """Any legal floorplan, soon: at a target that suits the wires, or else at the lowest that works."""
        for target in self._promising(self.bounds.time, _FIRST_STEP, _LARGEST_SPAN, self._stop)[:1]:
            self._scan_target(order, self._bands, target, self._stop)
        if self._plans:
            return
        plan = first_floorplan(self.problem, self.bounds.time, _FINE_FIRST_STEP, self._first_stop)
        if plan is None:
            target = self.bounds.time * _LARGEST_SPAN
            plan = fit_tight(self.problem, target, self._moves, self._rng, self._first_stop)
        if plan is not None:
            self._keep(plan)
            self._starts.append(_Start(plan.objective, 0, plan.tree, plan.target))
            return
        raise ContestError(
            f"no way to place all {len(self.graph.kernels)} kernels on {self.graph.width} x "
            f"{self.graph.height} tiles was found at any speed; split the graph or take a larger fabric"
        )

    def _try(self, tree: Node, target: float) -> None:
        estimate = self.problem.estimate(tree, target, _STEEPNESSES[0])
        if estimate < math.inf:
            self._starts.append(_Start(estimate, len(self._starts), tree, target))
        if not self._plans or estimate < _HOPEFUL * self._plans[0].objective:
            self._keep(self.problem.realized(tree, target, stop=self._late))

    def _late(self) -> bool:
        """Return whether time is up, also for a first floorplan."""
        return self._stop() if self._plans else self._first_stop()

    def _keep(self, plan: Floorplan | None) -> None:
        """Remembers a floorplan if it is one of the best."""
        if plan is not None and all(plan.objective != other.objective for other in self._plans):
            if not self._plans or plan.objective < self._plans[0].objective:
                self._report(plan)
            self._plans = sorted([*self._plans, plan], key=lambda other: other.objective)[:_ELITE]

    def _scan(self, order: list[int], make: _Make, steps: tuple[float, float], stop: Stop) -> None:
        """Floorplans at all targets that can be good, first in long steps, then around the best of those."""
        coarse, fine = steps
        for target in self._promising(self.bounds.time, coarse, _LARGEST_SPAN, stop):
            self._scan_target(order, make, target, stop)
        lowest = max(self.bounds.time, min(self._starts).target / coarse)
        for target in self._promising(lowest, fine, coarse**2, stop):
            self._scan_target(order, make, target, stop)

    def _promising(self, lowest: float, factor: float, span: float, stop: Stop) -> list[float]:
        """Targets from the lowest one up, the most promising first."""
        found = []
        target = lowest
        best = self._plans[0].objective if self._plans else math.inf
        while target <= span * lowest and self.graph.wdeltat * target < best and not stop():
            target = step(target)
            found.append((self.problem.least_objective(target), target))
            target *= factor
        return [target for _, target in sorted(found)]

    def _scan_target(self, order: list[int], make: _Make, target: float, stop: Stop) -> None:
        best = self._plans[0].objective if self._plans else math.inf
        if not stop() and self.problem.least_objective(target) < best:
            for tree in make(order, target, stop):
                self._try(tree, target)
                if stop():
                    break

    def _columns(self, order: list[int], target: float, stop: Stop) -> Iterator[Node]:
        """The columns of the shortest wires."""
        return column_trees(self.problem, order, target, stop)

    def _bands(self, order: list[int], target: float, _: Stop) -> Iterator[Node]:
        """Bands in boxes of some sizes."""
        width, height = self.graph.width, self.graph.height
        area = sum(curve.min_area(target) for curve in self.problem.kernel_curves)
        for room in _ROOMS:
            share = math.sqrt(min(1.0, room * area / (width * height)))
            yield from band_trees(self.problem, order, target, int(width * share), int(height * share))

    def _anneal_starts(self) -> None:
        """A round from each of the best starts, for every steepness."""
        starts = sorted(self._starts)[:_STARTS]
        for turn, steepness in enumerate(_STEEPNESSES):
            for number, start in enumerate(starts):
                heat = self._heat * (4.0 if (turn + number) % 2 else 1.0)
                self._round(start.tree, start.target, heat, steepness)

    def _anneal_best(self) -> None:
        """Rounds from the best floorplans, at targets around their own."""
        for number in range(_FINAL_ROUNDS):
            plan = self._plans[number % len(self._plans)]
            target = step(plan.target, _NEAR_TARGETS[number % len(_NEAR_TARGETS)])
            heat = self._heat * (1.0 if number % 2 else 4.0)
            self._round(plan.tree, target, heat, _STEEPNESSES[number % len(_STEEPNESSES)])

    def _round(self, tree: Node, target: float, heat: float, steepness: float) -> None:
        if not self._stop():
            schedule = Schedule(self._moves, heat, steepness)

            def realize(changed: Node, limit: float) -> Floorplan | None:
                return self.problem.realized(changed, target, limit, self._late)

            self._keep(anneal(self.problem, tree, target, schedule, self._rng, realize, self._stop))
