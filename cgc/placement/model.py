"""Floorplans: a rectangle and a layout for every kernel of a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cgc.kernels.configurations import Configuration


@dataclass(frozen=True)
class Rect:
    """PEs x .. x + width - 1 and y .. y + height - 1; the origin is a corner of the fabric."""

    x: int
    y: int
    width: int
    height: int

    @property
    def area(self) -> int:
        """PEs of the rectangle."""
        return self.width * self.height

    @property
    def center(self) -> tuple[float, float]:
        """Center in PEs."""
        return self.x + self.width / 2, self.y + self.height / 2

    def overlaps(self, other: Rect) -> bool:
        """Return True if the two rectangles share a PE."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


@dataclass(frozen=True)
class Placement:
    """The floorplan of a kernel graph.

    Attributes:
        fabric: name of the fabric.
        rects: rectangle of each kernel by name, in the order of the graph.
        layouts: the chosen layout of each kernel; a rectangle is the layout or the layout turned by 90
            degrees.
        target_cycles: cycles per sample that every kernel keeps.
        active_pes: PEs of all rectangles.
        total_utilization: active_pes as a share of the fabric, 0 to 1.
        wire_length: sum over all edges of the L1 distance of the centers, in PEs.
        fill: samples in flight between kernels, relative to a full pipeline; a sample enters every
            target_cycles / fill cycles.
    """

    fabric: str
    rects: Mapping[str, Rect]
    layouts: Mapping[str, Configuration]
    target_cycles: int
    active_pes: int
    total_utilization: float
    wire_length: float
    fill: float = 1.0

    @property
    def interval_cycles(self) -> int:
        """Cycles between two samples, limited by the kernels and by the memory for activations."""
        return math.ceil(self.target_cycles / self.fill)

    def with_rects(self, rects: Mapping[str, Rect]) -> Placement:
        """Return the same layouts at other positions."""
        return replace(self, rects=rects)


@dataclass(frozen=True)
class Boxes:
    """A grid of equal boxes on a wafer, each with the same floorplan.

    Attributes:
        placement: floorplan of one copy; the origin is a corner of its box.
        columns: boxes in x.
        rows: boxes in y.
        width: PEs of a box in x.
        height: PEs of a box in y.
    """

    placement: Placement
    columns: int
    rows: int
    width: int
    height: int

    @property
    def count(self) -> int:
        """Number of boxes in the grid."""
        return self.columns * self.rows

    @property
    def active_pes(self) -> int:
        """PEs of all rectangles of all copies."""
        return self.count * self.placement.active_pes

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """The first column and row of each box, row by row."""
        return tuple(
            (column * self.width, row * self.height)
            for row in range(self.rows)
            for column in range(self.columns)
        )
