from __future__ import annotations

from itertools import combinations

import pytest

from cgc.placement.model import Rect
from cgc.placement.packing import Packing, pack_shelves, pack_skyline, packings
from cgc.placement.shapes import Shape, ShapeList
from cgc.placement.wires import shorten_wires, wire_length


def fixed(*sizes: tuple[int, int]) -> list[ShapeList]:
    return [ShapeList((Shape(width, height, 0),)) for width, height in sizes]


def rects(packing: Packing) -> list[Rect]:
    return [Rect(spot.x, spot.y, spot.shape.width, spot.shape.height) for spot in packing]


def assert_packed(packing: Packing | None, width: int, height: int) -> None:
    assert packing is not None
    placed = rects(packing)
    assert all(rect.x >= 0 and rect.x + rect.width <= width for rect in placed)
    assert all(rect.y >= 0 and rect.y + rect.height <= height for rect in placed)
    assert not any(a.overlaps(b) for a, b in combinations(placed, 2))


def test_shelves_follow_the_order_and_every_other_one_runs_back() -> None:
    packing = pack_shelves(fixed(*[(5, 4)] * 4), range(4), width=10, height=8, shelf_height=4)
    assert packing is not None
    assert [(rect.x, rect.y) for rect in rects(packing)] == [(0, 0), (5, 0), (5, 4), (0, 4)]


def test_low_kernels_share_a_column() -> None:
    packing = pack_shelves(fixed((4, 2), (4, 1), (3, 1)), range(3), width=4, height=4, shelf_height=4)
    assert_packed(packing, 4, 4)


def test_a_full_box_packs_without_a_gap() -> None:
    sizes = [(4, 6), (4, 6), (8, 2), (2, 8), (2, 8)]
    packing = pack_skyline(fixed(*sizes), range(5), width=12, height=8)
    assert_packed(packing, 12, 8)


def test_a_kernel_takes_the_proportions_that_fit() -> None:
    choice = ShapeList((Shape(12, 1, 0), Shape(4, 3, 1), Shape(1, 12, 2)))
    for packing in packings([*fixed((8, 3)), choice], 12, 3):
        assert packing[1].shape == Shape(4, 3, 1)
        assert_packed(packing, 12, 3)


@pytest.mark.parametrize("sizes", [[(5, 5), (5, 5)], [(9, 1)], [(1, 9)]])
def test_what_does_not_fit_gives_no_packing(sizes: list[tuple[int, int]]) -> None:
    assert not list(packings(fixed(*sizes), 8, 8))


def test_swapping_equal_rectangles_shortens_wires() -> None:
    packing = pack_shelves(fixed(*[(2, 2)] * 4), range(4), width=8, height=2, shelf_height=2)
    assert packing is not None
    # A chain 0 - 2 - 1 - 3, placed in the order 0 1 2 3.
    edges = [{2: 1}, {2: 1, 3: 1}, {0: 1, 1: 1}, {1: 1}]
    assert wire_length(packing, edges) == 4 + 2 + 4
    shorter = shorten_wires(packing, edges)
    assert wire_length(shorter, edges) == 2 + 2 + 2
    assert_packed(shorter, 8, 2)
