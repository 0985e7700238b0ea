"""The search for floorplan and execution arguments together, where adapters cost.

It starts from floorplans in which the kernels had any rectangles, or those of labels that agree with each
other at a target that looks good for time, wires and adapters together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cgc.contest.agreement import agreed, expected_cost, share_of_fabric
from cgc.contest.labels import Label, Menu, menu
from cgc.contest.matched import FIXED_TARGET, Joint, Matched
from cgc.contest.model import ContestGraph, Convolution
from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.order import flow_order, short_order
from cgc.placement.engine.starts import band_trees, column_trees
from cgc.placement.engine.tree import Node

_STEPS = (1.03, 1.08, 1.15, 1.2, 1.3, 1.4, 1.6, 2, 3, 5, 10, 15, 20, 30, 50, 100, 200, 500)
"""Targets for labels that agree, as multiples of the bound of the time."""

ROOMY = 0.7
"""Share of the fabric up to which rectangles of fixed sizes are placed without trouble."""

_HEIGHTS = (1.0, 1.1)
_ORDER_MOVES_PER_KERNEL = 60
_START_STEEPNESS = 8.0
_MOST_AGREEMENTS, _FINAL_ROUNDS, _ELITE = 3, 14, 3
_NEAR_TARGETS = (1.0, 0.97, 1.05)
_HEATS = (0.006, 0.002, 0.012)


class Start(NamedTuple):
    """Where to start from: the cuts, which need not fit, and the label of every kernel."""

    tree: Node
    labels: Sequence[Label]


class JointSearch:
    """One search.

    Args:
        graph: the graph; its adapters cost.
        time_bound: cycles that no solution can beat.
        seed: of the random changes.
        moves: changes of an annealing round.
        stop: whether time is up.
        found: is told of every solution that is better than all before.
    """

    def __init__(
        self,
        graph: ContestGraph,
        time_bound: float,
        seed: int,
        moves: int,
        stop: Stop,
        found: Callable[[Matched], None],
    ) -> None:
        self._graph = graph
        self._time_bound = time_bound
        self._rng = random.Random(seed)
        self._draws = np.random.default_rng(seed)
        self._moves = moves
        self._stop = stop
        self._found = found
        self._menus: dict[tuple[float, tuple[Convolution, ...]], Menu] = {}
        self._elite: list[Matched] = []

    def agreements(self, limit: float) -> list[list[Label]]:
        """Labels that agree with each other, at the targets that look best, easy ones to place first.

        Args:
            limit: an objective that must be beaten.
        """
        found = [labels for _, labels in sorted(self._agreed(limit), key=lambda pair: pair[0])]
        roomy = [labels for labels in found if share_of_fabric(self._graph, labels) < ROOMY]
        return [*roomy[:1], *(labels for labels in found if labels not in roomy[:1])][:_MOST_AGREEMENTS]

    def start(self, labels: Sequence[Label]) -> Start | None:
        """The most promising bands or columns of rectangles of fixed sizes; None where all are too large."""
        if self._stop():
            return None
        joint = Joint(self._graph, labels, self._menus_at(max(label.time for label in labels)), self._rng)
        problem = joint.problem
        sizes = [min(label.width, label.height) for label in labels]
        order = flow_order(len(labels), problem.edges)
        moves = _ORDER_MOVES_PER_KERNEL * len(labels)
        order = short_order(order, problem.edges, sizes, moves, self._rng, self._stop)
        trees: list[Node] = []
        for share in _HEIGHTS:
            height = int(self._graph.height * share)
            trees += band_trees(problem, order, FIXED_TARGET, self._graph.width, height)
        trees += column_trees(problem, order, FIXED_TARGET, self._stop)
        best = min(trees, key=lambda tree: joint.estimate(tree, _START_STEEPNESS), default=None)
        return None if best is None else Start(best, labels)

    def run(self, starts: Sequence[Start]) -> None:
        """Anneals from the starts, and again from the best of what came out."""
        for number, start in enumerate(starts):
            self._round(start, 1.0, number)
        for number in range(_FINAL_ROUNDS):
            if self._elite:
                best = self._elite[number % len(self._elite)]
                factor = _NEAR_TARGETS[number % len(_NEAR_TARGETS)]
                self._round(Start(best.tree, best.labels), factor, number)

    def _menus_at(self, target: float) -> list[Menu]:
        found = []
        for kernel in self._graph.kernels:
            key = (target, kernel.convolutions)
            if key not in self._menus:
                self._menus[key] = menu(kernel, self._graph, target)
            found.append(self._menus[key])
        return found

    def _agreed(self, limit: float) -> Iterator[tuple[float, list[Label]]]:
        """Labels that agree, with about what they cost, at all targets that may beat a limit."""
        for factor in _STEPS:
            target = factor * self._time_bound
            if self._stop() or self._graph.wdeltat * target >= limit:
                return
            menus = self._menus_at(target)
            if all(len(one) for one in menus):
                labels = agreed(self._graph, menus, target, self._draws, self._stop)
                cost = expected_cost(self._graph, labels)
                if cost < limit:
                    yield cost, labels

    def _round(self, start: Start, factor: float, number: int) -> None:
        if self._stop():
            return
        target = factor * max(label.time for label in start.labels)
        joint = Joint(self._graph, start.labels, self._menus_at(target), self._rng)
        plan = joint.anneal(start.tree, self._moves, _HEATS[number % len(_HEATS)], self._stop)
        if plan is None or any(plan.objective == other.objective for other in self._elite):
            return
        if not self._elite or plan.objective < self._elite[0].objective:
            self._found(plan)
        self._elite = sorted([*self._elite, plan], key=lambda other: other.objective)[:_ELITE]
