"""A graph of the contest as a problem of the placement engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cgc.contest.curves import KernelCurves
from cgc.contest.model import ContestGraph
from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.problem import Floorplan, Problem, Weights
from cgc.placement.engine.tree import Node

TARGET_STEP = 0.0005
"""Targets are tried in steps of this share; all are powers of it, so that many are tried again."""

_MOST_STEPS_UP = 80
_MOST_WORSE = 4


class ContestProblem(Problem):
    """A graph with its rectangles; adapters are left out.

    Args:
        graph: the graph.
        kernel_curves: rectangles of each kernel.
    """

    def __init__(self, graph: ContestGraph, kernel_curves: Sequence[KernelCurves]) -> None:
        edges = [(edge.source, edge.target) for edge in graph.edges]
        super().__init__(
            graph.width, graph.height, kernel_curves, edges, Weights(graph.wdeltat, graph.wlength)
        )
        self.graph = graph
        self.kernel_curves = list(kernel_curves)

    def least_objective(self, target: float) -> float:
        """A bound of the objective of all floorplans at a target."""
        sides = [curve.least_side(target) for curve in self.kernel_curves]
        wires = sum(sides[source] + sides[sink] for source, sink in self.edges) / 2
        return self.weights.time * target + self.weights.wires * wires

    def realised(
        self, tree: Node, target: float, limit: float = math.inf, stop: Stop = lambda: False
    ) -> Floorplan | None:
        """A tree at the best target near the given one.

        Args:
            tree: the cuts.
            target: where to start.
            limit: an objective that must be beaten.
            stop: whether time is up.

        Returns:
            None where nothing that fits can be better than the limit.
        """
        found = self.floorplan(tree, target)
        steps = 0
        while found is None:
            target = step(target, 1 + 2 * TARGET_STEP)
            steps += 1
            if steps > _MOST_STEPS_UP or self.weights.time * target >= limit or stop():
                return None
            found = self.floorplan(tree, target)
        best, failures = found, 0
        while failures < _MOST_WORSE and not stop():
            target = step(target, 1 - TARGET_STEP)
            found = self.floorplan(tree, target)
            if found is None:
                break
            better = found.objective < best.objective
            best, failures = (found, 0) if better else (best, failures + 1)
        return best if best.objective < limit else None


def step(target: float, factor: float = 1.0) -> float:
    """The target of the grid nearest to `factor` times a target."""
    return float((1 + TARGET_STEP) ** round(math.log(target * factor) / math.log1p(TARGET_STEP)))
