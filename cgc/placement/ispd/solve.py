"""The solver: starts along the data flow, annealing from the best of them, places from the best floorplan."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cgc.placement.ispd.anneal import Schedule, Stop, anneal
from cgc.placement.ispd.bounds import Bounds, bounds
from cgc.placement.ispd.curves import graph_curves
from cgc.placement.ispd.errors import ContestError
from cgc.placement.ispd.finish import solution_of
from cgc.placement.ispd.model import ContestGraph, Placed
from cgc.placement.ispd.order import flow_order, short_order
from cgc.placement.ispd.score import Score, score
from cgc.placement.ispd.search import Floorplan, Problem, realised
from cgc.placement.ispd.starts import column_trees, shelf_trees
from cgc.placement.ispd.tree import Node

MOVES_PER_ROUND = 8_000
"""Changes of an annealing round."""

_SEARCH_SHARE, _SEARCH_RESERVE_S = 0.93, 0.3
_SCAN_SHARE = 0.4
_COARSE_SCAN, _FINE_SCAN, _LARGEST_SPAN = 1.04, 1.008, 1e4
_HEAT_OF_ALL = 0.025
"""Heat of the annealing times the number of kernels, of which every change concerns a few."""

_STEEPNESSES = (5.0, 20.0, 1.5)
_NEAR_TARGETS = (1.0, 0.995, 0.985, 0.97)
_FINAL_ROUNDS = 20
_STARTS = 8
_MOST_FIRST_TARGETS = 200
_ELITE = 3


@dataclass(frozen=True)
class Result:
    """What the solver found.

    Attributes:
        solution: places of all kernels, legal.
        score: of the solution.
        bounds: what no solution can beat.
        seconds: that the search took.
        finished: whether the search came to its end, so that graph and seed alone determine the result.
    """

    solution: dict[str, Placed]
    score: Score
    bounds: Bounds
    seconds: float
    finished: bool


def solve(
    graph: ContestGraph,
    time_limit_s: float = 60.0,
    seed: int = 0,
    *,
    interrupted: Stop = lambda: False,
    moves_per_round: int = MOVES_PER_ROUND,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Solves a graph of the contest.

    Args:
        graph: the graph.
        time_limit_s: wall-clock seconds; the search ends earlier where it comes to its end. A first solution
            is looked for even when that takes longer.
        seed: of the random changes.
        interrupted: whether the caller wants the best solution so far.
        moves_per_round: changes of an annealing round; more take longer and find more.
        clock: seconds from any start.

    Raises:
        ContestError: the graph does not fit at any speed, or no way to pack it was found.
    """
    begin = clock()
    limit = begin + max(0.0, time_limit_s * _SEARCH_SHARE - _SEARCH_RESERVE_S)
    search = _Search(graph, seed, moves_per_round, lambda: interrupted() or clock() >= limit)
    scan_limit = begin + time_limit_s * _SCAN_SHARE
    plan = search.run(lambda: interrupted() or clock() >= scan_limit)
    late = begin + time_limit_s * (1 + _SEARCH_SHARE) / 2
    solution = solution_of(search.problem, plan, lambda: clock() >= late)
    found = score(graph, solution)
    if not found.legal:
        raise AssertionError(f"the solver made an illegal solution: {'; '.join(found.faults)}")
    return Result(solution, found, search.bounds, clock() - begin, search.finished)


class _Start(NamedTuple):
    """A tree, which need not fit, and what it promises; the number keeps the order strict."""

    estimate: float
    number: int
    tree: Node
    target: float


class _Search:
    def __init__(self, graph: ContestGraph, seed: int, moves: int, stop: Stop) -> None:
        self.graph = graph
        self.finished = False
        curves = graph_curves(graph.kernels, graph.width, graph.height, graph.memlimit)
        self.problem = Problem(graph, curves)
        self.bounds = bounds(graph, curves)
        self._rng = random.Random(seed)
        self._moves = moves
        self._stop = stop
        self._heat = _HEAT_OF_ALL / max(8, len(curves))
        self._plans: list[Floorplan] = []
        self._starts: list[_Start] = []

    def run(self, scan_stop: Stop) -> Floorplan:
        sizes = [curve.least_side(self.bounds.time) for curve in self.problem.curves]
        flow = flow_order(self.graph)
        short = short_order(flow, self.graph.edges, sizes, self._rng, self._stop)
        orders = [flow] if short == flow else [short, flow]
        self._first(orders[0])
        for order in orders:
            self._scan(order, scan_stop)
        scanned = not scan_stop()
        self._anneal_starts()
        self._anneal_best()
        self.finished = scanned and not self._stop()
        return self._plans[0]

    def _first(self, order: list[int]) -> None:
        """Any legal floorplan, soon."""
        target = self.problem.step(self.bounds.time)
        for _ in range(_MOST_FIRST_TARGETS):
            for make in (shelf_trees, column_trees):
                for tree in make(self.problem, order, target):
                    self._try(tree, target)
            if self._plans:
                return
            target = self.problem.step(target, 1.03 if target < 2 * self.bounds.time else 1.3)
        raise ContestError(
            f"no way to place all {len(self.graph.kernels)} kernels on {self.graph.width} x "
            f"{self.graph.height} tiles was found at any speed; split the graph or take a larger fabric"
        )

    def _try(self, tree: Node, target: float) -> None:
        self._keep(realised(self.problem, tree, target))
        estimate = self.problem.estimate(tree, target, _STEEPNESSES[0])
        if estimate < math.inf:
            self._starts.append(_Start(estimate, len(self._starts), tree, target))

    def _keep(self, plan: Floorplan | None) -> None:
        """Remembers a floorplan if it is one of the best."""
        if plan is not None and all(plan.objective != other.objective for other in self._plans):
            self._plans = sorted([*self._plans, plan], key=lambda other: other.objective)[:_ELITE]

    def _scan(self, order: list[int], stop: Stop) -> None:
        """Columns at all targets that can be good, first in long steps, then around the best of those."""
        for target in self._promising(self.bounds.time, _COARSE_SCAN, _LARGEST_SPAN, stop):
            self._scan_target(order, target, stop)
        middle = min(self._starts).target
        lowest = max(self.bounds.time, middle / _COARSE_SCAN)
        for target in self._promising(lowest, _FINE_SCAN, _COARSE_SCAN**2, stop):
            self._scan_target(order, target, stop)

    def _promising(self, lowest: float, step: float, span: float, stop: Stop) -> list[float]:
        """Targets from the lowest one up, the most promising first."""
        found = []
        target = lowest
        best = self._plans[0].objective
        while target <= span * lowest and self.graph.wdeltat * target < best and not stop():
            target = self.problem.step(target)
            found.append((self.problem.least_objective(target), target))
            target *= step
        return [target for _, target in sorted(found)]

    def _scan_target(self, order: list[int], target: float, stop: Stop) -> None:
        if not stop() and self.problem.least_objective(target) < self._plans[0].objective:
            for tree in column_trees(self.problem, order, target):
                self._try(tree, target)

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
            target = self.problem.step(plan.target, _NEAR_TARGETS[number % len(_NEAR_TARGETS)])
            heat = self._heat * (1.0 if number % 2 else 4.0)
            self._round(plan.tree, target, heat, _STEEPNESSES[number % len(_STEEPNESSES)])

    def _round(self, tree: Node, target: float, heat: float, steepness: float) -> None:
        if not self._stop():
            schedule = Schedule(self._moves, heat, steepness)
            self._keep(anneal(self.problem, tree, target, schedule, self._rng, self._stop))
