"""Steps of whole networks in layers: what repeats is one function, and the numbers are those of the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cgc.layers.roles import Role
from cgc.layers.streamed import StreamedStep
from tests.programs.pytorch.residual_stack import Loss, Stack, Step, sgd_step

from .cut_steps import Run, cut_step, run_cut, run_whole

VOCABULARY = 12


def token_loss(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).reshape(-1, VOCABULARY), labels.reshape(-1))


def penalized(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    squares = [torch.sum(parameter * parameter) for parameter in model.parameters() if parameter.dim() > 1]
    penalty: torch.Tensor = sum(squares)  # type: ignore[assignment]
    return token_loss(model, ids, labels) + 1e-3 * penalty


def stack_step(depth: int, loss: Loss = token_loss, *, tied: bool = True) -> Step:
    torch.manual_seed(depth)
    batches = [tuple(torch.randint(0, VOCABULARY, (2, 4, 6))) for _ in range(2)]
    return sgd_step(Stack(depth, tied=tied), loss, *batches)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def three_blocks() -> Step:
    return stack_step(3)


@pytest.fixture(scope="module")
def whole(three_blocks: Step) -> Run:
    return run_whole(three_blocks.module, three_blocks.state, three_blocks.batches)


def assert_same_numbers(step: Step, cut: StreamedStep, whole: Run | None = None) -> None:
    outputs, state = whole or run_whole(step.module, step.state, step.batches)
    cut_outputs, cut_state = run_cut(cut, step.state, step.batches)
    for expected, got in zip(outputs, cut_outputs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    for name, value in state.items():
        np.testing.assert_allclose(cut_state[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_deeper_network_has_more_layers_and_the_same_functions(three_blocks: Step) -> None:
    three, five = cut_step(three_blocks.module), cut_step(stack_step(5).module)
    assert len(five.cut.layers) == len(three.cut.layers) + 2
    assert len(five.functions) == len(three.functions)
    used = [
        tuple(call.function if call else None for call in (layer.forward, layer.backward, layer.update))
        for layer in five.schedule.layers[2:-2]
    ]
    assert None not in used[0]
    assert set(used) == {used[0]}


def test_layers_compute_the_values_of_the_whole_step(three_blocks: Step, whole: Run) -> None:
    assert_same_numbers(three_blocks, cut_step(three_blocks.module), whole)


def test_layers_may_be_computed_again_for_their_backward_part(three_blocks: Step, whole: Run) -> None:
    kept = cut_step(three_blocks.module)
    every = frozenset(range(len(kept.cut.layers) - 1))
    again = cut_step(three_blocks.module, recomputed=every)
    graph = kept.cut.graph

    def stash_bytes(step: StreamedStep) -> int:
        forwards = [layer.forward for layer in step.schedule.layers[:-1]]
        return sum(graph.size_bytes[value] for call in forwards if call for value in call.results)

    assert stash_bytes(again) < 0.3 * stash_bytes(kept)
    assert_same_numbers(three_blocks, again, whole)


def test_penalties_of_weights_are_computed_where_the_weights_are() -> None:
    step = stack_step(2, penalized, tied=False)
    cut = cut_step(step.module)
    assert Role.PENALTY in cut.cut.roles
    graph = cut.cut.graph
    weights = [
        {value for value in call.arguments if value in graph.state and not graph.is_small(value)}
        for layer in cut.schedule.layers
        if (call := layer.forward)
    ]
    assert not set.intersection(*weights)
    assert_same_numbers(step, cut)


def test_steps_that_cannot_be_cut_are_one_layer() -> None:
    torch.manual_seed(0)
    batch = torch.randn(4, 32), torch.randn(4, 32)
    step = sgd_step(nn.Linear(32, 32), lambda model, x, y: F.mse_loss(model(x), y), batch)
    cut = cut_step(step.module)
    assert len(cut.cut.layers) == 1
    assert_same_numbers(step, cut)
