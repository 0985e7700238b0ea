"""Unrolled recurrences: their time steps are loops of the compiled step, whose numbers are torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.importers.aten import import_step
from cgc.lowering import interpret
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline
from cs_toolkit.step import GLOBAL_STEP
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import trace
from cstorch.tracing.values import to_array
from tests.programs.pytorch.recurrent import RecurrentLayers, mix_time

TIME = 12
BATCH, WIDTH = 3, 4


class Decay(nn.Module):
    """The time mixing of RWKV with equal keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.first = (nn.Parameter(torch.rand(WIDTH)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mix_time(x, x, self.decay, self.first).square().mean()


class Memory(nn.Module):
    """Steps that read the last two states, each with its own constant."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, now = x[:, 0], x[:, 1]
        for t in range(2, x.shape[1]):
            before, now = now, torch.tanh(self.one(now) + self.two(before) + x[:, t] / t)
        return now.square().mean()


class Layers(nn.Module):
    """Equal layers with separate weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(TIME))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(functional.gelu(layer(x)))
        return x.square().mean()


class Dropped(nn.Module):
    """Every step drops other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x[:, 0]
        for t in range(x.shape[1]):
            h = functional.dropout(self.cell(x[:, t], h), 0.5)
        return h.square().mean()


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The loss, and for each parameter a number that depends on all of its gradient."""
    model.zero_grad()
    loss = model(x)
    loss.backward()
    found = [p.grad for p in model.parameters()]
    return [
        loss.detach(),
        *((g * torch.arange(1.0, g.numel() + 1).view_as(g)).sum() for g in found if g is not None),
    ]


def rewritten(model: nn.Module, x: torch.Tensor) -> ModuleOp:
    """The step that computes `gradients`, as the compiler rewrites it."""
    model = copy.deepcopy(model)
    move_to_device(model)
    given = DeviceTensor(x)
    traced = trace(lambda: gradients(model, given), [given], dict(model_state(model)), [model])
    module = import_step(traced.graph, mode="train", seed=3)
    run_pipeline(module, DEFAULT_PIPELINE)
    return module


def run(module: ModuleOp, model: nn.Module, x: torch.Tensor) -> tuple[np.ndarray, int]:
    """The outputs of a step, and how many loops it has."""
    parameters = {f"state.model.{name}": p.detach().numpy() for name, p in model.named_parameters()}
    names = [spec.name for spec in step_interface(module).state]
    state = tuple(np.int32(0) if name == GLOBAL_STEP else parameters[name] for name in names)
    traced = jax.jit(interpret.step_function(module)).trace(state, (to_array(x),))
    compiled = traced.lower().compile(compiler_options={"xla_backend_optimization_level": 0})
    _, outputs = compiled(state, (to_array(x),))
    return np.asarray(outputs), str(traced.jaxpr).count("= scan[")


@pytest.mark.parametrize(
    ("make", "loops"),
    [
        (lambda: RecurrentLayers(nn.LSTM, WIDTH, 2), 4),
        (lambda: RecurrentLayers(nn.GRU, WIDTH, 1), 2),
        (Decay, 2),
        (Memory, 2),
        (Layers, 0),
    ],
    ids=["lstm", "gru", "decay", "memory", "layers"],
)
def test_time_steps_are_loops_forward_and_backward(make: Callable[[], nn.Module], loops: int) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(BATCH, TIME, WIDTH)
    expected = [value.item() for value in gradients(model, x)]
    outputs, found = run(rewritten(model, x), model, x)
    assert found == loops
    np.testing.assert_allclose(outputs, expected, rtol=2e-5, atol=1e-6)


def test_the_steps_of_a_loop_draw_their_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Dropped(), torch.randn(BATCH, TIME, WIDTH)
    module = rewritten(model, x)
    outputs, found = run(module, model, x)
    assert found == 2
    monkeypatch.setattr(interpret, "find_loops", lambda _step, _weights: [])
    unrolled, none = run(module, model, x)
    assert none == 0
    np.testing.assert_allclose(outputs, unrolled, rtol=1e-5, atol=1e-7)
