"""Several copies of a model, or of a layer, on one wafer; they share the samples of every batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from cgc.errors import PlacementError
from cgc.kernels.graph import KernelGraph
from cgc.placement.model import Boxes, Placement, Rect
from cgc.placement.place import place, place_variants
from cgc.placement.shapes import MAX_FABRIC_SHARE
from cs_toolkit.fabric import Fabric

_MODEL_GRIDS = 5  # grids to try for a model, squarest boxes first
_LAYER_GRIDS = 3  # grids to try for a layer, most boxes first
_MAX_ASPECT_RATIO = 2.5  # of the box of a layer

# Percent of area for one percent of speed. At this price, throughput per PE is highest.
_AREA_PER_SPEED_OF_COPIES = 1.0

# Share of the memory for the weights of all copies. Those of the next layer take as much, activations the
# rest.
_WEIGHTS_SHARE = 0.25


def replica_grids(graph: KernelGraph, fabric: Fabric, count: int) -> tuple[Boxes, ...]:
    """Return the grids in which `count` copies of a model fit on a fabric, each with two floorplans.

    The fabric is divided into equal boxes, and the kernels of one copy are placed in a box as if it were a
    fabric. The boxes are then moved together, which shortens the path of gradients.

    Args:
        graph: graph of one copy, from `KernelGraph.of_replica`.
        fabric: the fabric that all copies share.
        count: number of copies.
    """
    found = []
    for columns, rows in list_grids(fabric, count):
        size = {"width": fabric.width // columns, "height": fabric.height // rows}
        try:
            # Gradients may pass faster through the draft, in which kernels are not moved to their neighbors.
            placements = place_variants(graph, fabric.model_copy(update=size))
        except PlacementError:
            continue
        found += [boxes_of(placement, columns, rows) for placement in placements]
    return tuple(found)


def list_grids(fabric: Fabric, count: int) -> list[tuple[int, int]]:
    """Return the columns and rows of the grids to try for copies of a model, squarest boxes first."""
    grids = [(columns, count // columns) for columns in range(1, count + 1) if count % columns == 0]
    possible = [grid for grid in grids if grid[0] <= fabric.width and grid[1] <= fabric.height]
    squarest = sorted(
        possible,
        key=lambda grid: (abs(math.log(fabric.width * grid[1] / (fabric.height * grid[0]))), grid),
    )
    return squarest[:_MODEL_GRIDS]


def boxes_of(placement: Placement, columns: int, rows: int) -> Boxes:
    """Return a grid of bounding boxes of a placement, with the first one at the origin."""
    rects = placement.rects.values()
    left, top = min(rect.x for rect in rects), min(rect.y for rect in rects)
    width, height = max(rect.x + rect.width for rect in rects), max(rect.y + rect.height for rect in rects)
    shifted = {
        name: Rect(rect.x - left, rect.y - top, rect.width, rect.height)
        for name, rect in placement.rects.items()
    }
    return Boxes(placement.with_rects(shifted), columns, rows, width - left, height - top)


@dataclass(frozen=True)
class Copies(Boxes):
    """Copies of a layer.

    Attributes:
        cycles: cycles of compute between two samples of one copy.
    """

    cycles: int

    @property
    def held_bytes(self) -> int:
        """Bytes of the wafer's memory that the kernels take: weights, buffers and code."""
        rects, layouts = self.placement.rects, self.placement.layouts
        return self.count * sum(rect.area * layouts[name].memory_per_pe_bytes for name, rect in rects.items())

    def cycles_of(self, samples: int) -> int:
        """Return the cycles for `samples` samples shared by all copies."""
        return -(-samples // self.count) * self.cycles


def place_copies(graph: KernelGraph, fabric: Fabric) -> Copies:
    """Place the number of copies of a layer that computes a batch fastest.

    Args:
        graph: kernels of the layer, which stash no activations.
        fabric: the whole wafer.

    Raises:
        PlacementError: not even one copy fits.
    """
    best = _place_grid(graph, fabric, 1, 1)
    smallest = place(graph, fabric, _AREA_PER_SPEED_OF_COPIES)
    resident = max(1, sum(kernel.parameters.get("resident_bytes", 0) for kernel in graph.kernels))
    max_count = min(
        graph.batch_size,
        int(MAX_FABRIC_SHARE * fabric.processing_elements) // smallest.active_pes,
        int(_WEIGHTS_SHARE * fabric.memory_bytes) // resident,
    )
    for columns, rows in islice(_layer_grids(fabric, max_count), _LAYER_GRIDS):
        try:
            found = _place_grid(graph, fabric, columns, rows)
        except PlacementError:
            continue
        best = min(best, found, key=lambda copies: copies.cycles_of(graph.batch_size))
    return best


def _place_grid(graph: KernelGraph, fabric: Fabric, columns: int, rows: int) -> Copies:
    width, height = fabric.width // columns, fabric.height // rows
    placement = place(graph, fabric.model_copy(update={"width": width, "height": height}))
    cycles = max(layout.compute_cycles for layout in placement.layouts.values())
    return Copies(placement, columns, rows, width, height, cycles)


def _layer_grids(fabric: Fabric, max_count: int) -> Iterator[tuple[int, int]]:
    """Yield the columns and rows of grids of roughly square boxes, most boxes first."""
    grids = []
    for columns in range(1, max_count + 1):
        rows = max_count // columns
        width, height = fabric.width // columns, fabric.height // rows
        if width and height and max(width, height) <= _MAX_ASPECT_RATIO * min(width, height):
            grids.append((columns, rows))
    yield from sorted(grids, key=lambda grid: (-grid[0] * grid[1], grid))
