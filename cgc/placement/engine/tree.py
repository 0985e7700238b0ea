"""Slicing floorplans: recursive straight cuts of a fabric, with a kernel in every piece.

A slicing tree describes the cuts. Every node computes, for one target, its shape curves: the least height at
every width and the least width at every height, each from the curves of its children in one vector operation.
The shapes of all kernels are thereby chosen together and exactly, and a tree either fits the fabric or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER = 1 << 24  # extent of a rectangle that does not exist; sums of thousands of them fit in 64 bits


class Box(NamedTuple):
    """The piece of a kernel: x .. x + width, y .. y + height."""

    x: int
    y: int
    width: int
    height: int


Piece = tuple[int, int, int, int, int]
"""Kernel index, x, y, width and height."""


class Node:
    """A piece of the fabric; immutable except for the curves, which are cached for one target.

    Attributes:
        leaf: index of the kernel, or -1.
        stacked: True if the children follow each other in y, False if in x.
        children: at least two nodes, or none for a leaf.
        members: bit set of the kernels in this piece.
    """

    __slots__ = ("_heights", "_target", "_widths", "children", "leaf", "members", "stacked")

    def __init__(self, leaf: int, stacked: bool = False, children: tuple[Node, ...] = ()) -> None:
        self.leaf = leaf
        self.stacked = stacked
        self.children = children
        self.members = 1 << leaf if leaf >= 0 else 0
        for child in children:
            self.members |= child.members
        self._target = 0.0
        self._heights: Ints = np.empty(0, np.int64)
        self._widths: Ints = self._heights

    def curves(self, shapes: Shapes) -> tuple[Ints, Ints]:
        """Return the least height by width, and the least width by height."""
        target = shapes.target
        if self._target != target:
            if self.leaf >= 0:
                self._heights = self._widths = shapes.heights[self.leaf]
            else:
                for child in self.children:
                    if child._target != target:
                        child.curves(shapes)
                if self.stacked:
                    self._heights = np.add.reduce([child._heights for child in self.children])
                    self._widths = shapes.inverse(self._heights)
                else:
                    self._widths = np.add.reduce([child._widths for child in self.children])
                    self._heights = shapes.inverse(self._widths)
            self._target = target
        return self._heights, self._widths

    def pieces(self, box: Box, shapes: Shapes) -> list[Piece]:
        """Return the pieces of all kernels below this node, which must fit into `box`."""
        # Trees share nodes, so the curves of a child may be cached for another target than its parent's:
        # `curves` must be called on every node before it is cut.
        found: list[Piece] = []
        waiting = [(self, *box)]
        while waiting:
            node, x, y, width, height = waiting.pop()
            if node.leaf >= 0:
                found.append((node.leaf, x, y, width, height))
            elif node.stacked:
                for child in node.children:
                    part = child.curves(shapes)[0].item(width)
                    waiting.append((child, x, y, width, part))
                    y += part
            else:
                # Center a row in the remaining width, close to the centers of the pieces below and above.
                x += (width - node.curves(shapes)[1].item(height)) // 2
                for child in node.children:
                    part = child.curves(shapes)[1].item(height)
                    waiting.append((child, x, y, part, height))
                    x += part
        return found

    def centers(self, box: Box, shapes: Shapes) -> tuple[list[float], list[float]]:
        """Return the x and the y of the centers of all pieces, by kernel; the tree must hold all kernels."""
        # The search spends most of its time here: cached curves are read without a call.
        target, count = shapes.target, len(shapes.heights)
        middles_x, middles_y = [box.x + box.width / 2] * count, [box.y + box.height / 2] * count
        waiting = [(self, *box)] if self.children else []
        while waiting:
            node, x, y, width, height = waiting.pop()
            stacked = node.stacked
            if not stacked:
                x += (width - node.curves(shapes)[1].item(height)) // 2
            for child in node.children:
                if child._target != target:
                    child.curves(shapes)
                if stacked:
                    height = child._heights.item(width)
                else:
                    width = child._widths.item(height)
                if child.leaf >= 0:
                    middles_x[child.leaf] = x + width / 2
                    middles_y[child.leaf] = y + height / 2
                else:
                    waiting.append((child, x, y, width, height))
                if stacked:
                    y += height
                else:
                    x += width
        return middles_x, middles_y

    def inner(self) -> list[Node]:
        """Return the inner nodes of this subtree in preorder."""
        found: list[Node] = []
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.children:
                found.append(node)
                waiting.extend(reversed(node.children))
        return found


def cut(stacked: bool, children: Sequence[Node]) -> Node:
    """Make a node of `children`, inlining children that are cut in the same direction."""
    flat: list[Node] = []
    for child in children:
        flat.extend(child.children if child.leaf < 0 and child.stacked == stacked else (child,))
    return flat[0] if len(flat) == 1 else Node(-1, stacked, tuple(flat))


class Shapes:
    """The rectangles of all kernels at one target.

    Args:
        target: time that every kernel must meet.
        heights: shape curve of each kernel: the least extent in one direction by that in the other,
            0 .. limit.
    """

    def __init__(self, target: float, heights: Sequence[Ints]) -> None:
        self.target = target
        self.heights = list(heights)
        self._queries: Ints = -np.arange(len(self.heights[0]))

    def inverse(self, curve: Ints) -> Ints:
        """Invert a curve from least height by width to least width by height, or back."""
        found = (-curve).searchsorted(self._queries)
        found[found >= len(curve)] = NEVER
        return found


def inverse(curve: Ints, lengths: Ints) -> Ints:
    """Return the least extent in the other direction for each of `lengths`; `NEVER` if there is none."""
    found = (-curve).searchsorted(-lengths)
    found[found >= len(curve)] = NEVER
    return found
