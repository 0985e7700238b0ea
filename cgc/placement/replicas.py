"""Several copies of a whole model side by side, each of which computes a part of every batch."""

from __future__ import annotations

import math

from cgc.errors import PlacementError
from cgc.kernels.graph import KernelGraph
from cgc.placement.model import Boxes, Placement, Rect
from cgc.placement.place import place
from cs_toolkit.fabric import Fabric

_GRIDS = 5
"""Grids that are tried, those with the squarest boxes first."""


def replica_grids(graph: KernelGraph, fabric: Fabric, count: int) -> tuple[Boxes, ...]:
    """Ways to place a model several times; none where it does not fit so often.

    The fabric is divided into a grid of equal boxes. The kernels of one copy are placed in a box as on a
    fabric of its own, and the boxes are moved together, so that gradients have a short way.

    Args:
        graph: of one copy, see `KernelGraph.of_replica`.
        fabric: for all copies.
        count: copies.
    """
    found = []
    for columns, rows in _grids(fabric, count)[:_GRIDS]:
        size = {"width": fabric.width // columns, "height": fabric.height // rows}
        try:
            placement = place(graph, fabric.model_copy(update=size))
        except PlacementError:
            continue
        found.append(boxes_of(placement, columns, rows))
    return tuple(found)


def boxes_of(placement: Placement, columns: int, rows: int) -> Boxes:
    """A grid of the smallest boxes around a placement, whose origin becomes the corner of the first."""
    rects = placement.rects.values()
    left, top = min(rect.x for rect in rects), min(rect.y for rect in rects)
    width, height = max(rect.x + rect.width for rect in rects), max(rect.y + rect.height for rect in rects)
    moved = {
        name: Rect(rect.x - left, rect.y - top, rect.width, rect.height)
        for name, rect in placement.rects.items()
    }
    return Boxes(placement.moved_to(moved), columns, rows, width - left, height - top)


def _grids(fabric: Fabric, count: int) -> list[tuple[int, int]]:
    """Columns and rows of as many boxes, the squarest boxes first."""
    grids = [(columns, count // columns) for columns in range(1, count + 1) if count % columns == 0]
    possible = [grid for grid in grids if grid[0] <= fabric.width and grid[1] <= fabric.height]
    return sorted(
        possible,
        key=lambda grid: (abs(math.log(fabric.width * grid[1] / (fabric.height * grid[0]))), grid),
    )
