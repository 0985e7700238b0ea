"""Evaluation of slicing floorplans of one graph, for the contest's objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cgc.placement.ispd.curves import KernelCurves
from cgc.placement.ispd.model import ContestGraph
from cgc.placement.ispd.tree import Box, Node, Shapes

TARGET_STEP = 0.0005
"""Targets are tried in steps of this share; all are powers of it, so that many are tried again."""

_KEPT_TARGETS = 400
_MOST_STEPS_UP = 80
_SMALLEST_STRETCH, _LARGEST_STRETCH = 0.98, 1.3


@dataclass(frozen=True)
class Floorplan:
    """A tree that fits at a target.

    Attributes:
        tree: the cuts.
        target: all kernels keep this time.
        objective: with the target as the time and the middle of its piece as the centre of every kernel,
            without adapters.
    """

    tree: Node
    target: float
    objective: float


class Problem:
    """A graph in the form that the search needs.

    Attributes:
        graph: the graph.
        curves: rectangles of each kernel.
        neighbours: indices of the kernels at the other end of each kernel's edges.
    """

    def __init__(self, graph: ContestGraph, curves: Sequence[KernelCurves]) -> None:
        self.graph = graph
        self.curves = list(curves)
        self.neighbours: list[list[int]] = [[] for _ in graph.kernels]
        for edge in graph.edges:
            self.neighbours[edge.source].append(edge.target)
            self.neighbours[edge.target].append(edge.source)
        self._sources = np.array([edge.source for edge in graph.edges], dtype=np.int64)
        self._targets = np.array([edge.target for edge in graph.edges], dtype=np.int64)
        self._shapes: dict[float, Shapes] = {}

    @staticmethod
    def step(target: float, factor: float = 1.0) -> float:
        """The target of the grid nearest to `factor` times a target."""
        return (1 + TARGET_STEP) ** round(math.log(target * factor) / math.log1p(TARGET_STEP))

    def least_objective(self, target: float) -> float:
        """A bound of the objective of all floorplans at a target."""
        sides = [curve.least_side(target) for curve in self.curves]
        wires = sum(sides[edge.source] + sides[edge.target] for edge in self.graph.edges) / 2
        return self.graph.wdeltat * target + self.graph.wlength * wires

    def shapes(self, target: float) -> Shapes:
        """Rectangles of all kernels at a target; the last few targets are kept."""
        found = self._shapes.get(target)
        if found is None:
            if len(self._shapes) >= _KEPT_TARGETS:
                del self._shapes[next(iter(self._shapes))]
            found = self._shapes[target] = Shapes(target, [curve.at(target).heights for curve in self.curves])
        return found

    def stretch(self, tree: Node, shapes: Shapes) -> tuple[float, Box]:
        """How long a tree is compared with the fabric, in the direction where that is less, and that box."""
        heights, widths = tree.curves(shapes)
        height, width = int(heights[self.graph.width]), int(widths[self.graph.height])
        upright, across = height / self.graph.height, width / self.graph.width
        if upright <= across:
            return upright, Box(0, 0, self.graph.width, max(1, height))
        return across, Box(0, 0, max(1, width), self.graph.height)

    def estimate(self, tree: Node, target: float, steepness: float) -> float:
        """The objective at the target at which a tree would just fit, the measure of the search.

        It also tells bad trees from worse ones. What is much smaller than the fabric does not promise more
        speed: then something else limits it, or wires weigh more.

        Args:
            tree: the cuts.
            target: the time.
            steepness: percent of time for a percent of length that is missing; 1 where sizes are proportional
                to speed, more where they come in steps.
        """
        shapes = self.shapes(target)
        ratio, box = self.stretch(tree, shapes)
        if ratio > _LARGEST_STRETCH:
            return math.inf
        time = target * max(ratio**steepness if ratio > 1 else ratio, _SMALLEST_STRETCH)
        return self.graph.wdeltat * time + self.graph.wlength * self._wires(tree, box, shapes)

    def floorplan(self, tree: Node, target: float) -> Floorplan | None:
        """A tree at a target, None where it does not fit."""
        shapes = self.shapes(target)
        ratio, box = self.stretch(tree, shapes)
        if ratio > 1:
            return None
        wires = self._wires(tree, box, shapes)
        return Floorplan(tree, target, self.graph.wdeltat * target + self.graph.wlength * wires)

    def pieces(self, plan: Floorplan) -> list[Box]:
        """The piece of every kernel."""
        shapes = self.shapes(plan.target)
        found = dict(plan.tree.boxes(self.stretch(plan.tree, shapes)[1], shapes))
        return [found[index] for index in range(len(self.curves))]

    def _wires(self, tree: Node, box: Box, shapes: Shapes) -> float:
        centers = np.empty((len(self.curves), 2))
        for kernel, piece in tree.boxes(box, shapes):
            centers[kernel] = piece.x + piece.width / 2, piece.y + piece.height / 2
        return self.wires(centers)

    def wires(self, centers: NDArray[np.float64]) -> float:
        """Sum over the edges of the L1 distance of the centres; `centers` is kernels x 2."""
        return float(np.abs(centers[self._sources] - centers[self._targets]).sum())


def realised(problem: Problem, tree: Node, target: float, limit: float = math.inf) -> Floorplan | None:
    """A tree at the best target near the given one.

    Args:
        problem: the graph.
        tree: the cuts.
        target: where to start.
        limit: an objective that must be beaten.

    Returns:
        None where nothing that fits can be better than the limit.
    """
    found = problem.floorplan(tree, target)
    steps = 0
    while found is None:
        target = problem.step(target, 1 + 2 * TARGET_STEP)
        steps += 1
        if steps > _MOST_STEPS_UP or problem.graph.wdeltat * target >= limit:
            return None
        found = problem.floorplan(tree, target)
    best, failures = found, 0
    while failures < 4:
        target = problem.step(target, 1 - TARGET_STEP)
        found = problem.floorplan(tree, target)
        if found is None:
            break
        better = found.objective < best.objective
        best, failures = (found, 0) if better else (best, failures + 1)
    return best if best.objective < limit else None
