"""Formulas, curves and bounds of the contest's kernels."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.ispd2020.bounds import bounds
from benchmarks.ispd2020.curves import KernelCurves, graph_curves
from benchmarks.ispd2020.format import ContestError, parse_graph
from benchmarks.ispd2020.model import Convolution, Splits, block_kernel, conv_kernel
from cgc.placement.engine.tree import NO_EXTENT

HEADER = "(*\ntest=t\nwidth={0}\nheight={1}\nwdeltat=1\nwlength=1\nwadapter=0\nmemlimit={2}\n*)\n"


def test_convolution_of_the_published_example() -> None:
    found = Convolution(14, 14, 1024, 512).performance(1, 2, 34, 34)
    assert (found.height, found.width, found.time) == (70, 102, 48608)
    assert found.memory == pytest.approx(1929.3, abs=0.05)


def test_stride_divides_the_time_by_its_square() -> None:
    assert Convolution(28, 28, 4, 4, 3, 3, 2).performance(1, 1, 1, 1).time == 28 * 28 * 16 * 9 / 4


def test_dblock_is_as_wide_as_its_parts_together_and_as_slow_as_the_slowest() -> None:
    block = block_kernel("k", "dblock", 7, 7, 64)
    found = block.performance(Splits(1, 1, (8, 4, 2), (2, 4, 8)))
    assert (found.height, found.width) == (9, 3 * 14)
    assert found.time == max(49 * 8 * 8, 49 * 4 * 4 * 9, 49 * 8 * 8)


def test_cblock_halves_the_image_after_its_second_convolution() -> None:
    block = block_kernel("k", "cblock", 14, 14, 64)
    assert [(c.rows, c.inputs, c.outputs, c.stride) for c in block.convolutions] == [
        (14, 32, 16, 1),
        (14, 16, 16, 2),
        (7, 16, 64, 1),
        (14, 32, 64, 2),
    ]


@pytest.mark.parametrize("sizes", [{"T": 2, "U": 1}, {"H": 0}])
def test_impossible_convolutions_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"strides|at least 1"):
        conv_kernel("k", {**dict.fromkeys("HWCKRSTU", 1), **sizes})


@pytest.mark.parametrize(
    ("conv", "memlimit"),
    [
        (Convolution(7, 5, 6, 8, 3, 3), 1e9),
        (Convolution(6, 6, 9, 4), 60.0),
        (Convolution(4, 8, 5, 7, 3, 3, 2), 90.0),
    ],
)
def test_curves_are_as_good_as_trying_all_arguments(conv: Convolution, memlimit: float) -> None:
    limit = 40
    every = [
        conv.performance(*splits)
        for splits in product(
            range(1, conv.rows + 1),
            range(1, conv.columns + 1),
            range(1, conv.inputs + 1),
            range(1, conv.outputs + 1),
        )
    ]
    every = [item for item in every if item.memory <= memlimit]
    curves = KernelCurves([conv], limit, limit, memlimit)
    for target in (20, 55, 130, 400, 2000, 20000):
        kept = [item for item in every if item.time <= target]
        for height in range(limit + 1):
            least = min((item.width for item in kept if item.height <= height), default=NO_EXTENT)
            assert min(curves.at(target).upright[height], 1000) == min(least, 1000)
        options = curves.options(target, 20, 30)
        for splits, rotated in options:
            found = conv.performance(splits.rows, splits.columns, splits.inputs[0], splits.outputs[0])
            width, height = (found.height, found.width) if rotated else (found.width, found.height)
            assert (width <= 20, height <= 30, found.time <= target, found.memory <= memlimit) == (True,) * 4
        assert bool(options) == any(
            (item.width <= 20 and item.height <= 30) or (item.height <= 20 and item.width <= 30)
            for item in kept
        )


def test_bounds_hold_for_one_kernel_and_are_reached() -> None:
    graph = parse_graph(HEADER.format(12, 9, 1000) + "conv[1] W=4 H=4 R=1 S=1 C=4 K=4 T=1 U=1\n")
    found = bounds(graph, graph_curves(graph.kernels, 12, 9, 1000))
    # k' = 4 is all of the width; h'w' = 4 and c' = 1 take 8 of the height and leave 4 points x 4 channels.
    assert 15.99 < found.time <= 16
    assert found.objective == pytest.approx(found.time)


def test_a_kernel_too_big_for_the_fabric_is_named() -> None:
    graph = parse_graph(HEADER.format(6, 6, 3) + "conv[1] W=9 H=9 R=3 S=3 C=64 K=64 T=1 U=1 name='big'\n")
    with pytest.raises(ContestError, match=r"kernel big = conv\( 9 9 64 64 3 3 1 1 \) does not fit on 6 x 6"):
        bounds(graph, graph_curves(graph.kernels, 6, 6, 3))


def test_kernels_too_big_together_are_counted() -> None:
    text = HEADER.format(4, 4, 1e6) + "".join(
        f"conv[{number}] W=1 H=1 R=1 S=1 C=1 K=1 T=1 U=1\n" for number in range(3)
    )
    graph = parse_graph(text)
    with pytest.raises(ContestError, match=r"all 3 kernels together need 18 tiles .* 4 x 4 = 16"):
        bounds(graph, graph_curves(graph.kernels, 4, 4, 1e6))
