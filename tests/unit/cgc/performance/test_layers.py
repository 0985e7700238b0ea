"""Time of a step with weight streaming, by hand and against measured rates (arXiv 2409.00287)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cgc.kernels import Kernel, KernelGraph
from cgc.kernels.families import FAMILIES
from cgc.layers.traffic import LayerTraffic
from cgc.performance.layers import (
    PART_LATENCY_S,
    UPDATE_BYTES_PER_S,
    LayerCost,
    StreamedPerformance,
    activation_room,
    estimate_streamed_step,
)
from cgc.placement.replicas import place_copies
from cs_toolkit.fabric import load_fabric

WAFER = load_fabric("cs2").for_execution("weight_streaming")
QUIET = LayerTraffic(weights=0, backward_weights=0, gradients=0, stash=0, update=0)
SECOND = WAFER.clock_hz
LINK = WAFER.io_bytes_per_s
ROOM = WAFER.memory_bytes


def layer(forward_s: float = 0.0, backward_s: float = 0.0, copies: int = 1, **bytes_: int) -> LayerCost:
    return LayerCost(forward_s * SECOND, backward_s * SECOND, copies, 0, replace(QUIET, **bytes_))


def estimate(
    *layers: LayerCost, batch: int = 1, peak: int = 0, joined_update: bool = False
) -> StreamedPerformance:
    return estimate_streamed_step(
        layers, batch, peak, activation_room(layers, WAFER), joined_update=joined_update, fabric=WAFER
    )


def test_the_wafer_is_larger_than_what_a_pipeline_is_placed_on_and_its_links_carry_150_gb_a_second() -> None:
    assert WAFER.processing_elements == 745_500
    assert load_fabric("cs2").for_execution("pipelined").processing_elements == 307_840
    assert pytest.approx(150e9) == LINK
    assert load_fabric("cs1").for_execution("weight_streaming") == load_fabric("cs1")


def test_parts_of_layers_follow_each_other() -> None:
    found = estimate(layer(1, 2, copies=2), layer(3, 4), batch=4)
    assert found.parts["compute"] == pytest.approx(2 * (1 + 2) + 4 * (3 + 4))
    assert found.parts["latency"] == pytest.approx(4 * PART_LATENCY_S)
    assert found.step_s == pytest.approx(34 + 4 * PART_LATENCY_S)
    assert [time.compute_s for time in found.layers] == pytest.approx([6, 28])
    assert found.bound_by == "compute"


def test_weights_come_while_the_layer_before_computes() -> None:
    """T = fetch_1 + sum(max(compute_l, fetch_{l+1})), with the latency of a part in compute_l."""
    weights = int(2 * LINK)
    found = estimate(
        layer(1, 1, weights=weights, backward_weights=weights), layer(5, 5, weights=weights), batch=1
    )
    passes = max(1 + PART_LATENCY_S, 2) + max(10 + 2 * PART_LATENCY_S, 2) + (1 + PART_LATENCY_S)
    assert found.step_s == pytest.approx(2 + passes)
    assert found.parts["weight bandwidth"] == pytest.approx(2 + 2 - (1 + PART_LATENCY_S))
    assert found.layers[0].exposed_s == pytest.approx(2 + 2 - (1 + PART_LATENCY_S))
    assert found.layers[1].exposed_s == 0


def test_gradients_leave_while_the_next_part_computes() -> None:
    found = estimate(layer(1, 1), layer(5, 5, gradients=int(3 * LINK)))
    assert found.parts["weight bandwidth"] == pytest.approx(3 - (1 + PART_LATENCY_S))


def test_without_a_backward_pass_there_is_half_of_the_latency() -> None:
    assert estimate(layer(1), layer(1)).step_s == pytest.approx(2 + 2 * PART_LATENCY_S)


def test_activations_that_do_not_fit_go_through_in_micro_batches_and_weights_come_again() -> None:
    weights = int(0.1 * LINK)
    layers, room = [layer(weights=weights), layer(weights=weights)], ROOM - weights
    whole, split = (estimate(*layers, batch=8, peak=peak) for peak in (room, int(3.5 * room)))
    assert (whole.micro_batches, whole.samples_per_micro_batch) == (1, 8)
    assert (split.micro_batches, split.samples_per_micro_batch) == (4, 2)
    again = 2 * PART_LATENCY_S + (0.1 - PART_LATENCY_S)
    assert split.step_s == pytest.approx(whole.step_s + 3 * again)
    assert split.parts["activation memory"] == pytest.approx(3 * again)
    assert split.bound_by == "activation memory"
    assert estimate(*layers, batch=8, peak=100 * room).micro_batches == 8


def test_micro_batches_are_as_many_as_copies_share_best() -> None:
    """4 of 10 samples fit; two copies compute 10 in five steps of two, or in three times two steps."""
    found = estimate(layer(1, 1, copies=2), layer(1, 1, copies=2), batch=10, peak=int(2.4 * ROOM))
    assert (found.micro_batches, found.samples_per_micro_batch) == (5, 2)
    assert found.parts["compute"] == pytest.approx(5 * 4)


def test_updates_overlap_the_backward_pass_unless_they_wait_for_all_gradients() -> None:
    second = int(UPDATE_BYTES_PER_S)
    layers = [layer(5, 5, gradients=8, update=second), layer(5, 5, gradients=8, update=3 * second)]
    assert estimate(*layers).parts["update"] == pytest.approx(1, abs=1e-6)
    assert estimate(*layers, joined_update=True).parts["update"] == pytest.approx(1, abs=1e-6)
    slow = [layer(1, 1, gradients=8, update=second), layer(1, 1, gradients=8, update=3 * second)]
    assert estimate(*slow).parts["update"] == pytest.approx(1 + 3 - (1 + PART_LATENCY_S), abs=1e-6)
    assert estimate(*slow, joined_update=True).parts["update"] == pytest.approx(
        1 + 3 - (1 + PART_LATENCY_S), abs=1e-6
    )
    assert estimate(layer(gradients=8, update=second)).bound_by == "update"


def test_the_longest_part_of_a_step_bounds_it() -> None:
    assert estimate(layer(1e-6)).bound_by == "latency"
    assert estimate(layer(1e-6, weights=int(LINK))).bound_by == "weight bandwidth"


def block(width: int, heads: int, length: int, batch: int) -> KernelGraph:
    """The kernels with products of a block of a Transformer, forward and backward."""

    def kernel(name: str, family: str, weights: int, **sizes: int) -> Kernel:
        given = {
            "rows": length,
            "passes": 3,
            "element_bytes": 2,
            "batch": batch,
            "resident_bytes": 4 * weights,
        }
        wanted = FAMILIES[family].parameters
        return Kernel(name, family, {**dict.fromkeys(wanted, 0), **given, **sizes})

    attention = {"keys": length, "heads": heads, "inputs": width, "width": width, "projections": 3}
    return KernelGraph(
        (
            kernel("attention", "attention", 4 * width**2, **attention, outputs=width),
            kernel("up", "fully_connected", 4 * width**2, inputs=width, outputs=4 * width),
            kernel("down", "fully_connected", 4 * width**2, inputs=4 * width, outputs=width),
        ),
        batch_size=batch,
    )


@pytest.mark.parametrize(
    ("count", "width", "heads", "length", "batch", "measured"),
    [
        (12, 768, 12, 128, 128, 2267.7),
        (12, 768, 12, 128, 2048, 16189.9),
        (24, 1024, 16, 128, 128, 1040.5),
        (24, 1024, 16, 128, 2048, 7074.6),
        (14, 1088, 17, 2048, 128, 373.4),
        (32, 2560, 32, 2048, 128, 46.6),
        (40, 5120, 40, 2048, 128, 11.86),
    ],
    ids=[
        "BERT-base 128",
        "BERT-base 2048",
        "BERT-large 128",
        "BERT-large 2048",
        "GPT-3 256M",
        "GPT-3 2.7B",
        "GPT-3 13B",
    ],
)
def test_rates_are_within_30_percent_of_measured_ones(
    count: int, width: int, heads: int, length: int, batch: int, measured: float
) -> None:
    """Blocks that are computed again for the backward pass; nothing but the latency was fitted to rates."""
    copies = place_copies(block(width, heads, length, batch), WAFER)
    weights, kept = 2 * 12 * width**2, 2 * batch * length * width
    cost = LayerCost(
        forward_cycles=copies.cycles / 3,
        backward_cycles=copies.cycles,
        copies=copies.count,
        held_bytes=copies.held_bytes,
        traffic=LayerTraffic(weights, weights, weights // 2, kept, 7 * weights),
    )
    layers = [cost] * count
    room = activation_room(layers, WAFER)
    found = estimate_streamed_step(layers, batch, count * kept, room, joined_update=True, fabric=WAFER)
    assert batch / found.step_s == pytest.approx(measured, rel=0.3)
