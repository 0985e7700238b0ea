"""Annealing of floorplan and execution arguments together, where adapters cost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.ispd2020.labels import (
    Label,
    Menu,
    adapters,
    agreed,
    expected_cost,
    links,
    menu,
    mismatches,
    own_cost,
    share_of_fabric,
)
from benchmarks.ispd2020.model import ContestGraph, Convolution
from cgc.placement.engine.anneal import MOVES, Stop, replace_leaf
from cgc.placement.engine.problem import Problem, Weights
from cgc.placement.engine.starts import band_trees, column_trees, flow_order, shorten_order
from cgc.placement.engine.tree import NO_EXTENT, Box, Ints, Node

FIXED_TARGET = 1.0
"""Stands for every time, as all rectangles are fixed."""

_LABEL_SHARE = 0.35
_LABEL_HEAT = 0.7
_STEEPNESS = (4.0, 20.0)
"""How dear it is not to fit, at the beginning and at the end."""


@dataclass(frozen=True)
class Matched:
    """A floorplan with the label of every kernel.

    Attributes:
        tree: the cuts.
        box: what they are made in.
        labels: by kernel.
        objective: adapters included, the centers in the middle of the pieces.
    """

    tree: Node
    box: Box
    labels: tuple[Label, ...]
    objective: float


class _Rectangle:
    """A rectangle, turned or not, as a curve of the placement engine."""

    def __init__(self, curve: Ints) -> None:
        self._curve = curve

    def heights(self, target: float) -> Ints:
        return self._curve


def _curve(graph: ContestGraph, label: Label) -> Ints:
    """The least extent of a label's rectangle, turned or not, in one direction by that in the other."""
    short, long = sorted((label.width, label.height))
    curve = np.full(max(graph.width, graph.height) + 1, NO_EXTENT, dtype=np.int64)
    curve[short:] = long
    curve[long:] = short
    return curve


def joint_problem(graph: ContestGraph, labels: Sequence[Label]) -> Problem:
    """A problem of the placement engine with the rectangles of labels; its one target is `FIXED_TARGET`."""
    edges = [(edge.source, edge.target) for edge in graph.edges]
    curves = [_Rectangle(_curve(graph, label)) for label in labels]
    return Problem(graph.width, graph.height, curves, edges, Weights(1.0, graph.wlength))


class Joint:
    """Kernels whose rectangles follow from labels that change.

    A tree remembers the curves of its pieces, so where a label changes the tree gets new nodes from that
    kernel up, and where the change is rejected the old tree still has the old curves.

    Args:
        graph: the graph.
        labels: to begin with, by kernel.
        menus: labels to change to, by kernel.
        rng: source of the changes.

    Attributes:
        problem: the rectangles of the present labels.
        labels: the present ones.
    """

    def __init__(
        self, graph: ContestGraph, labels: Sequence[Label], menus: Sequence[Menu], rng: random.Random
    ) -> None:
        self._graph = graph
        self._menus = menus
        self._rng = rng
        self._draws = np.random.default_rng(rng.getrandbits(32))
        self._links = links(graph)
        self.labels = list(labels)
        self.problem = joint_problem(graph, labels)
        self._shapes = self.problem.shapes(FIXED_TARGET)
        time = max(label.time for label in labels)
        self._costs = [
            own_cost(graph, menu, len(near), time) for menu, near in zip(menus, self._links, strict=True)
        ]

    def anneal(self, tree: Node, moves: int, heat: float, stop: Stop) -> Matched | None:
        """Changes cuts and labels at random; better ones, and sometimes worse ones, are changed further.

        Args:
            tree: where to start; it need not fit.
            moves: how many changes to try.
            heat: rise of the objective, as a share, that is accepted in 37 % of the cases at the beginning.
            stop: whether time is up.

        Returns:
            The best floorplan seen that fits.
        """
        kinds, shares = [move for move, _ in MOVES], [share for _, share in MOVES]
        tree = _copy(tree)
        steepness = _STEEPNESS[0]
        current = self.estimate(tree, steepness)
        best = self._fitting(tree, math.inf)
        if math.isinf(current):
            return best
        scale = heat * max(current, 1.0)
        for number in range(moves):
            if stop():
                break
            progress = number / moves
            if number % 256 == 0:
                steepness = _STEEPNESS[0] * (_STEEPNESS[1] / _STEEPNESS[0]) ** progress
                current = self.estimate(tree, steepness)
            before: list[tuple[int, Label]] = []
            if self._rng.random() < _LABEL_SHARE:
                changed, before = self._relabel(tree, 0.05**progress)
            else:
                changed = self._rng.choices(kinds, shares)[0](tree, self._rng, self.problem.neighbors)
            if changed is None:
                continue
            estimate = self.estimate(changed, steepness)
            rise = estimate - current
            if rise > 0 and self._rng.random() >= math.exp(-rise / (scale * 0.05**progress)):
                for index, label in before:
                    self._set(index, label)
                continue
            tree, current = changed, estimate
            if best is None or estimate < best.objective * 1.02:
                best = self._fitting(tree, best.objective if best else math.inf) or best
        return best

    def _relabel(self, tree: Node, cooling: float) -> tuple[Node | None, list[tuple[int, Label]]]:
        """A tree with new labels of a few neighbors, and the labels before; they are set already."""
        rng = self._rng
        index = rng.randrange(len(self.labels))
        before: list[tuple[int, Label]] = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
            heat = self._graph.wadapter * max(0.05, cooling) * rng.random() * _LABEL_HEAT
            label = self._draw(index, heat)
            if label is not None and label != self.labels[index]:
                before.append((index, self.labels[index]))
                self._set(index, label)
                tree = replace_leaf(tree, index, _fresh)
            near = self.problem.neighbors[index]
            if not near:
                break
            index = rng.choice(near)
        return (tree if before else None), before[::-1]

    def _draw(self, index: int, heat: float) -> Label | None:
        """A label that suits those of the neighbors."""
        menu = self._menus[index]
        if not len(menu):
            return None
        graph = self._graph
        time = max(label.time for label in self.labels)
        total = self._costs[index] + graph.wadapter * adapters(menu, self._links[index], self.labels)
        total += graph.wdeltat * np.maximum(0.0, menu.time - time)
        total += heat * self._draws.gumbel(size=len(total))
        return menu[int(np.argmin(total))]

    def _set(self, index: int, label: Label) -> None:
        self.labels[index] = label
        self._shapes.heights[index] = _curve(self._graph, label)

    def _fixed_cost(self) -> float:
        """Cost of the adapters; sets the weight of the time to that of the labels."""
        graph = self._graph
        time = max(label.time for label in self.labels)
        self.problem.weights = Weights(graph.wdeltat * time, graph.wlength)
        return graph.wadapter * mismatches(graph, self.labels)

    def estimate(self, tree: Node, steepness: float) -> float:
        """The objective at which a tree would about fit, see `Problem.estimate`."""
        fixed = self._fixed_cost()
        return fixed + self.problem.estimate(tree, FIXED_TARGET, steepness)

    def _fitting(self, tree: Node, limit: float) -> Matched | None:
        fixed = self._fixed_cost()
        plan = self.problem.floorplan(tree, FIXED_TARGET)
        if plan is None or fixed + plan.objective >= limit:
            return None
        return Matched(tree, plan.box, tuple(self.labels), fixed + plan.objective)


def _fresh(leaf: Node) -> Node:
    return Node(leaf.leaf)


def _copy(node: Node) -> Node:
    """A tree that remembers nothing."""
    return Node(node.leaf, node.stacked, tuple(_copy(child) for child in node.children))


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
    """The start of the search: cuts, which need not fit, and the label of every kernel."""

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
        found = [labels for _, labels in sorted(self._agree(limit), key=lambda pair: pair[0])]
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
        order = shorten_order(order, problem.edges, sizes, moves, self._rng, self._stop)
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

    def _agree(self, limit: float) -> Iterator[tuple[float, list[Label]]]:
        """Yield labels that agree, with their estimated costs, at all targets that may beat a limit."""
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
