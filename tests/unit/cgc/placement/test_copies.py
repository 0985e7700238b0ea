"""Copies of one layer on a wafer."""

from __future__ import annotations

import pytest

from cgc.errors import PlacementError
from cgc.kernels import Kernel, KernelGraph
from cgc.kernels.families import FAMILIES
from cgc.placement import place
from cgc.placement.replicas import place_copies
from cs_toolkit.fabric import load_fabric

pytestmark = pytest.mark.usefixtures("full_placement")

WAFER = load_fabric("cs2").for_execution("weight_streaming")


def dense(batch: int, inputs: int = 512, outputs: int = 512) -> KernelGraph:
    sizes = {"rows": 1, "inputs": inputs, "outputs": outputs, "passes": 3, "element_bytes": 2, "batch": batch}
    weights = {"resident_bytes": 4 * inputs * outputs}
    parameters = {**dict.fromkeys(FAMILIES["fully_connected"].parameters, 0), **sizes, **weights}
    return KernelGraph((Kernel("fc", "fully_connected", parameters),), batch_size=batch)


def test_copies_are_in_boxes_of_the_wafer_and_compute_a_batch_faster_than_one() -> None:
    graph = dense(1000)
    copies = place_copies(graph, WAFER)
    assert copies.count > 10
    assert copies.columns * copies.width <= WAFER.width
    assert copies.rows * copies.height <= WAFER.height
    for rect in copies.placement.rects.values():
        assert rect.x + rect.width <= copies.width
        assert rect.y + rect.height <= copies.height
    assert copies.active_pes <= WAFER.processing_elements
    alone = max(layout.compute_cycles for layout in place(graph, WAFER).layouts.values())
    assert copies.cycles_of(1000) < 1000 * alone / 5


def test_no_more_copies_than_samples_which_they_share() -> None:
    assert place_copies(dense(1), WAFER).count == 1
    copies = place_copies(dense(3), WAFER)
    assert copies.count <= 3
    assert copies.cycles_of(3) == -(-3 // copies.count) * copies.cycles


def test_weights_of_all_copies_leave_three_quarters_of_the_memory() -> None:
    graph = dense(4096, 8192, 65536)
    copies = place_copies(graph, WAFER)
    assert copies.count * graph.kernels[0].parameters["resident_bytes"] <= WAFER.memory_bytes / 4


def test_a_program_that_does_not_fit_once_is_an_error() -> None:
    with pytest.raises(PlacementError, match="does not fit"):
        place_copies(dense(8, 1 << 17, 1 << 18), WAFER)
