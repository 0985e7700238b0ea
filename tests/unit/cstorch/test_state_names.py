"""Names of the state of a step that belongs to no model."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from cstorch import amp, metrics, optim
from cstorch.optim.lr_scheduler import ConstantLR, LinearLR, SequentialLR
from cstorch.program import Program
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import TracedStep, trace


def traced(step: Callable[[torch.Tensor], object], *modules: nn.Module) -> TracedStep:
    """A step on one batch of 4 records."""
    batch = DeviceTensor(torch.ones(4, 3))
    state = {name: tensor for module in modules for name, tensor in model_state(module).items()}
    return trace(lambda: step(batch), [batch], state, modules)


def test_optimizers_schedules_and_scale_have_their_own_names() -> None:
    forgotten = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
    model = nn.Linear(3, 2)
    move_to_device(model)
    Program.current().models.append(model)
    first = optim.AdamW([model.weight], lr=0.1)
    second = optim.SGD([model.bias], lr=0.1, momentum=0.9)
    phases = [LinearLR(first, 0.0, 0.1, 3), ConstantLR(first, 0.1)]
    schedule = SequentialLR(first, phases, [3])
    scaler = amp.GradScaler("dynamic")
    Program.current().models.clear()
    del forgotten
    gc.collect()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        schedule.step()
        return loss

    names = set(traced(step, model).graph.updates)
    assert names == {
        "state.model.weight",
        "state.model.bias",
        *(f"state.optimizer.state.0.{name}" for name in first.state[model.weight]),
        "state.optimizer.param_groups.0.lr",
        "state.optimizer.1.state.0.momentum_buffer",
        *(f"state.optimizer.lr_scheduler.{inner}last_epoch" for inner in ("", "0.", "1.")),
        *(f"state.optimizer.grad_scaler.{name}" for name, _ in scaler.named_buffers()),
    }


def test_a_metric_in_a_model_is_no_state_of_the_model() -> None:
    """A step that only counts is no training step."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.accuracy = metrics.AccuracyMetric("eval/accuracy")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = self.linear(x)
            labels = torch.zeros(4, dtype=torch.int64)
            self.accuracy(labels=labels, predictions=logits.argmax(-1).int())
            return functional.cross_entropy(logits, labels)

    model = Classifier().eval()
    move_to_device(model)
    with torch.no_grad():
        found = traced(model, model)
    assert set(found.graph.updates) == {
        f"state.metric.eval/accuracy.{name}" for name, _ in model.accuracy.named_buffers()
    }
    assert {"state.model.linear.weight", "state.model.linear.bias"} <= set(found.state)


def test_a_tensor_that_nothing_has_gets_a_number() -> None:
    count = DeviceTensor(torch.zeros(()), torch.zeros(()))
    found = traced(lambda x: count.add_(x.sum()))
    assert list(found.graph.updates) == ["state.optimizer.tensor.0"]
