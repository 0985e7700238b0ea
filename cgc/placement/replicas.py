"""Several copies of a whole model side by side, each of which computes a part of every batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from cgc.errors import PlacementError
from cgc.kernels.graph import KernelGraph
from cgc.placement.model import Boxes, Placement, Rect
from cgc.placement.place import place
from cgc.placement.shapes import MOST_OF_FABRIC
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


_EVEN_TRADE = 1.0
"""Percent of area for a percent of speed: at this price a rectangle does the most for its area."""

_WEIGHTS_SHARE = 0.25
"""Of the memory, for weights of all copies; those of the next layer take as much, activations the rest."""

_LAYER_GRIDS = 3
_MOST_OBLONG = 2.5


@dataclass(frozen=True)
class Copies(Boxes):
    """Copies of a layer.

    Attributes:
        cycles: from one sample to the next in one copy, of computing alone.
    """

    cycles: int

    @property
    def held_bytes(self) -> int:
        """Memory of these PEs that kernels take: weights, buffers and code."""
        rects, layouts = self.placement.rects, self.placement.layouts
        return self.count * sum(rect.area * layouts[name].memory_per_pe_bytes for name, rect in rects.items())

    def cycles_of(self, samples: int) -> int:
        """Cycles for some samples, which the copies share."""
        return -(-samples // self.count) * self.cycles


def place_copies(graph: KernelGraph, fabric: Fabric) -> Copies:
    """Places as many copies of a layer as compute a batch the fastest.

    Args:
        graph: the layer; nothing of a sample waits in it.
        fabric: the whole wafer.

    Raises:
        PlacementError: not even one copy fits.
    """
    best = _copies(graph, fabric, 1, 1)
    smallest = place(graph, fabric, _EVEN_TRADE)
    resident = max(1, sum(kernel.parameters.get("resident_bytes", 0) for kernel in graph.kernels))
    most = min(
        graph.batch_size,
        int(MOST_OF_FABRIC * fabric.processing_elements) // smallest.active_pes,
        int(_WEIGHTS_SHARE * fabric.memory_bytes) // resident,
    )
    for columns, rows in islice(_layer_grids(fabric, most), _LAYER_GRIDS):
        try:
            found = _copies(graph, fabric, columns, rows)
        except PlacementError:
            continue
        best = min(best, found, key=lambda copies: copies.cycles_of(graph.batch_size))
    return best


def _copies(graph: KernelGraph, fabric: Fabric, columns: int, rows: int) -> Copies:
    width, height = fabric.width // columns, fabric.height // rows
    placement = place(graph, fabric.model_copy(update={"width": width, "height": height}))
    cycles = max(layout.compute_cycles for layout in placement.layouts.values())
    return Copies(placement, columns, rows, width, height, cycles)


def _layer_grids(fabric: Fabric, most: int) -> Iterator[tuple[int, int]]:
    """Columns and rows of boxes that are about square, the most boxes first."""
    grids = []
    for columns in range(1, most + 1):
        rows = most // columns
        width, height = fabric.width // columns, fabric.height // rows
        if width and height and max(width, height) <= _MOST_OBLONG * min(width, height):
            grids.append((columns, rows))
    yield from sorted(grids, key=lambda grid: (-grid[0] * grid[1], grid))
