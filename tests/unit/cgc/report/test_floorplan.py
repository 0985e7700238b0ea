"""The geometry of the floorplan."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from cgc.placement.model import Rect
from cgc.report.floorplan import (
    CHARACTER_WIDTH,
    Box,
    Label,
    percent_bin,
    place_labels,
    used_window,
    whole_window,
)
from cs_toolkit.fabric import Fabric, load_fabric

WIDTH = 900.0
AREA = Box(40, 22, 840, 400)


@pytest.fixture
def fabric() -> Fabric:
    return load_fabric("cs2")


@pytest.mark.parametrize(
    "rects",
    [
        [Rect(0, 0, 39, 43), Rect(72, 14, 1, 1)],
        [Rect(739, 415, 1, 1)],
        [Rect(300, 0, 3, 300)],
        [Rect(0, 400, 480, 2)],
        [Rect(100, 380, 300, 36)],
    ],
)
def test_the_enlarged_part_shows_every_kernel_whole(rects: list[Rect], fabric: Fabric) -> None:
    window = used_window(rects, fabric, WIDTH)
    assert window is not None
    for rect in rects:
        assert window.area.contains(window.box(rect.x, rect.y, rect.width, rect.height))
    assert window.svg_width == pytest.approx(WIDTH)
    assert 200 < window.svg_height < WIDTH
    assert window.pixels_per_pe > 1.3 * whole_window(fabric, WIDTH).pixels_per_pe


def test_a_full_wafer_is_not_enlarged(fabric: Fabric) -> None:
    assert used_window([Rect(0, 0, 700, 400)], fabric, WIDTH) is None
    assert used_window([Rect(0, 0, 1, 1), Rect(739, 415, 1, 1)], fabric, WIDTH) is None


def test_one_pe_of_the_enlarged_part_is_the_same_length_in_both_directions(fabric: Fabric) -> None:
    window = whole_window(fabric, WIDTH)
    box = window.box(0, 0, fabric.width, fabric.height)
    assert box.width / box.height == pytest.approx(fabric.width / fabric.height)
    assert box == window.area


@pytest.mark.parametrize(("percent", "step"), [(0, 0), (9.99, 0), (10, 1), (55, 5), (99.99, 9), (100, 9)])
def test_colors_are_tenths(percent: float, step: int) -> None:
    assert percent_bin(percent) == step


def text_box(label: Label) -> Box:
    length = len(label.text) * CHARACTER_WIDTH
    if label.upright:
        return Box(label.x - 3, label.y, 11, length)
    return Box(label.x, label.y - 9, length, 11)


def test_names_fit_into_their_rectangles_or_are_next_to_them() -> None:
    boxes = [Box(40, 22, 300, 200), Box(340, 22, 20, 200), Box(360, 22, 16, 18), Box(500, 300, 6, 6)]
    labels = {
        label.index: label for label in place_labels(boxes, ["fc1", "add", "norm", "loss"], [""] * 4, AREA)
    }
    assert (labels[0].text, labels[0].upright) == ("1 fc1", False)
    assert (labels[1].text, labels[1].upright) == ("2 add", True)
    assert labels[2].text == "3 norm", "a name says more than the number inside"
    assert labels[3].text == "4 loss"
    assert labels[3].leader is not None


def test_labels_never_cover_another_kernel_or_label() -> None:
    generator = random.Random(7)
    for _ in range(20):
        boxes: list[Box] = []
        while len(boxes) < 25:
            width, height = generator.choice([(4, 4), (9, 60), (30, 30), (120, 40), (16, 150)])
            box = Box(generator.uniform(40, 760), generator.uniform(22, 270), width, height)
            if not any(box.overlaps(other) for other in boxes):
                boxes.append(box)
        labels = place_labels(boxes, [f"kernel{index}" for index in range(25)], ["50 %"] * 25, AREA)
        assert len(labels) > 10
        for label in labels:
            others = [box for index, box in enumerate(boxes) if index != label.index]
            assert not any(text_box(label).overlaps(box) for box in others)
            assert AREA.contains(text_box(label))
        for one, other in combinations(labels, 2):
            assert not text_box(one).overlaps(text_box(other))


def test_a_flat_kernel_between_wide_ones_is_named_next_to_its_end(fabric: Fabric) -> None:
    """The kernel is a row of PEs between two fully connected kernels, as the bottleneck of FC-MNIST."""
    rects = [Rect(9, 0, 135, 15), Rect(0, 15, 152, 1), Rect(12, 16, 129, 11)]
    window = used_window(rects, fabric, WIDTH)
    assert window is not None
    boxes = [window.box(rect.x, rect.y, rect.width, rect.height) for rect in rects]
    labels = place_labels(boxes, ["fc1", "dropout1", "fc2"], ["50 %"] * 3, window.area)
    assert sorted(label.text for label in labels) == ["1 fc1", "2 dropout1", "3 fc2"]


def test_no_label_is_better_than_one_over_other_kernels() -> None:
    grid = [Box(40 + 10 * column, 22 + 10 * row, 10, 10) for column in range(84) for row in range(40)]
    assert place_labels(grid[:30], ["k"] * 30, [""] * 30, Box(40, 22, 10, 300)) == ()
