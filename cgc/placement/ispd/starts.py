"""Floorplans to start the search from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cgc.placement.ispd.columns import MOST_KERNELS, Column, pack_columns
from cgc.placement.ispd.curves import NEVER, Ints
from cgc.placement.ispd.search import Problem
from cgc.placement.ispd.tree import Node, cut
from cgc.placement.packing import Packing, Spot, pack_shelves, shelf_heights
from cgc.placement.shapes import Shape, ShapeList

STRETCHES = (1.0, 1.03)
"""Heights of the box to fill, as shares of the fabric's: what is a little too high is a good start, too."""


def shelf_trees(problem: Problem, order: Sequence[int], target: float) -> Iterator[Node]:
    """Shelves along the data flow, packed as for any kernel graph; only those that fit."""
    shapes = problem.shapes(target)
    lists = [_shape_list(shapes.heights[index], problem) for index in order]
    if all(shape_list.shapes for shape_list in lists):
        graph, flow = problem.graph, list(range(len(order)))
        for shelf in shelf_heights(lists, graph.height):
            packing = pack_shelves(lists, flow, graph.width, graph.height, shelf)
            tree = None if packing is None else cut_tree(packing, order)
            if tree is not None:
                yield tree


def column_trees(problem: Problem, order: Sequence[int], target: float) -> Iterator[Node]:
    """The best columns at a target, in boxes as high as the fabric and a little higher."""
    if len(order) > MOST_KERNELS:
        return
    shapes, graph = problem.shapes(target), problem.graph
    heights = np.array([shapes.heights[index] for index in order])
    position = {kernel: number for number, kernel in enumerate(order)}
    edges = [(position[edge.source], position[edge.target]) for edge in graph.edges]
    seen: list[list[Column]] = []
    for stretch in STRETCHES:
        columns = pack_columns(heights, edges, graph.width, int(graph.height * stretch))
        if columns is not None and columns not in seen:
            seen.append(columns)
            yield _snake(columns, order)


def _snake(columns: Sequence[Column], order: Sequence[int]) -> Node:
    """Columns of which every other one runs backwards: the end of one is near the start of the next."""
    pieces = []
    for number, column in enumerate(columns):
        rows = [cut(False, [Node(order[position]) for position in row]) for row in column.rows]
        pieces.append(cut(True, rows[::-1] if number % 2 else rows))
    return cut(False, pieces)


def _shape_list(heights: Ints, problem: Problem) -> ShapeList:
    """The rectangles on a curve that fit the fabric, none inside another."""
    graph = problem.graph
    widths = np.nonzero((np.diff(heights, prepend=NEVER) < 0) & (heights <= graph.height))[0][::-1]
    fitting = [int(width) for width in widths if 0 < width <= graph.width]
    return ShapeList(tuple(Shape(width, int(heights[width]), 0) for width in fitting))


def cut_tree(packing: Packing, order: Sequence[int]) -> Node | None:
    """The cuts that a packing follows, None where it cannot be cut straight through.

    Args:
        packing: rectangles by position in the order.
        order: kernel at each position.
    """
    return _cut_tree([(spot, order[position]) for position, spot in enumerate(packing)])


def _cut_tree(spots: Sequence[tuple[Spot, int]]) -> Node | None:
    if len(spots) == 1:
        return Node(spots[0][1])
    for stacked in (True, False):
        groups = _groups(spots, stacked)
        if len(groups) > 1:
            children = [_cut_tree(group) for group in groups]
            if any(child is None for child in children):
                return None
            return cut(stacked, [child for child in children if child is not None])
    return None


def _groups(spots: Sequence[tuple[Spot, int]], stacked: bool) -> list[list[tuple[Spot, int]]]:
    """Groups between which a straight line passes."""
    groups: list[list[tuple[Spot, int]]] = []
    end = -1
    for spot, kernel in sorted(spots, key=lambda item: item[0].y if stacked else item[0].x):
        low, size = (spot.y, spot.shape.height) if stacked else (spot.x, spot.shape.width)
        if low >= end:
            groups.append([])
        groups[-1].append((spot, kernel))
        end = max(end, low + size)
    return groups
