"""Slicing floorplans: a fabric cut straight through again and again, with a kernel in every piece.

A tree says how to cut. Every node knows, for one target, the least height at every width and the least width
at every height of its piece, each from those of its children in one vector operation. So the shapes of all
kernels are always chosen together and exactly, and a tree fits the fabric or does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEVER = 1 << 24
"""Length of a rectangle that does not exist; sums of thousands of them stay in 64 bits."""


class Box(NamedTuple):
    """The piece of a kernel: x .. x + width, y .. y + height."""

    x: int
    y: int
    width: int
    height: int


Piece = tuple[int, int, int, int, int]
"""A kernel and its box."""


class Node:
    """A piece of the fabric; immutable but for the curves it remembers for one target.

    Attributes:
        leaf: index of the kernel, or -1.
        stacked: whether the children lie on top of each other, from low to high y, else side by side.
        children: at least two, or none for a leaf.
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
        """Least height by width, and least width by height."""
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
        """The pieces of all kernels below this node, which must fit into `box`.

        Trees share nodes. So a child may remember another target than its parent, from a tree without that
        parent: every node is brought to the target of `shapes` before it is cut.
        """
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
                # In the middle of what is left, near the centres of the pieces below and above.
                x += (width - node.curves(shapes)[1].item(height)) // 2
                for child in node.children:
                    part = child.curves(shapes)[1].item(height)
                    waiting.append((child, x, y, part, height))
                    x += part
        return found

    def centers(self, box: Box, shapes: Shapes) -> tuple[list[float], list[float]]:
        """X and y of the middles of the pieces that `pieces` gives, by kernel; this is a tree of all kernels.

        The search spends most of its time here, hence no calls for what a node remembers.
        """
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
        """This node and all below it that have children, each before those below it."""
        found: list[Node] = []
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.children:
                found.append(node)
                waiting.extend(reversed(node.children))
        return found


def cut(stacked: bool, children: Sequence[Node]) -> Node:
    """A node of children, with children that are cut the same way dissolved into it."""
    flat: list[Node] = []
    for child in children:
        flat.extend(child.children if child.leaf < 0 and child.stacked == stacked else (child,))
    return flat[0] if len(flat) == 1 else Node(-1, stacked, tuple(flat))


class Shapes:
    """The rectangles of all kernels at one target.

    Args:
        target: the time.
        heights: by kernel, the least extent in one direction by that in the other, 0 .. limit.
    """

    def __init__(self, target: float, heights: Sequence[Ints]) -> None:
        self.target = target
        self.heights = list(heights)
        self._queries: Ints = -np.arange(len(self.heights[0]))

    def inverse(self, curve: Ints) -> Ints:
        """From least height by width to least width by height, or back."""
        found = (-curve).searchsorted(self._queries)
        found[found >= len(curve)] = NEVER
        return found


def inverse(curve: Ints, lengths: Ints) -> Ints:
    """The least length in the other direction at some lengths, `NEVER` where there is none."""
    found = (-curve).searchsorted(-lengths)
    found[found >= len(curve)] = NEVER
    return found
