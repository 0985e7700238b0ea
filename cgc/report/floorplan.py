"""The floorplan as shapes in pixels: windows on the fabric, kernels, arrows, labels. No markup here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cgc.kernels.families.scalars import CONTROL as CONTROL
from cgc.kernels.graph import Edge
from cgc.placement.model import Rect
from cgc.report.arrows import routed
from cgc.report.labels import Box, Label, place_labels
from cgc.report.model import KernelReport
from cs_toolkit.fabric import Fabric

BINS = 10
"""Colours of the utilization scale, each a tenth of it."""

_MARGIN_LEFT = 40.0
_MARGIN_TOP = 22.0
_MARGIN = 12.0
_TICK_DISTANCE = 64.0
_USED_PADDING = 0.07
_LABEL_PADDING, _LABEL_ROOM = 0.14, 24.0
_WIDEST, _TALLEST = 2.6, 1.25
_LEAST_MAGNIFICATION = 1.4
_BOW = 0.14
_BOW_LIMITS = (3.0, 30.0)
_LANE = 5.0
_THIN = 8.0
_SMALL = 16
_FEW = 40
"""Kernels and arrows of a plan whose arrows find ways beside each other; in larger ones they may cross."""


@dataclass(frozen=True)
class Window:
    """A part of the fabric, in PEs, and the pixels it is drawn on; it may reach over the fabric's border."""

    x: float
    y: float
    width: float
    height: float
    pixels_per_pe: float

    @property
    def svg_width(self) -> float:
        """Pixels with the margins for the axes."""
        return _MARGIN_LEFT + self.width * self.pixels_per_pe + _MARGIN

    @property
    def area(self) -> Box:
        """What is inside the margins."""
        scale = self.pixels_per_pe
        return Box(_MARGIN_LEFT, _MARGIN_TOP, self.width * scale, self.height * scale)

    @property
    def svg_height(self) -> float:
        """Pixels with the margins for the axes."""
        return _MARGIN_TOP + self.height * self.pixels_per_pe + _MARGIN

    def box(self, x: float, y: float, width: float, height: float) -> Box:
        """A rectangle of PEs in pixels."""
        scale = self.pixels_per_pe
        return Box(
            _MARGIN_LEFT + (x - self.x) * scale,
            _MARGIN_TOP + (y - self.y) * scale,
            width * scale,
            height * scale,
        )


@dataclass(frozen=True)
class Tile:
    """A kernel on the floorplan; `index` counts kernels in data-flow order from 0."""

    index: int
    box: Box
    bin: int
    generated: bool
    slowest: bool

    @property
    def thin(self) -> bool:
        """A border of a whole pixel would hide it."""
        return min(self.box.width, self.box.height) < _THIN


@dataclass(frozen=True)
class Arrow:
    """A stream between two kernels, as an SVG path; `kind` is forward, backward or control.

    One that is tangled would cross others of a small plan.
    """

    src: int
    dst: int
    kind: str
    path: str
    elements_per_sample: int
    tangled: bool = False


@dataclass(frozen=True)
class Tick:
    """A coordinate in PEs on an axis, `at` pixels."""

    at: float
    coordinate: int


@dataclass(frozen=True)
class Axes:
    """Ticks of the x axis and of the y axis."""

    columns: tuple[Tick, ...]
    rows: tuple[Tick, ...]


@dataclass(frozen=True)
class Floorplan:
    """One drawing.

    Attributes:
        window: what it shows.
        fabric: the outline.
        axes: its coordinates.
        tiles: kernels in data-flow order.
        arrows: streams, those of the most distant kernels first.
        labels: of the kernels that have room for one.
        frame: the part that another drawing enlarges.
    """

    window: Window
    fabric: Box
    axes: Axes
    tiles: tuple[Tile, ...]
    arrows: tuple[Arrow, ...] = ()
    labels: tuple[Label, ...] = ()
    frame: Box | None = None


def whole_window(fabric: Fabric, width_px: float) -> Window:
    """All of the fabric, `width_px` wide with its margins."""
    scale = (width_px - _MARGIN_LEFT - _MARGIN) / fabric.width
    return Window(0, 0, fabric.width, fabric.height, scale)


def used_window(rects: Sequence[Rect], fabric: Fabric, width_px: float) -> Window | None:
    """The part of the fabric that kernels cover, with some room around it for labels.

    Returns:
        None if it would show little more than the whole fabric does.
    """
    left, top = min(rect.x for rect in rects), min(rect.y for rect in rects)
    right, bottom = max(rect.x + rect.width for rect in rects), max(rect.y + rect.height for rect in rects)
    extent = max(right - left, bottom - top)
    padding = max(1.0, _USED_PADDING * extent, min(_LABEL_PADDING * extent, _LABEL_ROOM))
    x, y = max(left - padding, 0.0), max(top - padding, 0.0)
    wide = max(right + padding - x, _TALLEST * (bottom + padding - y))
    tall = max(bottom + padding - y, wide / _WIDEST)
    if wide * _LEAST_MAGNIFICATION > fabric.width:
        return None
    x, y = min(x, max(0.0, fabric.width - wide)), min(y, max(0.0, fabric.height - tall))
    return Window(x, y, wide, tall, (width_px - _MARGIN_LEFT - _MARGIN) / wide)


class Drawn(Protocol):
    """What a drawing shows."""

    @property
    def fabric(self) -> Fabric:
        """The PEs that there are."""
        ...

    @property
    def kernels(self) -> Sequence[KernelReport]:
        """In data-flow order."""
        ...

    @property
    def edges(self) -> Sequence[Edge]:
        """What streams between them."""
        ...

    @property
    def bottleneck(self) -> KernelReport | None:
        """The one that bounds the speed."""
        ...


def overview(report: Drawn, window: Window, enlarged: Window) -> Floorplan:
    """The whole fabric with its kernels and the frame of the part that is enlarged beside it."""
    return Floorplan(
        window,
        _outline(report.fabric, window),
        _axes(report.fabric, window),
        _tiles(report, window),
        frame=_clip(window.box(enlarged.x, enlarged.y, enlarged.width, enlarged.height), window),
    )


def detail(report: Drawn, window: Window) -> Floorplan:
    """A part of the fabric with kernels, labels and streams."""
    tiles = _tiles(report, window)
    names = [row.kernel.name for row in report.kernels]
    notes = [f"{row.figures.compute_utilization_percent:.0f} %" for row in report.kernels]
    return Floorplan(
        window,
        _outline(report.fabric, window),
        _axes(report.fabric, window),
        tiles,
        arrows=_arrows(report.kernels, report.edges, tiles),
        labels=place_labels([tile.box for tile in tiles], names, notes, window.area),
    )


def utilization_bin(percent: float) -> int:
    """Which colour of the scale shows a utilization, 0 to BINS - 1."""
    return min(BINS - 1, int(percent * BINS / 100))


def _tiles(report: Drawn, window: Window) -> tuple[Tile, ...]:
    return tuple(
        Tile(
            index,
            window.box(row.rectangle.x, row.rectangle.y, row.rectangle.width, row.rectangle.height),
            utilization_bin(row.figures.compute_utilization_percent),
            row.kernel.generated,
            row is report.bottleneck,
        )
        for index, row in enumerate(report.kernels)
    )


def _outline(fabric: Fabric, window: Window) -> Box:
    return _clip(window.box(0, 0, fabric.width, fabric.height), window)


def _clip(box: Box, window: Window) -> Box:
    """The part of a box that the drawing shows."""
    area = window.area
    left, top = max(box.x, area.x), max(box.y, area.y)
    right = min(box.x + box.width, area.x + area.width)
    bottom = min(box.y + box.height, area.y + area.height)
    return Box(left, top, right - left, bottom - top)


def _arrows(
    kernels: Sequence[KernelReport], edges: Sequence[Edge], tiles: Sequence[Tile]
) -> tuple[Arrow, ...]:
    """Long arrows first, so that the short ones lie over them; those of a small plan do not cross."""
    order = {row.kernel.name: index for index, row in enumerate(kernels)}
    pairs = [(order[edge.src], order[edge.dst]) for edge in edges]
    boxes = [tile.box for tile in tiles]
    small = len(kernels) <= _SMALL and len(edges) <= _FEW
    ways = routed(boxes, pairs) if small else [None] * len(pairs)
    found = []
    for edge, (src, dst), way in zip(edges, pairs, ways, strict=True):
        control = CONTROL.name in (kernels[src].kernel.family, kernels[dst].kernel.family)
        kind = "control" if control else "forward" if src < dst else "backward"
        path = way or _curve(boxes[src], boxes[dst])
        arrow = Arrow(src, dst, kind, path, edge.elements_per_sample, small and way is None)
        found.append((math.dist(boxes[src].center, boxes[dst].center), arrow))
    return tuple(arrow for _, arrow in sorted(found, key=lambda pair: -pair[0]))


def _curve(start: Box, end: Box) -> str:
    """A curve from centre to centre that keeps to the right, so that two opposite streams lie apart."""
    (x0, y0), (x1, y1) = start.center, end.center
    length = math.dist(start.center, end.center) or 1.0
    right_x, right_y = -(y1 - y0) / length, (x1 - x0) / length
    lane = min(_LANE, *(side / 5 for box in (start, end) for side in (box.width, box.height)))
    bow = lane + min(max(_BOW * length, _BOW_LIMITS[0]), _BOW_LIMITS[1])
    points = (
        (x0 + lane * right_x, y0 + lane * right_y),
        ((x0 + x1) / 2 + bow * right_x, (y0 + y1) / 2 + bow * right_y),
        (x1 + lane * right_x, y1 + lane * right_y),
    )
    return "M{} {}Q{} {} {} {}".format(*(f"{value:.1f}" for point in points for value in point))


def _axes(fabric: Fabric, window: Window) -> Axes:
    scale = window.pixels_per_pe
    step = _nice_step(_TICK_DISTANCE / scale)
    columns = _multiples(step, window.x, window.x + window.width, fabric.width)
    rows = _multiples(step, window.y, window.y + window.height, fabric.height)
    return Axes(
        tuple(Tick(_MARGIN_LEFT + (at - window.x) * scale, at) for at in columns),
        tuple(Tick(_MARGIN_TOP + (at - window.y) * scale, at) for at in rows),
    )


def _multiples(step: int, first: float, last: float, limit: int) -> list[int]:
    """Multiples of `step` inside a window and on the fabric."""
    start = max(0, math.ceil(first / step)) * step
    return list(range(start, int(min(last, limit)) + 1, step))


def _nice_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that is at least `least`."""
    power: int = 10 ** max(0, math.floor(math.log10(max(least, 1))))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
