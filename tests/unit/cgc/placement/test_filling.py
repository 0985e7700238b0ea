"""Networks whose activations do not fit get slower: fewer samples are in flight."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from cgc.errors import PlacementError
from cgc.kernels import Edge, Kernel, KernelGraph
from cgc.performance import estimate
from cgc.placement import Placement, place
from cgc.placement.place import fills
from cgc.placement.shapes import GraphShapes
from cs_toolkit.fabric import Fabric, load_fabric

ROWS, WIDTH = 256, 256
LAYER = {
    "rows": ROWS,
    "inputs": WIDTH,
    "outputs": WIDTH,
    "passes": 3,
    "element_bytes": 2,
    "resident_bytes": 14 * WIDTH * WIDTH,
    "stash_bytes": 2 * ROWS * WIDTH,
    "epilogue_millicycles": 0,
    "step_millicycles": 0,
    "reload": 0,
    "batch": 256,
}
HELD_BACK = 1.0


@pytest.fixture(scope="module")
def part() -> Fabric:
    """A sixteenth of a wafer."""
    return load_fabric("cs2").model_copy(update={"width": 185, "height": 104})


def network(layers: int, **changes: int) -> KernelGraph:
    """A chain of equal layers; each holds back a sample forward and one backward."""
    kernels = [
        Kernel(
            f"fc{index}",
            "fully_connected",
            {**LAYER, **changes},
            samples_in_flight=1 + 2 * HELD_BACK * (layers - 1 - index),
        )
        for index in range(layers)
    ]
    edges = [Edge(a.name, b.name, WIDTH) for a, b in pairwise(kernels)]
    return KernelGraph(tuple(kernels), tuple(edges), batch_size=256)


def rate(layers: int, fabric: Fabric) -> float:
    graph = network(layers)
    return estimate(graph, place(graph, fabric), fabric).overall.samples_per_s


def held(graph: KernelGraph, placement: Placement) -> dict[str, int]:
    return {kernel.name: kernel.stash_bytes(placement.fill) for kernel in graph.kernels}


def test_a_network_with_room_keeps_the_pipeline_full(part: Fabric) -> None:
    graph = network(8)
    placement = place(graph, part)
    assert placement.fill == 1
    assert placement.interval_cycles == placement.target_cycles
    assert placement == place(dataclasses.replace(graph), part)


def test_samples_wait_where_memory_is_short(part: Fabric) -> None:
    graph = network(80)
    placement = place(graph, part)
    assert placement.fill < 0.9
    performance = estimate(graph, placement, part)
    assert (performance.bottleneck, performance.limit) == ("fc0", "memory")
    overall = performance.overall
    assert overall.deltat_cycles == placement.interval_cycles
    assert overall.deltat_cycles == pytest.approx(placement.target_cycles / placement.fill, abs=1)
    assert overall.samples_per_s == overall.compute_samples_per_s == overall.transmission_samples_per_s
    # Kernels work for a share of the time, and all of them hold what waits there.
    assert overall.compute_utilization_percent < 100 * placement.fill
    for name, stash in held(graph, placement).items():
        layout = placement.layouts[name]
        assert stash / layout.area < layout.memory_per_pe_bytes <= part.memory_per_pe_bytes
        assert layout.cycles <= placement.target_cycles


def test_deeper_networks_fall_smoothly_with_the_third_power_of_their_depth(part: Fabric) -> None:
    depths = (80, 100, 120)
    rates = [rate(depth, part) for depth in depths]
    for (shallow, fast), (deep, slow) in pairwise(zip(depths, rates, strict=True)):
        assert fast / slow == pytest.approx((deep / shallow) ** 3, rel=0.15)


def test_a_sample_at_a_time_must_fit(part: Fabric) -> None:
    """A refused network has no room for the activations of one sample, and the error gives their size."""
    graph = network(80, stash_bytes=200 * LAYER["stash_bytes"])
    with pytest.raises(PlacementError, match="do not fit together: at their smallest they take") as error:
        place(graph, part)
    shortage = error.value.shortage
    assert shortage is not None
    # 26 MB a layer on PEs of 48 KiB.
    assert shortage.needed_pes > 80 * 200 * LAYER["stash_bytes"] / 49_152
    assert list(fills(GraphShapes(graph.kernels, part), 1, part.processing_elements)) == []


def test_more_of_the_fabric_is_taken_where_it_pays(part: Fabric) -> None:
    """Weights by themselves take 92 % of the wafer, which would leave the pipeline almost empty."""
    weights = int(0.92 * part.processing_elements * (49_152 - 8_000) / 10)
    graph = network(10, resident_bytes=weights, update_bytes=weights * 6 // 7)
    placement = place(graph, part)
    assert placement.total_utilization > 0.93
    assert placement.fill > 0.1
