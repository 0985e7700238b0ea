"""Copies of a model on one wafer: rate, exchange, and how many are best."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.errors import PlacementError, ReplicaError
from cgc.kernels import Kernel, KernelGraph, match_kernels
from cgc.kernels.configurations import Configuration
from cgc.performance.model import INPUT, estimate
from cgc.performance.replicas import choose_replicas, exchange, replicate, select_replicas
from cgc.placement import Placement, Rect, place
from cgc.placement.model import Boxes
from cs_toolkit.fabric import load_fabric
from tests.programs.steps import MLP_TRAIN

FABRIC = load_fabric("cs2")
MNIST = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"


def graph_of(path: Path) -> KernelGraph:
    return match_kernels(parse_module(path.read_text()))


@pytest.fixture(scope="module")
def mnist() -> KernelGraph:
    return graph_of(MNIST)


def test_gradients_are_those_of_all_weights(mnist: KernelGraph) -> None:
    weights = 784 * 500 + 500 + 500 * 300 + 300 + 300 * 10 + 10
    assert sum(kernel.gradient_bytes for kernel in mnist.kernels) == 4 * weights


def held(name: str, gradient_bytes: int, in_flight: float = 1.0, ops: tuple[str, ...] = ()) -> Kernel:
    return Kernel(name, "reduction", {}, ops=ops, gradient_bytes=gradient_bytes, samples_in_flight=in_flight)


def boxes(columns: int, rows: int, width: int = 100, height: int = 60, **rects: Rect) -> Boxes:
    layouts = {name: Configuration(r.width, r.height, 1, 1, 1, 1.0) for name, r in rects.items()}
    area = sum(rect.area for rect in rects.values())
    placement = Placement("cs2", rects, layouts, 1, area, area / FABRIC.processing_elements, 0.0)
    return Boxes(placement, columns, rows, width, height)


def test_the_exchange_is_the_fullest_line_of_words_and_the_way_there_and_back() -> None:
    """Two adjacent kernels: rows 0 to 19 of PEs have words of both."""
    graph = KernelGraph((held("a", 80_000), held("b", 20_000)))
    rects = {"a": Rect(0, 0, 50, 40), "b": Rect(50, 0, 50, 20)}
    row = 40_000 / 40 + 10_000 / 20
    assert exchange(graph, boxes(3, 1, **rects), 7, FABRIC).exchange_cycles == row + 2 * 2 * 100
    column = 40_000 / 50
    assert exchange(graph, boxes(1, 4, **rects), 7, FABRIC).exchange_cycles == column + 2 * 3 * 60
    both = exchange(graph, boxes(3, 4, **rects), 7, FABRIC).exchange_cycles
    assert both == row + column + 2 * 2 * 100 + 2 * 3 * 60


def test_on_a_narrow_kernel_adding_takes_longer_than_sending() -> None:
    graph = KernelGraph((held("a", 8_000),))
    words_of_a_pe, adding = 4_000 / 40, 2 * 2.0 + 0.25
    found = exchange(graph, boxes(2, 1, a=Rect(0, 0, 1, 40)), 7, FABRIC)
    assert found.exchange_cycles == words_of_a_pe * adding + 2 * 100


def test_the_pipeline_empties_before_the_exchange() -> None:
    graph = KernelGraph((held("a", 8, in_flight=11.0), held("b", 8, in_flight=5.0)))
    rects = {"a": Rect(0, 0, 50, 40), "b": Rect(50, 0, 50, 20)}
    found = exchange(graph, boxes(2, 1, **rects), 700, FABRIC)
    assert found.emptying_cycles == 10 * 700
    assert found.cycles == found.emptying_cycles + found.exchange_cycles
    assert found.gradient_bytes == 16


def test_a_batch_norm_goes_across_the_copies_for_its_sums_in_both_directions() -> None:
    rects = {"a": Rect(0, 0, 50, 40)}
    plain = exchange(KernelGraph((held("a", 800),)), boxes(2, 1, **rects), 7, FABRIC)
    ops = ("cirh.FusedBatchNorm", "cirh.Relu", "cirh.FusedBatchNormGrad")
    norm = exchange(KernelGraph((held("a", 800, ops=ops),)), boxes(2, 1, **rects), 7, FABRIC)
    assert norm.exchange_cycles == plain.exchange_cycles + 2 * 2 * 100


@pytest.mark.parametrize("count", [2, 8])
def test_the_rate_is_that_of_all_copies_with_the_exchange(mnist: KernelGraph, count: int) -> None:
    found = replicate(mnist, FABRIC, count)
    overall = found.performance.overall
    assert found.count == count
    assert found.samples == 256 // count
    cycles = found.samples * found.per_replica.deltat_cycles + found.exchange.cycles
    assert found.step_cycles == cycles
    assert found.samples_per_s == pytest.approx(256 * FABRIC.clock_hz / cycles)
    assert overall.active_pes == count * found.per_replica.active_pes == found.boxes.active_pes
    assert overall.active_pes_percent == pytest.approx(100 * overall.active_pes / 307_840)
    share = found.samples * found.per_replica.deltat_cycles / cycles
    assert overall.compute_utilization_percent == pytest.approx(
        share * found.per_replica.compute_utilization_percent
    )
    assert found.exchange.exchange_cycles > 0
    assert found.samples_per_s < count * found.per_replica.samples_per_s


def test_one_copy_is_the_model_as_it_is_without_replicas(mnist: KernelGraph) -> None:
    found = replicate(mnist, FABRIC, 1)
    placement = place(mnist, FABRIC)
    assert found.placement == placement
    assert found.performance == estimate(mnist, placement, FABRIC)
    assert found.exchange.cycles == 0


def test_auto_is_the_best_of_the_divisors_that_fit(mnist: KernelGraph) -> None:
    best, tried = choose_replicas(mnist, FABRIC)
    assert [found.count for found in tried] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert best.samples_per_s == max(found.samples_per_s for found in tried)
    assert 1 < best.count < 256
    assert select_replicas(mnist, FABRIC, "auto") == (best, tried)


def test_host_links_are_shared_and_end_the_search(mnist: KernelGraph) -> None:
    slow = FABRIC.model_copy(update={"io_links": 1, "io_link_bits_per_s": 50e9})
    best, tried = choose_replicas(mnist, slow)
    assert tried[-1].performance.bottleneck == INPUT
    assert all(found.performance.bottleneck != INPUT for found in tried[:-1])
    last = tried[-1]
    assert last.per_replica.transmission_cycles == slow.input_cycles(
        last.count * mnist.input_bytes_per_sample
    )
    assert best.count < 32


def test_an_evaluation_has_no_exchange() -> None:
    """The same operations in the mode of an evaluation."""
    text = MLP_TRAIN.read_text()
    train, evaluation = (
        match_kernels(parse_module(text.replace('cs.mode = "train"', f'cs.mode = "{mode}"')))
        for mode in ("train", "eval")
    )
    assert replicate(train, FABRIC, 2).exchange.cycles > 0
    found = replicate(evaluation, FABRIC, 2)
    assert found.exchange.cycles == 0
    assert found.samples_per_s == pytest.approx(2 * found.per_replica.samples_per_s)


def test_samples_that_cannot_be_shared_are_refused(mnist: KernelGraph) -> None:
    with pytest.raises(ReplicaError, match="a batch of 256 samples cannot be shared equally by 3 replicas"):
        replicate(mnist, FABRIC, 3)


def test_the_error_names_the_largest_number_that_fits(mnist: KernelGraph) -> None:
    small = FABRIC.model_copy(update={"width": 90, "height": 70})
    with pytest.raises(ReplicaError, match=r"128 replicas .* do not fit") as error:
        replicate(mnist, small, 128)
    advice = re.search(r"divides the batch of 256 is (\d+): choose \1 replicas", str(error.value))
    assert advice is not None
    most = int(advice[1])
    assert replicate(mnist, small, most).count == most
    with pytest.raises(ReplicaError):
        replicate(mnist, small, 2 * most)


def test_a_program_that_does_not_fit_once_is_an_error_of_placement(mnist: KernelGraph) -> None:
    tiny = FABRIC.model_copy(update={"width": 5, "height": 5})
    for choice in (2, "auto"):
        with pytest.raises(PlacementError):
            select_replicas(mnist, tiny, choice)
