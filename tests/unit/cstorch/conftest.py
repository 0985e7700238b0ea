"""A CS system, a process as it begins, and steps run both ways: by torch itself, and compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.cirh.module import verify_module
from cgc.importers.aten import import_step
from cgc.lowering.interpret import step_function
from cs_toolkit.step import GLOBAL_STEP
from cstorch.program import Program
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import TracedStep, trace
from cstorch.tracing.values import to_array

Step = Callable[..., torch.Tensor | Sequence[torch.Tensor]]
"""Gets the model and a batch; returns tensors without dimensions."""


@dataclass(frozen=True)
class Compiled:
    """The returned values of every step, and the state after the last."""

    values: np.ndarray
    state: dict[str, np.ndarray]
    traced: TracedStep


@dataclass(frozen=True)
class BothWays:
    """The same steps by torch and compiled: `[steps, values]`, and the state by name in the model."""

    eager: np.ndarray
    eager_state: dict[str, np.ndarray]
    compiled: Compiled


def in_numbers(returned: torch.Tensor | Sequence[torch.Tensor]) -> list[float]:
    """Returned values as numbers."""
    values = [returned] if isinstance(returned, torch.Tensor) else returned
    return [float(value) for value in values]


def run_compiled(
    model: nn.Module,
    step: Step,
    batches: Sequence[Sequence[torch.Tensor]],
    prepare: Callable[[nn.Module], Mapping[str, torch.Tensor]] | None = None,
) -> Compiled:
    """Moves the model to the device, traces the step once and runs it on each batch.

    `prepare` gets the moved model, and returns more state of the step by its resource names.
    """
    move_to_device(model)
    state = {**model_state(model), **(prepare(model) if prepare else {})}
    inputs = [DeviceTensor(tensor) for tensor in batches[0]]
    return run_traced(trace(lambda: step(model, *inputs), inputs, state, [model]), batches)


def run_traced(traced: TracedStep, batches: Sequence[Sequence[torch.Tensor]]) -> Compiled:
    """Import a traced step and run it on each batch, from its state on this CPU."""
    module = import_step(traced.graph, mode="train", seed=3)
    verify_module(module)
    return run_module(module, traced, batches)


def run_module(module: ModuleOp, traced: TracedStep, batches: Sequence[Sequence[torch.Tensor]]) -> Compiled:
    """Run the module of a traced step on each batch, from the step's state on this CPU."""
    interface, function = step_interface(module), jax.jit(step_function(module))
    names = [spec.name for spec in interface.state]
    values = tuple(
        np.asarray(0, np.int64) if name == GLOBAL_STEP else to_array(traced.state[name].to_host())
        for name in names
    )
    found = []
    for batch in batches:
        values, outputs = function(values, tuple(map(to_array, batch)))
        found.append([float(output) for output in outputs])
    after = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
    return Compiled(np.asarray(found), after, traced)


@pytest.fixture
def both_ways() -> Callable[..., BothWays]:
    """Runs copies of a model from the same parameters on the same batches, both ways."""

    def run(model: nn.Module, step: Step, *batches: Sequence[torch.Tensor]) -> BothWays:
        eager = copy.deepcopy(model)
        values = np.asarray([in_numbers(step(eager, *batch)) for batch in batches])
        state = {name: value.numpy() for name, value in eager.state_dict().items()}
        return BothWays(values, state, run_compiled(copy.deepcopy(model), step, batches))

    return run


@pytest.fixture
def fresh_process() -> Iterator[None]:
    """Reset the state of the program, as in a new process."""
    Program.reset()
    yield
    Program.reset()
