"""Arrows between rectangles that do not cross each other, where there are few of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cgc.report.labels import Box

Points = NDArray[np.float64]

_PORTS = (0.5, 0.3, 0.7, 0.12, 0.88)
"""Places in a box, as shares of its sides."""
_BOWS = (0.0, 0.12, -0.12, 0.3, -0.3, 0.6, -0.6)
"""How far a curve leaves the straight line, as a share of its length."""
_PIECES = 8
_APART = 5.0
"""Pixels between two arrows that are not to look like one."""
_MOST_TRIES = 150
_BENT = 0.35
"""What a bow costs, as a share of the length: straight arrows are tried first."""


def routed(boxes: Sequence[Box], pairs: Sequence[tuple[int, int]]) -> list[str | None]:
    """Paths of arrows, none of which crosses or touches another one.

    Args:
        boxes: what arrows join.
        pairs: from where to where.

    Returns:
        SVG paths in the order of the pairs; None for an arrow that has no way between the others.
    """
    found: list[str | None] = [None] * len(pairs)
    taken = np.empty((0, 2, 2))
    for index in sorted(range(len(pairs)), key=lambda i: _distance(boxes, pairs[i])):
        start, end = (boxes[box] for box in pairs[index])
        for curve in _ways(start, end):
            line = _line(curve)
            if not _meets(line, taken):
                found[index] = "M{} {}Q{} {} {} {}".format(*(f"{value:.1f}" for value in curve.ravel()))
                taken = np.concatenate([taken, line])
                break
    return found


def _distance(boxes: Sequence[Box], pair: tuple[int, int]) -> float:
    return math.dist(boxes[pair[0]].center, boxes[pair[1]].center)


def _ways(start: Box, end: Box) -> Iterator[Points]:
    """Curves from a place in one box to one in the other, by start, middle and end; the best first."""
    first, last = (np.array(_places(box)) for box in (start, end))
    first, last = np.repeat(first, len(last), axis=0), np.tile(last, (len(first), 1))
    along = last - first
    length = np.hypot(along[:, 0], along[:, 1])
    first, last, along, length = (part[length >= 2 * _APART] for part in (first, last, along, length))
    bows = np.array(_BOWS)
    cost = length[:, None] * (1 + _BENT * np.abs(bows))
    right = np.stack([-along[:, 1], along[:, 0]], axis=1)
    for way in np.argsort(cost, axis=None, kind="stable")[:_MOST_TRIES]:
        place, bow = divmod(int(way), len(bows))
        middle = (first[place] + last[place]) / 2 + bows[bow] * right[place]
        yield np.array([first[place], middle, last[place]])


def _places(box: Box) -> list[tuple[float, float]]:
    """Where arrows may begin and end: on a lattice, whose points are apart."""
    columns = [box.x + share * box.width for share in _apart(box.width)]
    rows = [box.y + share * box.height for share in _apart(box.height)]
    return list(product(columns, rows))


def _apart(side: float) -> list[float]:
    chosen: list[float] = []
    for share in _PORTS:
        if all(abs(share - other) * side >= _APART for other in chosen):
            chosen.append(share)
    return chosen


def _line(curve: Points) -> Points:
    """A quadratic curve as short straight pieces, [pieces, 2 ends, 2 coordinates]."""
    at = np.linspace(0, 1, _PIECES + 1)[:, None]
    points = (1 - at) ** 2 * curve[0] + 2 * at * (1 - at) * curve[1] + at**2 * curve[2]
    return np.stack([points[:-1], points[1:]], axis=1)


def _meets(line: Points, taken: Points) -> bool:
    """Whether a line comes nearer to others than `_APART`, or crosses one."""
    others = _around(line, taken)
    if not len(others):
        return False
    own, others = line[:, None], others[None]
    ends = (own[:, :, 0], others), (own[:, :, 1], others), (others[:, :, 0], own), (others[:, :, 1], own)
    near = any(bool((_from_points(*pair) < _APART).any()) for pair in ends)
    return near or bool(_crosses(own, others).any())


def _around(line: Points, taken: Points) -> Points:
    """The pieces that may come nearer to a line than `_APART`."""
    low, high = line.min(axis=(0, 1)) - _APART, line.max(axis=(0, 1)) + _APART
    near = (taken.max(axis=1) >= low) & (taken.min(axis=1) <= high)
    found: Points = taken[near.all(axis=1)]
    return found


def _from_points(points: Points, pieces: Points) -> Points:
    """Distances of points from straight pieces."""
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
