"""Copies of a model side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.kernels import KernelGraph, match_kernels
from cgc.placement import place
from cgc.placement.replicas import boxes_of, replica_grids
from cs_toolkit.fabric import load_fabric

pytestmark = pytest.mark.usefixtures("full_placement")

FABRIC = load_fabric("cs2")
MNIST = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"


@pytest.fixture(scope="module")
def graph() -> KernelGraph:
    return match_kernels(parse_module(MNIST.read_text()))


@pytest.mark.parametrize("count", [2, 6, 32])
def test_copies_lie_side_by_side_on_the_fabric(graph: KernelGraph, count: int) -> None:
    found = replica_grids(graph, FABRIC, count)
    assert found
    for boxes in found:
        assert boxes.count == len(boxes.corners) == count
        assert len(set(boxes.corners)) == count
        assert boxes.columns * boxes.width <= FABRIC.width
        assert boxes.rows * boxes.height <= FABRIC.height
        assert boxes.active_pes == count * sum(rect.area for rect in boxes.placement.rects.values())
        for rect in boxes.placement.rects.values():
            assert rect.x >= 0
            assert rect.y >= 0
            assert rect.x + rect.width <= boxes.width
            assert rect.y + rect.height <= boxes.height


def test_the_boxes_are_as_small_as_the_copy(graph: KernelGraph) -> None:
    placement = place(graph, FABRIC)
    boxes = boxes_of(placement, 2, 2)
    rects = boxes.placement.rects.values()
    assert min(rect.x for rect in rects) == min(rect.y for rect in rects) == 0
    assert max(rect.x + rect.width for rect in rects) == boxes.width
    assert max(rect.y + rect.height for rect in rects) == boxes.height
    assert boxes.corners == ((0, 0), (boxes.width, 0), (0, boxes.height), (boxes.width, boxes.height))
    assert boxes.placement.layouts == placement.layouts


def test_more_copies_than_fit_have_no_grid(graph: KernelGraph) -> None:
    assert replica_grids(graph, FABRIC, 4096) == ()
    assert replica_grids(graph, FABRIC, 1009) == ()  # a prime that neither side of the fabric has room for


def test_a_copy_does_the_work_of_a_step_for_fewer_samples(graph: KernelGraph) -> None:
    part = graph.of_replica(8)
    assert part.batch_size == graph.batch_size // 8
    assert {kernel.parameters["batch"] for kernel in part.kernels} == {graph.batch_size // 8}
    whole = {kernel.name: kernel for kernel in graph.kernels}
    for kernel in part.kernels:
        before = whole[kernel.name].parameters
        assert {**kernel.parameters, "batch": 0} == {**before, "batch": 0}
        assert kernel.gradient_bytes == whole[kernel.name].gradient_bytes
    assert graph.of_replica(1) == graph
