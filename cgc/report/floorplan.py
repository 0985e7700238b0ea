"""The floorplan as shapes in pixels: windows on the fabric, kernels, arrows and labels, without markup."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cgc.kernels.families.scalars import CONTROL
from cgc.kernels.graph import Edge
from cgc.placement.model import Rect
from cgc.report.model import KernelReport
from cs_toolkit.fabric import Fabric
from cs_toolkit.figures import format_percent

BINS = 10  # colors of the utilization scale, each for a tenth of it

_MARGIN_LEFT = 40.0
_MARGIN_TOP = 22.0
_MARGIN = 12.0
_TICK_DISTANCE = 64.0
_USED_PADDING = 0.07
_LABEL_PADDING, _LABEL_ROOM = 0.14, 24.0
_WIDEST, _TALLEST = 2.6, 1.25
_MIN_MAGNIFICATION = 1.4
_BOW = 0.14
_BOW_LIMITS = (3.0, 30.0)
_LANE = 5.0
_THIN = 8.0
# A plan with at most this many kernels and arrows has arrows that do not cross.
_SMALL = 16
_FEW = 40


@dataclass(frozen=True)
class Window:
    """A part of the fabric, in PEs, and the scale it is drawn at; it may extend beyond the fabric."""

    x: float
    y: float
    width: float
    height: float
    pixels_per_pe: float

    @property
    def svg_width(self) -> float:
        """Pixels, including the margins for the axes."""
        return _MARGIN_LEFT + self.width * self.pixels_per_pe + _MARGIN

    @property
    def area(self) -> Box:
        """The drawing without the margins, in pixels."""
        scale = self.pixels_per_pe
        return Box(_MARGIN_LEFT, _MARGIN_TOP, self.width * scale, self.height * scale)

    @property
    def svg_height(self) -> float:
        """Pixels, including the margins for the axes."""
        return _MARGIN_TOP + self.height * self.pixels_per_pe + _MARGIN

    def box(self, x: float, y: float, width: float, height: float) -> Box:
        """Convert a rectangle of PEs to pixels."""
        scale = self.pixels_per_pe
        return Box(
            _MARGIN_LEFT + (x - self.x) * scale,
            _MARGIN_TOP + (y - self.y) * scale,
            width * scale,
            height * scale,
        )


@dataclass(frozen=True)
class Tile:
    """A kernel on the floorplan; `index` counts kernels in data-flow order from 0.

    The colors are those of compute utilization (`bin`), memory of the fullest PE, and load of the busiest
    link.
    """

    index: int
    box: Box
    bin: int
    memory_bin: int
    wire_bin: int
    wire_percent: float
    generated: bool
    slowest: bool

    @property
    def thin(self) -> bool:
        """True if a border of one pixel would hide the kernel."""
        return min(self.box.width, self.box.height) < _THIN


@dataclass(frozen=True)
class Arrow:
    """A stream between two kernels, as an SVG path.

    `kind` is forward, backward or control. A `tangled` arrow would cross others of a small plan.
    """

    src: int
    dst: int
    kind: str
    path: str
    elements_per_sample: int
    tangled: bool = False


@dataclass(frozen=True)
class Tick:
    """A tick of an axis: its position in pixels and its coordinate in PEs."""

    at: float
    coordinate: int


@dataclass(frozen=True)
class Axes:
    """Ticks of both axes."""

    columns: tuple[Tick, ...]
    rows: tuple[Tick, ...]


@dataclass(frozen=True)
class Floorplan:
    """One drawing.

    Attributes:
        window: the visible part of the fabric.
        fabric: outline of the fabric.
        axes: coordinates of the PEs.
        tiles: kernels in data-flow order.
        arrows: streams, those of the most distant kernels first.
        labels: names of the kernels that have room for one.
        frame: outline of the part that another drawing enlarges.
    """

    window: Window
    fabric: Box
    axes: Axes
    tiles: tuple[Tile, ...]
    arrows: tuple[Arrow, ...] = ()
    labels: tuple[Label, ...] = ()
    frame: Box | None = None


def whole_window(fabric: Fabric, width_px: float) -> Window:
    """Return a window on the whole fabric, `width_px` wide including its margins."""
    scale = (width_px - _MARGIN_LEFT - _MARGIN) / fabric.width
    return Window(0, 0, fabric.width, fabric.height, scale)


def used_window(rects: Sequence[Rect], fabric: Fabric, width_px: float) -> Window | None:
    """Return a window on the part of the fabric that kernels cover, with a border for labels.

    Returns:
        None if that part is almost the whole fabric.
    """
    left, top = min(rect.x for rect in rects), min(rect.y for rect in rects)
    right, bottom = max(rect.x + rect.width for rect in rects), max(rect.y + rect.height for rect in rects)
    extent = max(right - left, bottom - top)
    padding = max(1.0, _USED_PADDING * extent, min(_LABEL_PADDING * extent, _LABEL_ROOM))
    x, y = max(left - padding, 0.0), max(top - padding, 0.0)
    wide = max(right + padding - x, _TALLEST * (bottom + padding - y))
    tall = max(bottom + padding - y, wide / _WIDEST)
    if wide * _MIN_MAGNIFICATION > fabric.width:
        return None
    x, y = min(x, max(0.0, fabric.width - wide)), min(y, max(0.0, fabric.height - tall))
    return Window(x, y, wide, tall, (width_px - _MARGIN_LEFT - _MARGIN) / wide)


@dataclass(frozen=True)
class PlacedKernels:
    """Kernels at their places on the wafer, or on the part of it that one copy takes.

    Attributes:
        fabric: the PEs that they are placed on.
        kernels: in data-flow order.
        edges: the streams to draw.
        slowest: the kernel to outline; None if the speed is bounded by something else.
        interval_cycles: cycles from one sample to the next.
    """

    fabric: Fabric
    kernels: Sequence[KernelReport]
    edges: Sequence[Edge]
    slowest: KernelReport | None
    interval_cycles: int


def overview(placed: PlacedKernels, window: Window, enlarged: Window | Rect) -> Floorplan:
    """Draw the whole fabric with its kernels, and a frame around the part that another drawing enlarges."""
    return Floorplan(
        window,
        _outline(placed.fabric, window),
        _axes(placed.fabric, window),
        _tiles(placed, window),
        frame=_clip(window.box(enlarged.x, enlarged.y, enlarged.width, enlarged.height), window),
    )


def detail(placed: PlacedKernels, window: Window) -> Floorplan:
    """Draw a part of the fabric with kernels, labels and streams."""
    tiles = _tiles(placed, window)
    names = [row.kernel.name for row in placed.kernels]
    notes = [format_percent(row.figures.compute_utilization_percent, 0) for row in placed.kernels]
    return Floorplan(
        window,
        _outline(placed.fabric, window),
        _axes(placed.fabric, window),
        tiles,
        arrows=_arrows(placed.kernels, placed.edges, tiles),
        labels=place_labels([tile.box for tile in tiles], names, notes, window.area),
    )


def percent_bin(percent: float) -> int:
    """Return the color of a share on the scale, 0 to BINS - 1."""
    return min(BINS - 1, int(percent * BINS / 100))


def _tiles(placed: PlacedKernels, window: Window) -> tuple[Tile, ...]:
    room = placed.fabric.memory_per_pe_bytes
    wires = [100 * row.figures.transmission_cycles / placed.interval_cycles for row in placed.kernels]
    return tuple(
        Tile(
            index,
            window.box(row.rectangle.x, row.rectangle.y, row.rectangle.width, row.rectangle.height),
            percent_bin(row.figures.compute_utilization_percent),
            percent_bin(100 * row.memory_per_pe_bytes / room),
            percent_bin(wires[index]),
            wires[index],
            row.kernel.generated,
            row is placed.slowest,
        )
        for index, row in enumerate(placed.kernels)
    )


def _outline(fabric: Fabric, window: Window) -> Box:
    return _clip(window.box(0, 0, fabric.width, fabric.height), window)


def _clip(box: Box, window: Window) -> Box:
    """Return the visible part of a box."""
    area = window.area
    left, top = max(box.x, area.x), max(box.y, area.y)
    right = min(box.x + box.width, area.x + area.width)
    bottom = min(box.y + box.height, area.y + area.height)
    return Box(left, top, right - left, bottom - top)


def _arrows(
    kernels: Sequence[KernelReport], edges: Sequence[Edge], tiles: Sequence[Tile]
) -> tuple[Arrow, ...]:
    """Return long arrows first, so that short ones are drawn over them; in a small plan none cross."""
    order = {row.kernel.name: index for index, row in enumerate(kernels)}
    pairs = [(order[edge.src], order[edge.dst]) for edge in edges]
    boxes = [tile.box for tile in tiles]
    small = len(kernels) <= _SMALL and len(edges) <= _FEW
    paths = route_arrows(boxes, pairs) if small else [None] * len(pairs)
    found = []
    for edge, (src, dst), free_path in zip(edges, pairs, paths, strict=True):
        control = CONTROL.name in (kernels[src].kernel.family, kernels[dst].kernel.family)
        kind = "control" if control else "forward" if src < dst else "backward"
        path = free_path or _curve(boxes[src], boxes[dst])
        arrow = Arrow(src, dst, kind, path, edge.elements_per_sample, small and free_path is None)
        found.append((math.dist(boxes[src].center, boxes[dst].center), arrow))
    return tuple(arrow for _, arrow in sorted(found, key=lambda pair: -pair[0]))


def _curve(start: Box, end: Box) -> str:
    """Return a curve between two centers that bends to the right, so that opposite streams do not overlap."""
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
    """Return the multiples of `step` that are in a window and on the fabric."""
    start = max(0, math.ceil(first / step)) * step
    return list(range(start, int(min(last, limit)) + 1, step))


def _nice_step(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is at least `least`."""
    power: int = 10 ** max(0, math.floor(math.log10(max(least, 1))))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


CHARACTER_WIDTH = 6.9  # pixels of a character in the widest of the labels' monospace fonts
LINE_HEIGHT = 14.0

_PADDING = 5.0
_CALLOUT_GAP = 16.0
_MOST_CALLOUTS = 60


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def center(self) -> tuple[float, float]:
        """The center of the rectangle."""
        return self.x + self.width / 2, self.y + self.height / 2

    def overlaps(self, other: Box) -> bool:
        """Return True if the two share more than a border."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def contains(self, other: Box) -> bool:
        """Return True if no part of the other is outside this one."""
        return (
            self.x <= other.x
            and self.y <= other.y
            and other.x + other.width <= self.x + self.width
            and other.y + other.height <= self.y + self.height
        )


@dataclass(frozen=True)
class Label:
    """The name of a kernel on a drawing.

    Attributes:
        index: index of the kernel.
        x: start of the text.
        y: base line; of upright text the lower end of the left side.
        text: the name, the name with the kernel's number, or only the number.
        note: a second line below, or empty.
        upright: whether the text runs downwards.
        leader: line (x0, y0, x1, y1) from the label to its kernel, if the label is outside of it.
    """

    index: int
    x: float
    y: float
    text: str
    note: str = ""
    upright: bool = False
    leader: tuple[float, float, float, float] | None = None


def place_labels(
    boxes: Sequence[Box], names: Sequence[str], notes: Sequence[str], area: Box
) -> tuple[Label, ...]:
    """Place names inside the boxes; those of small boxes next to them if they cover nothing there.

    Args:
        boxes: all kernels.
        names: names of the kernels.
        notes: second lines, shown where they fit.
        area: bounds of the labels.
    """
    inside = [
        _place_inside(index, *parts) for index, parts in enumerate(zip(boxes, names, notes, strict=True))
    ]
    # A name next to its kernel says more than a number inside it.
    short = [
        index
        for index, label in enumerate(inside)
        if label is None or (label.text == str(index + 1) and label.text != names[index])
    ]
    if len(short) <= _MOST_CALLOUTS:
        taken = list(boxes)
        for index in short:
            inside[index] = _place_callout(index, boxes[index], names[index], taken, area) or inside[index]
    return tuple(label for label in inside if label is not None)


def _place_inside(index: int, box: Box, name: str, note: str) -> Label | None:
    """Return the longest text that fits, horizontal if possible, else upright."""
    number = str(index + 1)
    for text in (f"{number} {name}", name):
        length = _width(text) + 2 * _PADDING
        if length <= box.width and box.height >= LINE_HEIGHT:
            shown = note if box.height >= 2 * LINE_HEIGHT + 2 else ""
            return Label(index, box.x + _PADDING, box.y + LINE_HEIGHT - 1, text, shown)
        if length <= box.height and box.width >= LINE_HEIGHT:
            shown = note if box.width >= 3 * LINE_HEIGHT else ""
            x = (
                box.x + min(6.0, box.width / 2 - 4) + (LINE_HEIGHT - 1 if shown else 0)
            )  # the second line is to the left
            return Label(index, x, box.y + _PADDING, text, shown, upright=True)
    room = box.width - _width(number)
    if room >= 2 and box.height >= LINE_HEIGHT:
        return Label(index, box.x + min(_PADDING, room / 2), box.y + LINE_HEIGHT - 1, number)
    return None


def _place_callout(index: int, box: Box, name: str, taken: list[Box], area: Box) -> Label | None:
    """Place a label next to a box where it covers nothing, and add it to `taken`; None if nowhere."""
    text = f"{index + 1} {name}"
    for place, leader in _callout_places(box, _width(text) + 4):
        line = _leader_box(leader)
        if area.contains(place) and not any(place.overlaps(other) or line.overlaps(other) for other in taken):
            taken.append(place)
            return Label(index, place.x + 2, place.y + LINE_HEIGHT - 3.5, text, leader=leader)
    return None


def _callout_places(box: Box, width: float) -> Iterator[tuple[Box, tuple[float, float, float, float]]]:
    """Yield places for a label, the nearest first, each with the leader line to it."""
    center_x, center_y = box.center
    right, bottom = box.x + box.width, box.y + box.height
    for step in range(5):
        for shift in (0.0, -step * LINE_HEIGHT, step * LINE_HEIGHT) if step else (0.0,):
            top = center_y + shift - LINE_HEIGHT / 2
            gap = _CALLOUT_GAP + 3 * step
            yield Box(right + gap, top, width, LINE_HEIGHT), (right, center_y, right + gap, center_y + shift)
            left = box.x - gap
            yield Box(left - width, top, width, LINE_HEIGHT), (box.x, center_y, left, center_y + shift)
        below = bottom + _CALLOUT_GAP + step * LINE_HEIGHT
        yield Box(center_x - width / 2, below, width, LINE_HEIGHT), (center_x, bottom, center_x, below)
        above = box.y - _CALLOUT_GAP - step * LINE_HEIGHT
        place = Box(center_x - width / 2, above - LINE_HEIGHT, width, LINE_HEIGHT)
        yield place, (center_x, box.y, center_x, above)


def _leader_box(line: tuple[float, float, float, float]) -> Box:
    """Return the bounds of a leader line without its ends, which touch the kernel and the label."""
    x0, y0, x1, y1 = line
    left, top = min(x0, x1), min(y0, y1)
    return Box(left + 0.5, top + 0.5, max(abs(x1 - x0) - 1, 0.5), max(abs(y1 - y0) - 1, 0.5))


def _width(text: str) -> float:
    return len(text) * CHARACTER_WIDTH


Points = NDArray[np.float64]

_PORTS = (0.5, 0.3, 0.7, 0.12, 0.88)  # ends of arrows in a box, as shares of its sides
_BOWS = (0.0, 0.12, -0.12, 0.3, -0.3, 0.6, -0.6)  # deviation from a straight line, as a share of its length
_PIECES = 8  # straight pieces of a curve
_APART = 5.0  # least distance of arrows in pixels, so that they look like two
_MOST_TRIES = 150
_BENT = 0.35  # cost of a bow, as a share of the length: straight arrows are tried first


def route_arrows(boxes: Sequence[Box], pairs: Sequence[tuple[int, int]]) -> list[str | None]:
    """Route arrows so that none crosses or touches another one.

    Args:
        boxes: the boxes that arrows connect.
        pairs: indices of the first and last box of each arrow.

    Returns:
        SVG paths in the order of the pairs; None for an arrow without a free path.
    """
    found: list[str | None] = [None] * len(pairs)
    taken = np.empty((0, 2, 2))
    distances = [math.dist(boxes[first].center, boxes[last].center) for first, last in pairs]
    for index in sorted(range(len(pairs)), key=lambda i: distances[i]):
        start, end = (boxes[box] for box in pairs[index])
        for curve in _candidate_curves(start, end):
            line = _flatten_curve(curve)
            if not _is_too_close(line, taken):
                found[index] = "M{} {}Q{} {} {} {}".format(*(f"{value:.1f}" for value in curve.ravel()))
                taken = np.concatenate([taken, line])
                break
    return found


def _candidate_curves(start: Box, end: Box) -> Iterator[Points]:
    """Yield curves between two boxes as start, middle and end; the best ones first."""
    first, last = (np.array(_lattice(box)) for box in (start, end))
    first, last = np.repeat(first, len(last), axis=0), np.tile(last, (len(first), 1))
    along = last - first
    length = np.hypot(along[:, 0], along[:, 1])
    first, last, along, length = (part[length >= 2 * _APART] for part in (first, last, along, length))
    bows = np.array(_BOWS)
    cost = length[:, None] * (1 + _BENT * np.abs(bows))
    right = np.stack([-along[:, 1], along[:, 0]], axis=1)
    for rank in np.argsort(cost, axis=None, kind="stable")[:_MOST_TRIES]:
        place, bow = divmod(int(rank), len(bows))
        middle = (first[place] + last[place]) / 2 + bows[bow] * right[place]
        yield np.array([first[place], middle, last[place]])


def _lattice(box: Box) -> list[tuple[float, float]]:
    """Return the possible ends of arrows: a lattice of points that are `_APART`."""
    columns = [box.x + share * box.width for share in _spread_ports(box.width)]
    rows = [box.y + share * box.height for share in _spread_ports(box.height)]
    return list(product(columns, rows))


def _spread_ports(side: float) -> list[float]:
    chosen: list[float] = []
    for share in _PORTS:
        if all(abs(share - other) * side >= _APART for other in chosen):
            chosen.append(share)
    return chosen


def _flatten_curve(curve: Points) -> Points:
    """Convert a quadratic curve to short straight pieces, [pieces, 2 ends, 2 coordinates]."""
    at = np.linspace(0, 1, _PIECES + 1)[:, None]
    points = (1 - at) ** 2 * curve[0] + 2 * at * (1 - at) * curve[1] + at**2 * curve[2]
    return np.stack([points[:-1], points[1:]], axis=1)


def _is_too_close(line: Points, taken: Points) -> bool:
    """Return True if a line crosses another one, or is closer to it than `_APART`."""
    # Most pieces are excluded by their bounds.
    low, high = line.min(axis=(0, 1)) - _APART, line.max(axis=(0, 1)) + _APART
    near = (taken.max(axis=1) >= low) & (taken.min(axis=1) <= high)
    others: Points = taken[near.all(axis=1)]
    if not len(others):
        return False
    own, others = line[:, None], others[None]
    ends = (own[:, :, 0], others), (own[:, :, 1], others), (others[:, :, 0], own), (others[:, :, 1], own)
    is_near = any(bool((_point_distances(*pair) < _APART).any()) for pair in ends)
    return is_near or bool(_crosses(own, others).any())


def _point_distances(points: Points, pieces: Points) -> Points:
    """Return the distances of points from straight pieces."""
    begin, along = pieces[:, :, 0], pieces[:, :, 1] - pieces[:, :, 0]
    share = ((points - begin) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-12)
    nearest = begin + np.clip(share, 0, 1)[..., None] * along
    distances: Points = np.sqrt(((points - nearest) ** 2).sum(-1))
    return distances


def _crosses(a: Points, b: Points) -> NDArray[np.bool_]:
    def side(piece: Points, point: Points) -> Points:
        along, to = piece[:, :, 1] - piece[:, :, 0], point - piece[:, :, 0]
        turned: Points = along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0]
        return turned

    across: NDArray[np.bool_] = (side(a, b[:, :, 0]) * side(a, b[:, :, 1]) < 0) & (
        side(b, a[:, :, 0]) * side(b, a[:, :, 1]) < 0
    )
    return across
