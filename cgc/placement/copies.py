"""Several copies of one layer side by side on a wafer, each of which computes samples of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from cgc.errors import PlacementError
from cgc.kernels.graph import KernelGraph
from cgc.placement.model import Boxes
from cgc.placement.place import place
from cgc.placement.targets import MOST_OF_FABRIC
from cs_toolkit.fabric import Fabric

_EVEN_TRADE = 1.0
"""Percent of area for a percent of speed: at this price a rectangle does the most for its area."""

_WEIGHTS_SHARE = 0.25
"""Of the memory, for weights of all copies; those of the next layer take as much, activations the rest."""

_GRIDS = 3
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
    for columns, rows in islice(_grids(fabric, most), _GRIDS):
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


def _grids(fabric: Fabric, most: int) -> Iterator[tuple[int, int]]:
    """Columns and rows of boxes that are about square, the most boxes first."""
    grids = []
    for columns in range(1, most + 1):
        rows = most // columns
        width, height = fabric.width // columns, fabric.height // rows
        if width and height and max(width, height) <= _MOST_OBLONG * min(width, height):
            grids.append((columns, rows))
    yield from sorted(grids, key=lambda grid: (-grid[0] * grid[1], grid))
