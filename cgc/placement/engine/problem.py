"""Evaluation of slicing floorplans: feasibility at a target time, and wire length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cgc.placement.engine.tree import Box, Ints, Node, Shapes

Edges = Sequence[tuple[int, int]]
"""Pairs of kernel indices, source first; a pair may occur more than once."""

_MAX_CACHED_TARGETS = 400
_MIN_STRETCH, _MAX_STRETCH = 0.98, 1.3
# Below this stretch, a tree leaves enough of the fabric free to compare boxes.
_MAX_ROOMY_STRETCH = 0.9
# Boxes to compare between the highest and the widest one.
_BOXES_BETWEEN = 2


class Curves(Protocol):
    """The shape curves of a kernel by target time."""

    def heights(self, target: float) -> Ints:
        """Return the least extent in one direction by the extent in the other, 0 .. the fabric's longer side.

        Kernels may be rotated by 90 degrees, so one curve serves both directions. Kernels with equal curves
        return the same array.
        """


@dataclass(frozen=True)
class Floorplan:
    """A tree that fits at a target.

    Attributes:
        tree: the cuts.
        target: time that every kernel meets.
        box: the box that the tree divides, at the low corner of the fabric.
        objective: value for the target as the time, with every kernel centered in its piece.
    """

    tree: Node
    target: float
    box: Box
    objective: float


@dataclass(frozen=True)
class Weights:
    """Weights of the objective `time * target + wires * wire length`, which is minimized."""

    time: float
    wires: float


class Problem:
    """Kernels, their wires and a fabric in the form that the search needs.

    Args:
        width: extent of the fabric in x, in PEs.
        height: extent of the fabric in y, in PEs.
        curves: shape curves of each kernel.
        edges: wires between kernels, all of equal weight.
        weights: weights of the objective.

    Attributes:
        neighbors: indices of the kernels at the other end of each kernel's edges.
    """

    def __init__(
        self, width: int, height: int, curves: Sequence[Curves], edges: Edges, weights: Weights
    ) -> None:
        self.width = width
        self.height = height
        self.weights = weights
        self.curves = list(curves)
        self.edges = [edge for edge in edges if edge[0] != edge[1]]
        self.neighbors: list[list[int]] = [[] for _ in curves]
        for source, target in self.edges:
            self.neighbors[source].append(target)
            self.neighbors[target].append(source)
        pairs = [(min(edge), max(edge)) for edge in self.edges]
        ends, counts = np.unique(np.array(pairs, np.int64).reshape(-1, 2), axis=0, return_counts=True)
        self._sources: Ints = ends[:, 0].copy()
        self._sinks: Ints = ends[:, 1].copy()
        self._counts: Ints = counts
        self._shapes: dict[float, Shapes] = {}

    def shapes(self, target: float) -> Shapes:
        """Return the shapes of all kernels at a target, cached for recent targets."""
        found = self._shapes.get(target)
        if found is None:
            if len(self._shapes) >= _MAX_CACHED_TARGETS:
                del self._shapes[next(iter(self._shapes))]
            found = self._shapes[target] = Shapes(target, [curve.heights(target) for curve in self.curves])
        return found

    def stretch(self, tree: Node, shapes: Shapes) -> tuple[float, Box]:
        """Return the extent of a tree relative to the fabric, in the better direction, and its box."""
        heights, widths = tree.curves(shapes)
        height, width = int(heights[self.width]), int(widths[self.height])
        upright, across = height / self.height, width / self.width
        if upright <= across:
            return upright, Box(0, 0, self.width, max(1, height))
        return across, Box(0, 0, max(1, width), self.height)

    def estimate(self, tree: Node, target: float, steepness: float) -> float:
        """Estimate the objective at the target at which a tree would just fit.

        The search compares trees by it, since it also ranks trees that do not fit.

        Args:
            tree: the cuts.
            target: the time at which the extent is measured.
            steepness: percent of time per percent of missing length; 1 if sizes are proportional to speed,
                more if they change in steps.
        """
        shapes = self.shapes(target)
        ratio, box = self.stretch(tree, shapes)
        if ratio > _MAX_STRETCH:
            return math.inf
        # There is a lower limit, since a tree much smaller than the fabric gains no more speed: something
        # else limits it, or wires have more weight.
        time = target * max(ratio**steepness if ratio > 1 else ratio, _MIN_STRETCH)
        return self.weights.time * time + self.weights.wires * self._shortest(tree, box, ratio, shapes)[0]

    def floorplan(self, tree: Node, target: float) -> Floorplan | None:
        """Evaluate a tree at a target; None if it does not fit."""
        shapes = self.shapes(target)
        ratio, box = self.stretch(tree, shapes)
        if ratio > 1:
            return None
        wires, box = self._shortest(tree, box, ratio, shapes)
        return Floorplan(tree, target, box, self.weights.time * target + self.weights.wires * wires)

    def _shortest(self, tree: Node, box: Box, ratio: float, shapes: Shapes) -> tuple[float, Box]:
        """Return the box with the least wire length, and this length; 0 if wires have no weight.

        If little of the fabric is free, this is the given box.
        """
        if not self.weights.wires:
            return 0.0, box
        best = self._wire_length(np.array(tree.centers(box, shapes))), box
        if ratio < _MAX_ROOMY_STRETCH:
            for other in self._roomy_boxes(tree, shapes):
                if other != box:
                    length = self._wire_length(np.array(tree.centers(other, shapes)))
                    best = min(best, (length, other))
        return best

    def _roomy_boxes(self, tree: Node, shapes: Shapes) -> Iterator[Box]:
        """Yield boxes inside the fabric, from the highest to the widest."""
        heights, widths = tree.curves(shapes)
        min_width, min_height = int(widths[self.height]), int(heights[self.width])
        if min_width > self.width or min_height > self.height:
            return
        for width in np.linspace(max(1, min_width), self.width, _BOXES_BETWEEN + 2).round().astype(int):
            yield Box(0, 0, int(width), max(1, int(heights[width])))

    def pieces(self, plan: Floorplan) -> list[Box]:
        """Return the piece of every kernel, by index."""
        return [Box(*piece[1:]) for piece in sorted(plan.tree.pieces(plan.box, self.shapes(plan.target)))]

    def wires(self, centers: NDArray[np.float64]) -> float:
        """Return the sum of the L1 distances along all edges; `centers` is kernels x 2."""
        return self._wire_length(centers.T)

    def _wire_length(self, centers: NDArray[np.float64]) -> float:
        """Return the wire length for `centers` of 2 x kernels."""
        x, y = np.abs(centers[:, self._sources] - centers[:, self._sinks])
        return float((x + y) @ self._counts)
