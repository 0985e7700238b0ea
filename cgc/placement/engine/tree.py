"""Slicing floorplans: recursive straight cuts of a fabric into pieces with one kernel each.

A slicing tree describes the cuts. Every node computes, for one target, its shape curves: the least height at
every width and the least width at every height, each from the curves of its children in one vector operation.
This chooses the shapes of all kernels together and exactly: a tree either fits the fabric or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NO_EXTENT = 1 << 24  # extent of a rectangle that does not exist; sums of thousands of them fit in 64 bits


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
        # Trees share nodes, so a child may have cached curves of another target than its parent. Hence
        # `curves` is called on every node before it is cut.
        found: list[Piece] = []
        pending = [(self, *box)]
        while pending:
            node, x, y, width, height = pending.pop()
            if node.leaf >= 0:
                found.append((node.leaf, x, y, width, height))
            elif node.stacked:
                for child in node.children:
                    extent = child.curves(shapes)[0].item(width)
                    pending.append((child, x, y, width, extent))
                    y += extent
            else:
                # Center a row in the remaining width, close to the centers of the pieces below and above.
                x += (width - node.curves(shapes)[1].item(height)) // 2
                for child in node.children:
                    extent = child.curves(shapes)[1].item(height)
                    pending.append((child, x, y, extent, height))
                    x += extent
        return found

    def centers(self, box: Box, shapes: Shapes) -> tuple[list[float], list[float]]:
        """Return the x and the y of the centers of all pieces, by kernel; the tree must have all kernels."""
        # The search spends most of its time here, so cached curves are read without a call.
        target, count = shapes.target, len(shapes.heights)
        centers_x, centers_y = [box.x + box.width / 2] * count, [box.y + box.height / 2] * count
        pending = [(self, *box)] if self.children else []
        while pending:
            node, x, y, width, height = pending.pop()
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
                    centers_x[child.leaf] = x + width / 2
                    centers_y[child.leaf] = y + height / 2
                else:
                    pending.append((child, x, y, width, height))
                if stacked:
                    y += height
                else:
                    x += width
        return centers_x, centers_y

    def inner(self) -> list[Node]:
        """Return the inner nodes of this subtree in preorder."""
        found: list[Node] = []
        pending = [self]
        while pending:
            node = pending.pop()
            if node.children:
                found.append(node)
                pending.extend(reversed(node.children))
        return found


def cut(stacked: bool, children: Sequence[Node]) -> Node:
    """Return a node with `children`; a child that is cut in the same direction is inlined."""
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
        found[found >= len(curve)] = NO_EXTENT
        return found


def inverse(curve: Ints, lengths: Ints) -> Ints:
    """Return the least extent in the other direction for each of `lengths`; `NO_EXTENT` if there is none."""
    found = (-curve).searchsorted(-lengths)
    found[found >= len(curve)] = NO_EXTENT
    return found
