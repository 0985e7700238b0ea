"""Training steps of torch networks as modules, with a state and batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.importers.aten import import_step
from cs_toolkit.step import GLOBAL_STEP
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import trace
from cstorch.tracing.values import to_array

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]

Update = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""The new value of a weight, its gradient, and the scale that clipping gives all gradients."""


@dataclass(frozen=True)
class Step:
    """A training step with gradients clipped by their joint norm."""

    module: ModuleOp
    state: dict[str, np.ndarray]
    batches: list[list[np.ndarray]]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.outer(F.gelu(self.inner(self.norm(x)))))


class Stack(nn.Module):
    """Blocks between an embedding and a head, which share their table where `tied`."""

    def __init__(self, depth: int, width: int = 32, vocabulary: int = 12, tied: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def sgd_step(model: nn.Module, loss_of: Loss, *batches: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """A step of SGD with clipping by the joint norm, traced with the first batch."""
    return updated_step(model, loss_of, lambda weight, gradient, s: weight - 0.1 * s * gradient, *batches)


def updated_step(
    model: nn.Module, loss_of: Loss, update: Update, *batches: tuple[torch.Tensor, torch.Tensor]
) -> Step:
    """A step of any update with clipping by the joint norm, traced with the first batch."""
    move_to_device(model)
    inputs = [DeviceTensor(tensor) for tensor in batches[0]]
    parameters = list(model.parameters())

    def step() -> torch.Tensor:
        loss = loss_of(model, *inputs)
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum(torch.sum(g * g) for g in gradients))  # type: ignore[arg-type]
        scale = torch.clamp(0.5 / (norm + 1e-6), max=1.0)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.copy_(update(parameter, gradient, scale))
        return loss

    traced = trace(step, inputs, model_state(model), [model])
    module = import_step(traced.graph, mode="train", seed=3)
    values = {
        spec.name: np.asarray(0, np.int32)
        if spec.name == GLOBAL_STEP
        else to_array(traced.state[spec.name].host)
        for spec in step_interface(module).state
    }
    return Step(module, values, [[to_array(tensor) for tensor in batch] for batch in batches])
