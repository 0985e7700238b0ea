"""Memory of layers on the wafer from the schedule, and placements of each kind of layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cgc.errors import PlacementError
from cgc.execution.weight_streaming import fitting_step, layers_to_recompute
from cgc.kernels import match_kernels
from cgc.layers.streamed import StreamedStep, layer_names, reschedule, whole_layer
from cgc.layers.traffic import layer_traffic, peak_bytes
from cgc.performance import layers as layer_costs
from cgc.performance.layers import place_layers
from cs_toolkit.fabric import load_fabric
from tests.programs.pytorch.residual_stack import Stack, sgd_step

from .cut_steps import cut_step

WAFER = load_fabric("cs2").for_execution("weight_streaming")
WIDTH, TOKENS = 32, 24
BLOCK_WEIGHTS = 4 * (2 * 2 * WIDTH * WIDTH + 2 * WIDTH + WIDTH + 2 * WIDTH)


def loss(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).reshape(-1, 12), labels.reshape(-1))


def stack(depth: int) -> StreamedStep:
    torch.manual_seed(depth)
    batch = tuple(torch.randint(0, 12, (2, 4, 6)))
    return cut_step(sgd_step(Stack(depth), loss, batch).module)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def five() -> StreamedStep:
    return stack(5)


def test_weights_come_gradients_leave_and_activations_wait(five: StreamedStep) -> None:
    traffic = layer_traffic(five.schedule)
    for middle in traffic[2:-2]:
        assert middle.gradients == BLOCK_WEIGHTS
        assert 0 < middle.backward_weights <= middle.weights <= middle.gradients
        assert middle.stash >= 4 * TOKENS * WIDTH
        assert middle.update == 3 * BLOCK_WEIGHTS  # of SGD: weights and gradients in, weights out
    assert sum(moved.stash for moved in traffic) <= peak_bytes(five.schedule)


def test_layers_are_recomputed_until_activations_fit(five: StreamedStep) -> None:
    peak = peak_bytes(five.schedule)
    assert layers_to_recompute(five.schedule, peak) == frozenset()
    one = layers_to_recompute(five.schedule, peak - 1)
    every = layers_to_recompute(five.schedule, 0)
    assert len(one) == 1
    assert one < every
    peaks = [peak_bytes(reschedule(five, chosen).schedule) for chosen in (one, every)]
    assert peak > peaks[0] > peaks[1]


def test_a_step_is_fitted_to_the_memory_as_far_as_that_goes(five: StreamedStep) -> None:
    peak = peak_bytes(five.schedule)
    assert fitting_step(five, peak) == (five, frozenset())
    fitted, some = fitting_step(five, int(0.6 * peak))
    assert peak_bytes(fitted.schedule) <= 0.6 * peak
    least, every = fitting_step(five, 0)
    assert every == layers_to_recompute(five.schedule, 0) > some
    assert peak_bytes(least.schedule) < peak_bytes(fitted.schedule)


def test_the_kernels_of_a_layer_hold_the_products_of_both_parts(five: StreamedStep) -> None:
    layer = whole_layer(five, 2)
    assert layer is not None
    graph = match_kernels(layer.module, layer.part)
    assert graph.batch_size == 4
    products = [kernel for kernel in graph.kernels if kernel.family == "fully_connected"]
    assert [kernel.parameters["passes"] for kernel in products] == [3, 3]
    assert not [kernel for kernel in graph.kernels if kernel.family == "matmul"]


def test_equal_layers_are_placed_once_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = []
    place_copies = layer_costs.place_copies

    def noted(graph, fabric):  # type: ignore[no-untyped-def]
        placed.append(graph)
        return place_copies(graph, fabric)

    monkeypatch.setattr(layer_costs, "place_copies", noted)
    counts = []
    for depth in (4, 7):
        placed.clear()
        layers = place_layers(stack(depth), WAFER)
        counts.append(len(placed))
        assert len({layer.plan.number for layer in layers}) == len(placed) < len(layers)
    assert counts[0] == counts[1]


def test_backward_parts_take_longer_than_forward_parts(five: StreamedStep) -> None:
    plan = place_layers(five, WAFER)[2].plan
    assert plan.copies is not None
    assert plan.backward_cycles > plan.forward_cycles > 0
    assert plan.forward_cycles + plan.backward_cycles == pytest.approx(plan.copies.cycles)


def test_layers_have_their_own_names(five: StreamedStep) -> None:
    names = layer_names(five)
    assert len(names) == len(five.cut.layers)
    assert len(set(names[1:-1])) == len(names) - 2


def test_a_layer_larger_than_the_wafer_is_an_error_with_figures(five: StreamedStep) -> None:
    tiny = WAFER.model_copy(update={"width": 4, "height": 4, "memory_per_pe_bytes": 64})
    with pytest.raises(PlacementError, match=r"1,536 bytes of weights, the 16 PEs of the whole .* 1,024;"):
        place_layers(five, tiny)
    small = WAFER.model_copy(update={"width": 4, "height": 4})
    with pytest.raises(PlacementError, match=r"layer .* does not fit on the whole wafer: .*16"):
        place_layers(five, small)
