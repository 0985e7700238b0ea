"""Where the names of kernels go on a floorplan: inside their rectangles, or beside tiny ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CHARACTER_WIDTH = 6.9
"""Pixels of a character of the labels' monospace font, at most."""
LINE_HEIGHT = 14.0

_PADDING = 5.0
_CALLOUT_GAP = 16.0
_MOST_CALLOUTS = 40


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def center(self) -> tuple[float, float]:
        """Its centre."""
        return self.x + self.width / 2, self.y + self.height / 2

    def overlaps(self, other: Box) -> bool:
        """Whether the two share more than a border."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def contains(self, other: Box) -> bool:
        """Whether no part of the other is outside."""
        return (
            self.x <= other.x
            and self.y <= other.y
            and other.x + other.width <= self.x + self.width
            and other.y + other.height <= self.y + self.height
        )


@dataclass(frozen=True)
class Label:
    """Text of a kernel.

    Attributes:
        index: of the kernel.
        x: where the text begins.
        y: its base line; of upright text the lower end of the left side.
        text: the name, with the kernel's number, or the number alone.
        note: a second line below, or empty.
        upright: the text runs downwards.
        leader: line (x0, y0, x1, y1) from the label to its kernel, if it lies beside it.
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
    """Labels inside the boxes, and beside boxes that are too small where they cover nothing.

    Args:
        boxes: of all kernels.
        names: of the kernels.
        notes: second lines, shown where there is room for them.
        area: that labels must stay in.
    """
    inside = [_inside(index, *parts) for index, parts in enumerate(zip(boxes, names, notes, strict=True))]
    missing = [index for index, label in enumerate(inside) if label is None]
    found = [label for label in inside if label is not None]
    if len(missing) <= _MOST_CALLOUTS:
        taken = list(boxes)
        for index in missing:
            label = _callout(index, boxes[index], names[index], taken, area)
            if label is not None:
                found.append(label)
    return tuple(found)


def _inside(index: int, box: Box, name: str, note: str) -> Label | None:
    """The longest text that fits; level if possible, else upright."""
    number = str(index + 1)
    for text in (f"{number} {name}", name):
        length = _width(text) + 2 * _PADDING
        if length <= box.width and box.height >= LINE_HEIGHT:
            shown = note if box.height >= 2 * LINE_HEIGHT + 2 else ""
            return Label(index, box.x + _PADDING, box.y + LINE_HEIGHT - 1, text, shown)
        if length <= box.height and box.width >= LINE_HEIGHT:
            shown = note if box.width >= 3 * LINE_HEIGHT else ""
            x = box.x + min(6.0, box.width / 2 - 4) + (LINE_HEIGHT - 1 if shown else 0)  # lines run leftwards
            return Label(index, x, box.y + _PADDING, text, shown, upright=True)
    room = box.width - _width(number)
    if room >= 2 and box.height >= LINE_HEIGHT:
        return Label(index, box.x + min(_PADDING, room / 2), box.y + LINE_HEIGHT - 1, number)
    return None


def _callout(index: int, box: Box, name: str, taken: list[Box], area: Box) -> Label | None:
    """A label beside a box, at the first place where it covers nothing; that place is taken then."""
    text = f"{index + 1} {name}"
    for place, leader in _places_beside(box, _width(text) + 4):
        line = _around(leader)
        if area.contains(place) and not any(place.overlaps(other) or line.overlaps(other) for other in taken):
            taken.append(place)
            return Label(index, place.x + 2, place.y + LINE_HEIGHT - 3.5, text, leader=leader)
    return None


def _places_beside(box: Box, width: float) -> Iterator[tuple[Box, tuple[float, float, float, float]]]:
    """Places for a label, the nearest first, each with the line that leads to it."""
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


def _around(line: tuple[float, float, float, float]) -> Box:
    """The box that a leader line takes, without its ends, which touch the kernel and the label."""
    x0, y0, x1, y1 = line
    left, top = min(x0, x1), min(y0, y1)
    return Box(left + 0.5, top + 0.5, max(abs(x1 - x0) - 1, 0.5), max(abs(y1 - y0) - 1, 0.5))


def _width(text: str) -> float:
    return len(text) * CHARACTER_WIDTH
