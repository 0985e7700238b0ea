"""Arrows of small plans do not cross."""

from __future__ import annotations

import random
import re
from itertools import combinations, pairwise

import numpy as np
import pytest

from cgc.report.floorplan import Box, route_arrows

Point = tuple[float, float]


def points(path: str) -> list[Point]:
    """Places on a path, by its own formula."""
    x0, y0, x1, y1, x2, y2 = map(float, re.findall(r"-?[\d.]+", path))
    return [
        (
            (1 - t) ** 2 * x0 + 2 * t * (1 - t) * x1 + t * t * x2,
            (1 - t) ** 2 * y0 + 2 * t * (1 - t) * y1 + t * t * y2,
        )
        for t in np.linspace(0, 1, 9)
    ]


def cross(a: str, b: str) -> bool:
    return any(_meet(p, q) for p in pairwise(points(a)) for q in pairwise(points(b)))


def _meet(a: tuple[Point, Point], b: tuple[Point, Point]) -> bool:
    def side(piece: tuple[Point, Point], point: Point) -> float:
        (x0, y0), (x1, y1) = piece
        return (x1 - x0) * (point[1] - y0) - (y1 - y0) * (point[0] - x0)

    return side(a, b[0]) * side(a, b[1]) < 0 and side(b, a[0]) * side(b, a[1]) < 0


def inside(box: Box, point: Point) -> bool:
    return box.contains(Box(point[0] - 0.1, point[1] - 0.1, 0.2, 0.2))


@pytest.mark.parametrize("seed", range(3))
def test_arrows_join_their_boxes_and_do_not_cross(seed: int) -> None:
    draw = random.Random(seed)
    boxes = [Box(60 * (i % 4), 60 * (i // 4), draw.randint(20, 55), draw.randint(20, 55)) for i in range(12)]
    pairs = [(i, i + 1) for i in range(11)] + [(i + 1, i) for i in range(11)]
    paths = route_arrows(boxes, pairs)
    drawn = [(path, pair) for path, pair in zip(paths, pairs, strict=True) if path is not None]
    assert len(drawn) >= 0.8 * len(pairs)
    for path, (src, dst) in drawn:
        assert inside(boxes[src], points(path)[0])
        assert inside(boxes[dst], points(path)[-1])
    for (one, _), (other, _) in combinations(drawn, 2):
        assert not cross(one, other)


def test_an_arrow_without_a_way_is_left_out() -> None:
    """Four thin rows of a plan, all to all: not all of these arrows can be drawn on a plane of that size."""
    boxes = [Box(0, 12 * i, 300, 2) for i in range(4)]
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j] * 2
    paths = route_arrows(boxes, pairs)
    assert None in paths
    drawn = [path for path in paths if path is not None]
    assert drawn
    assert not any(cross(one, other) for one, other in combinations(drawn, 2))
