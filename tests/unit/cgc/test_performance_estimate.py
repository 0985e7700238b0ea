from __future__ import annotations

from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.kernels import Kernel, KernelGraph, match_kernels
from cgc.kernels.configurations import Configuration
from cgc.performance import Performance, estimate
from cgc.placement import Placement, Rect, place
from cs_toolkit.fabric import Fabric, load_fabric

FC_MNIST = Path(__file__).parents[2] / "golden" / "cgc" / "fc_mnist_train.mlir"

STREAM = {
    "rows": 1,
    "row_elements": 4096,
    "starts": 1,
    "reductions": 0,
    "work_millicycles": 0,
    "step_millicycles": 0,
    "streamed_elements": 4096,
    "element_bytes": 2,
    "resident_bytes": 0,
    "stash_bytes": 0,
    "batch": 1,
}


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return load_fabric("cs2")


@pytest.fixture(scope="module")
def mnist(fabric: Fabric) -> tuple[KernelGraph, Placement, Performance]:
    graph = match_kernels(parse_module(FC_MNIST.read_text()))
    placement = place(graph, fabric)
    return graph, placement, estimate(graph, placement, fabric)


def test_the_slowest_kernel_sets_the_pace(mnist: tuple[KernelGraph, Placement, Performance]) -> None:
    _, _, performance = mnist
    overall = performance.overall
    assert overall.compute_cycles == max(k.compute_cycles for k in performance.kernels.values())
    assert overall.transmission_cycles == max(k.transmission_cycles for k in performance.kernels.values())
    assert overall.deltat_cycles == performance.kernels[performance.bottleneck].deltat_cycles
    assert overall.samples_per_s == min(overall.compute_samples_per_s, overall.transmission_samples_per_s)


def test_every_rate_is_the_clock_over_whole_cycles(mnist: tuple[KernelGraph, Placement, Performance]) -> None:
    _, _, performance = mnist
    for figures in (performance.overall, *performance.kernels.values()):
        assert figures.compute_samples_per_s * figures.compute_cycles == pytest.approx(850e6)
        assert figures.transmission_samples_per_s * figures.transmission_cycles == pytest.approx(850e6)
        assert isinstance(figures.deltat_cycles, int)


def test_shares_are_of_the_patio_and_weighted_by_area(
    mnist: tuple[KernelGraph, Placement, Performance], fabric: Fabric
) -> None:
    _, placement, performance = mnist
    overall = performance.overall
    assert overall.active_pes == sum(rect.area for rect in placement.rects.values())
    assert overall.active_pes_percent == pytest.approx(100 * overall.active_pes / 307_840)
    weighted = sum(k.active_pes * k.compute_utilization_percent for k in performance.kernels.values())
    assert overall.compute_utilization_percent == pytest.approx(weighted / overall.active_pes)


def test_fc_mnist_has_the_rate_of_the_published_reports(
    mnist: tuple[KernelGraph, Placement, Performance],
) -> None:
    """Published for this network: 669 cycles at 0 % and 74 %, in a later release 464 cycles at 1.14 %.

    An order of magnitude, no check of the model: see `smallest_piece` in the coefficients.
    """
    overall = mnist[2].overall
    assert 250 < overall.deltat_cycles < 1400
    assert 0.2 < overall.active_pes_percent < 3
    assert 50 < overall.compute_utilization_percent < 100


@pytest.mark.parametrize(
    ("compute", "transmission", "limit"),
    [(100, 99, "compute"), (100, 100, "compute"), (99, 100, "transmission")],
)
def test_the_limit_is_the_slower_of_compute_and_transmission(
    fabric: Fabric, compute: int, transmission: int, limit: str
) -> None:
    graph = KernelGraph((Kernel("k", "data_movement", STREAM),))
    layout = Configuration(4, 5, compute, transmission, 100, busy_pe_cycles=500.0)
    placement = Placement("cs2", {"k": Rect(0, 0, 4, 5)}, {"k": layout}, 100, 20, 20 / 307_840, 0.0)
    performance = estimate(graph, placement, fabric)
    assert (performance.bottleneck, performance.limit) == ("k", limit)
    assert performance.overall.deltat_cycles == 100
    # 500 of 20 * 100 PE cycles.
    assert performance.overall.compute_utilization_percent == pytest.approx(25.0)


def test_of_equally_slow_kernels_the_one_that_cannot_be_faster_is_the_bottleneck(fabric: Fabric) -> None:
    # Four elements on one PE take 964 cycles, and fewer do not fit on a PE; eight of the others do as well.
    alone = {**STREAM, "row_elements": 4, "streamed_elements": 4, "work_millicycles": 964_000}
    large = {**STREAM, "row_elements": 4096, "work_millicycles": 4096 * 120_500}
    graph = KernelGraph((Kernel("large", "elementwise", large), Kernel("alone", "elementwise", alone)))
    placement = place(graph, fabric)
    performance = estimate(graph, placement, fabric)
    assert [layout.cycles for layout in placement.layouts.values()] == [1000, 1000]
    assert performance.bottleneck == "alone"


def test_slow_host_links_bound_a_fast_pipeline(fabric: Fabric) -> None:
    graph = KernelGraph((Kernel("k", "elementwise", STREAM),), input_bytes_per_sample=1_000_000)
    slow = fabric.model_copy(update={"io_links": 1})
    performance = estimate(graph, place(graph, slow), slow)
    assert (performance.bottleneck, performance.limit) == ("host input", "transmission")
    # 8 Mbit at 100 Gbit/s are 80 microseconds, 68,000 cycles.
    assert performance.overall.deltat_cycles == 68_000
    assert performance.overall.samples_per_s == pytest.approx(12_500)
