"""Evaluation of slicing floorplans: do the kernels fit at a target time, and how long are the wires."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cgc.placement.engine.tree import Box, Ints, Node, Shapes

Edges = Sequence[tuple[int, int]]
"""Pairs of indices of kernels, source first; the same pair may come more than once."""

_KEPT_TARGETS = 400
_SMALLEST_STRETCH, _LARGEST_STRETCH = 0.98, 1.3
_ROOMY = 0.9
_BOXES_BETWEEN = 2


class Curves(Protocol):
    """The rectangles of a kernel by the time that they take."""

    def heights(self, target: float) -> Ints:
        """Least extent in one direction by the extent in the other, 0 .. the longer side of the fabric.

        Kernels may be turned by 90 degrees, so that the curve holds for both directions. Kernels of equal
        curves return the same array.
        """


@dataclass(frozen=True)
class Floorplan:
    """A tree that fits at a target.

    Attributes:
        tree: the cuts.
        target: all kernels keep this time.
        box: what the tree is cut from; its low corner is that of the fabric.
        objective: with the target as the time and the middle of its piece as the centre of every kernel.
    """

    tree: Node
    target: float
    box: Box
    objective: float


@dataclass(frozen=True)
class Weights:
    """Of the objective `time * target + wires * length of the wires`; smaller is better."""

    time: float
    wires: float


class Problem:
    """Kernels, their wires and a fabric in the form that the search needs.

    Args:
        width: of the fabric.
        height: of the fabric.
        curves: rectangles of each kernel.
        edges: wires between kernels; all weigh the same.
        weights: of the objective.

    Attributes:
        neighbours: indices of the kernels at the other end of each kernel's edges.
    """

    def __init__(
        self, width: int, height: int, curves: Sequence[Curves], edges: Edges, weights: Weights
    ) -> None:
        self.width = width
        self.height = height
        self.weights = weights
        self.curves = list(curves)
        self.edges = [edge for edge in edges if edge[0] != edge[1]]
        self.neighbours: list[list[int]] = [[] for _ in curves]
        for source, target in self.edges:
            self.neighbours[source].append(target)
            self.neighbours[target].append(source)
        pairs = [(min(edge), max(edge)) for edge in self.edges]
        ends, counts = np.unique(np.array(pairs, np.int64).reshape(-1, 2), axis=0, return_counts=True)
        self._sources: Ints = ends[:, 0].copy()
        self._sinks: Ints = ends[:, 1].copy()
        self._counts: Ints = counts
        self._shapes: dict[float, Shapes] = {}

    def shapes(self, target: float) -> Shapes:
        """Rectangles of all kernels at a target; the last few targets are kept."""
        found = self._shapes.get(target)
        if found is None:
            if len(self._shapes) >= _KEPT_TARGETS:
                del self._shapes[next(iter(self._shapes))]
            found = self._shapes[target] = Shapes(target, [curve.heights(target) for curve in self.curves])
        return found

    def stretch(self, tree: Node, shapes: Shapes) -> tuple[float, Box]:
        """How long a tree is compared with the fabric, in the direction where that is less, and that box."""
        heights, widths = tree.curves(shapes)
        height, width = int(heights[self.width]), int(widths[self.height])
        upright, across = height / self.height, width / self.width
        if upright <= across:
            return upright, Box(0, 0, self.width, max(1, height))
        return across, Box(0, 0, max(1, width), self.height)

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
        return self.weights.time * time + self.weights.wires * self._shortest(tree, box, ratio, shapes)[0]

    def floorplan(self, tree: Node, target: float) -> Floorplan | None:
        """A tree at a target, None where it does not fit."""
        shapes = self.shapes(target)
        ratio, box = self.stretch(tree, shapes)
        if ratio > 1:
            return None
        wires, box = self._shortest(tree, box, ratio, shapes)
        return Floorplan(tree, target, box, self.weights.time * target + self.weights.wires * wires)

    def _shortest(self, tree: Node, box: Box, ratio: float, shapes: Shapes) -> tuple[float, Box]:
        """Length of the wires in the best of some boxes, or in the given one where little is free.

        Without weight it counts as 0.
        """
        if not self.weights.wires:
            return 0.0, box
        best = self._wires(tree, box, shapes), box
        if ratio < _ROOMY:
            for other in self._roomy_boxes(tree, shapes):
                if other != box:
                    best = min(best, (self._wires(tree, other, shapes), other))
        return best

    def _roomy_boxes(self, tree: Node, shapes: Shapes) -> Iterator[Box]:
        """Boxes inside the fabric: as wide as possible, as high as possible, and some in between."""
        heights, widths = tree.curves(shapes)
        narrow, low = int(widths[self.height]), int(heights[self.width])
        if narrow > self.width or low > self.height:
            return
        for width in np.linspace(max(1, narrow), self.width, _BOXES_BETWEEN + 2).round().astype(int):
            yield Box(0, 0, int(width), max(1, int(heights[width])))

    def pieces(self, plan: Floorplan) -> list[Box]:
        """The piece of every kernel."""
        return [Box(*piece[1:]) for piece in sorted(plan.tree.pieces(plan.box, self.shapes(plan.target)))]

    def _wires(self, tree: Node, box: Box, shapes: Shapes) -> float:
        return self._length(np.array(tree.centers(box, shapes)))

    def wires(self, centers: NDArray[np.float64]) -> float:
        """Sum over the edges of the L1 distance of the centres; `centers` is kernels x 2."""
        return self._length(centers.T)

    def _length(self, centers: NDArray[np.float64]) -> float:
        """`wires` of x and y of all centres, 2 x kernels."""
        x, y = np.abs(centers[:, self._sources] - centers[:, self._sinks])
        return float((x + y) @ self._counts)
