"""Traces one call of a step function: its graph, its state, its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from cgc.importers.aten import Graph
from cstorch.errors import StepError
from cstorch.tracing.device import DeviceTensor, set_value, to_device, tracing, value_of
from cstorch.tracing.record import Recording

MODEL_PREFIX = "state.model."
UNNAMED_PREFIX = "state.optimizer.tensor."


@dataclass(frozen=True)
class TracedStep:
    """A step, traced.

    Attributes:
        graph: its operations; outputs are named "0", "1" ... in the order of `output_tensors`.
        state: the device tensors that it reads or replaces, by resource name.
        returned: what the function returned; the tensors in it are described, and have no value yet.
        output_tensors: the different tensors of the device among `returned`.
    """

    graph: Graph
    state: dict[str, DeviceTensor]
    returned: Any
    output_tensors: list[DeviceTensor]


def trace(
    function: Callable[[], Any],
    inputs: Sequence[DeviceTensor],
    state: Mapping[str, torch.Tensor],
    modules: Sequence[nn.Module] = (),
) -> TracedStep:
    """Calls a step function once and records all that it does with tensors of the device.

    Args:
        function: the step, which takes its batch from `inputs`.
        inputs: the tensors of a batch, in the order in which they are streamed.
        state: tensors of the device that the step may read and write, by resource name. One that has two
            names is one state, under the first. Other tensors of the device are constants of the step if
            it only reads them, else state as well, `state.optimizer.tensor.N`.
        modules: give operations the paths of their layers.

    Raises:
        StepError: the function reads a value, writes into a tensor of this CPU, or draws on this CPU.
    """
    recording = Recording()
    for module in modules:
        recording.places.name_modules(module)
    named = _given(state)
    try:
        for name, tensor in named.items():
            value = recording.new(tensor)
            recording.graph.state[name] = value.value
            set_value(tensor, value)
        for tensor in inputs:
            set_value(tensor, recording.input(tensor))
        with tracing(recording):
            returned = function()
        return _finished(recording, named, returned)
    finally:
        for tensor in (*named.values(), *inputs, *recording.met):
            tensor.elem = tensor.base = None


def _given(state: Mapping[str, torch.Tensor]) -> dict[str, DeviceTensor]:
    named: dict[str, DeviceTensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        if not isinstance(tensor, DeviceTensor):
            raise StepError(f"{name} is a tensor of {tensor.device}, expected one of a compiled model")
        if id(tensor) not in seen:
            named[name] = tensor
            seen.add(id(tensor))
    return named


def _finished(recording: Recording, named: dict[str, DeviceTensor], returned: Any) -> TracedStep:
    graph = recording.graph
    for tensor in recording.met:
        first = recording.first_value[id(tensor)]
        if value_of(tensor).value != first:
            name = f"{UNNAMED_PREFIX}{len(named)}"
            graph.constants.pop(first.id)
            graph.state[name], named[name] = first, tensor
    for name, tensor in named.items():
        value = value_of(tensor).value
        if value != graph.state[name]:
            graph.updates[name] = value
    leaves = {id(x): x for x in pytree.tree_leaves(returned) if isinstance(x, DeviceTensor)}
    computed = [x for x in leaves.values() if x.elem is not None]
    for position, leaf in enumerate(computed):
        graph.outputs[str(position)] = value_of(leaf).value
    return TracedStep(graph, named, returned, computed)


def model_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a model by resource name."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {MODEL_PREFIX + name: tensor for name, tensor in tensors}


def move_to_device(model: nn.Module) -> None:
    """Replaces the parameters and buffers of a model by tensors of the device; tied ones stay tied."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    store[name] = moved.setdefault(id(tensor), to_device(tensor))
