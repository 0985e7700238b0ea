"""Packing of kernels with a choice of rectangles into a box: shelves along the data flow, and a skyline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cgc.placement.shapes import Shape, ShapeList


class Spot(NamedTuple):
    """A rectangle at its place."""

    x: int
    y: int
    shape: Shape


Packing = list[Spot]
"""Spots in the order of the kernels."""


def packings(kernels: Sequence[ShapeList], width: int, height: int) -> Iterator[Packing]:
    """Tries packings of all kernels into a box, those that follow the data flow first.

    Args:
        kernels: the rectangles of each kernel, in data-flow order.
        width: PEs of the box in x.
        height: PEs of the box in y.

    Yields:
        Every packing that succeeds; none where the kernels do not fit in any of the ways that are tried.
    """
    shelves = shelf_heights(kernels, height)
    flow = list(range(len(kernels)))
    for shelf in shelves:
        yield from _present(pack_shelves(kernels, flow, width, height, shelf))
    by_size = sorted(flow, key=lambda index: (-kernels[index].smallest.area, index))
    for shelf in shelves:
        yield from _present(pack_shelves(kernels, by_size, width, height, shelf))
    yield from _present(pack_skyline(kernels, by_size, width, height))


def _present(packing: Packing | None) -> Iterator[Packing]:
    if packing is not None:
        yield packing


def shelf_heights(kernels: Sequence[ShapeList], height: int) -> list[int]:
    """Shelf heights to try: the box cut into 1 to 8 equal shelves that can hold the highest kernel."""
    least = max((shapes.heights[0] for shapes in kernels), default=1)
    return [shelf for parts in range(1, 9) if (shelf := height // parts) >= least]


def pack_shelves(
    kernels: Sequence[ShapeList], order: Sequence[int], width: int, height: int, shelf_height: int
) -> Packing | None:
    """Fills shelves of columns in the given order; every other shelf runs backwards, to keep wires short.

    Returns:
        A spot for each kernel, or None where the box is full before the last one.
    """
    spots: dict[int, Spot] = {}
    shelf_y = 0
    backwards = False
    position = 0
    while position < len(order):
        room = min(shelf_height, height - shelf_y)
        placed = _fill_shelf(kernels, order[position:], width, room)
        if not placed:
            return None
        for index, (x, y, shape) in zip(order[position:], placed, strict=False):
            spots[index] = Spot(width - x - shape.width if backwards else x, shelf_y + y, shape)
        position += len(placed)
        shelf_y += max(spot.y + spot.shape.height for spot in placed)
        backwards = not backwards
    return [spots[index] for index in range(len(kernels))]


def _fill_shelf(kernels: Sequence[ShapeList], order: Sequence[int], width: int, height: int) -> Packing:
    """As many kernels as go on one shelf, the next one on top of the last where its column has room."""
    placed: Packing = []
    column_x = column_width = filled = 0
    for index in order:
        shape = kernels[index].flattest(column_width, height - filled)
        if shape is None:
            column_x += column_width
            shape = kernels[index].column(height)
            if shape is None or column_x + shape.width > width:
                # A narrower rectangle may still go into what is left at the end of the shelf.
                shape = kernels[index].flattest(width - column_x, height)
            if shape is None:
                break
            column_width, filled = shape.width, 0
        placed.append(Spot(column_x, filled, shape))
        filled += shape.height
    return placed


class _Step(NamedTuple):
    """A piece of the skyline: x .. x + width at height y."""

    x: int
    y: int
    width: int


def pack_skyline(
    kernels: Sequence[ShapeList], order: Sequence[int], width: int, height: int, choices: int = 5
) -> Packing | None:
    """Puts each kernel where its top stays lowest, of equal ones where it buries the fewest PEs.

    Args:
        kernels: the rectangles of each kernel.
        order: the order to place them in, as a rule by falling area.
        width: PEs of the box in x.
        height: PEs of the box in y.
        choices: rectangles to try of each kernel.
    """
    steps = [_Step(0, 0, width)]
    spots: dict[int, Spot] = {}
    for index in order:
        best: tuple[tuple[int, int, int], Spot, int] | None = None
        for shape in kernels[index].spread(choices):
            for start in range(len(steps)):
                found = _rest(steps, start, shape.width, width)
                if found is None or found[0] + shape.height > height:
                    continue
                y, buried = found
                score = (y + shape.height, buried, steps[start].x)
                if best is None or score < best[0]:
                    best = (score, Spot(steps[start].x, y, shape), start)
        if best is None:
            return None
        spots[index] = best[1]
        steps = _raised(steps, best[1])
    return [spots[index] for index in range(len(kernels))]


def _rest(steps: Sequence[_Step], start: int, width: int, limit: int) -> tuple[int, int] | None:
    """Height at which a rectangle with its left side at step `start` rests, and the PEs lost below it."""
    left = steps[start].x
    if left + width > limit:
        return None
    covered = []
    for step in steps[start:]:
        if step.x >= left + width:
            break
        covered.append(step)
    y = max(step.y for step in covered)
    lost = sum((y - step.y) * (min(step.x + step.width, left + width) - step.x) for step in covered)
    return y, lost


def _raised(steps: Sequence[_Step], spot: Spot) -> list[_Step]:
    """The skyline after a rectangle was put on it."""
    left, right = spot.x, spot.x + spot.shape.width
    before = [_Step(s.x, s.y, min(s.x + s.width, left) - s.x) for s in steps if s.x < left]
    after = [
        _Step(max(s.x, right), s.y, s.x + s.width - max(s.x, right)) for s in steps if s.x + s.width > right
    ]
    return [*before, _Step(left, spot.y + spot.shape.height, spot.shape.width), *after]
