"""Traces one call of a step function: its graph, state and outputs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from cgc.importers.aten import Constant, Graph
from cgc.importers.emit import triangle
from cs_toolkit.step import MODEL_STATE, OPTIMIZER_STATE
from cstorch.errors import StepError
from cstorch.tracing.device import DeviceTensor, set_value, value_of
from cstorch.tracing.loops import keep_unused
from cstorch.tracing.recorder import tracing
from cstorch.tracing.recording import Recording
from cstorch.tracing.state import names_of, stores
from cstorch.tracing.values import dtype_name, to_array

log = logging.getLogger("cstorch")

UNNAMED_PREFIX = OPTIMIZER_STATE + "tensor."
_OF_A_PARAMETER = re.compile(rf"{re.escape(OPTIMIZER_STATE)}(\d+\.)?state\.")


@dataclass(frozen=True)
class TracedStep:
    """A traced step.

    Attributes:
        graph: its operations; outputs are named "0", "1" and so on in the order of `output_tensors`.
        state: the device tensors that it reads or replaces, by resource name.
        returned: the return value of the function, whose tensors have sizes and types, but no elements yet.
        output_tensors: the distinct tensors of the device in `returned`.
        numbers: entries of Python dicts that it depends on, with their values.
        fixed: tensors of the device that are constants of it, with their elements.
    """

    graph: Graph
    state: dict[str, DeviceTensor]
    returned: Any
    output_tensors: list[DeviceTensor]
    numbers: list[tuple[dict[str, Any], str, float]]
    fixed: list[tuple[DeviceTensor, np.ndarray[Any, Any]]]

    def is_outdated(self) -> bool:
        """Return True if the program has changed a number or a constant: the step is to be recorded again."""
        return self.find_changed_number() is not None or any(
            to_array(tensor.to_host()).tobytes() != elements.tobytes() for tensor, elements in self.fixed
        )

    def find_changed_number(self) -> tuple[str, float, float] | None:
        """Return name, recorded and present value of the first number that the program has changed."""
        changes = (
            (name, was, group.get(name, was))
            for group, name, was in self.numbers
            if group.get(name, was) != was
        )
        return next(changes, None)


class StepTracing:
    """A step that is being traced, from construction until `end` or `abandon`.

    Everything that happens to tensors of the device in between is recorded, regardless of the caller.

    Args:
        inputs: the tensors of a batch, in the order in which they are streamed.
        state: tensors of the device that the step may read and write, by resource name. A tensor with two
            names is one state, under the first. Other tensors of the device are constants of the step if
            it only reads them, else state as well, by the names of `cstorch.tracing.state`.
        modules: models whose paths name the layers of operations.
        earlier: a recording of the same step, whose shapes are reused.

    Attributes:
        recording: the operations so far.

    Raises:
        StepError: a tensor of the state is not on the device.
    """

    def __init__(
        self,
        inputs: Sequence[DeviceTensor],
        state: Mapping[str, torch.Tensor],
        modules: Sequence[nn.Module] = (),
        earlier: Recording | None = None,
    ) -> None:
        self.recording = recording = Recording(earlier=() if earlier is None else earlier.shapes)
        for module in modules:
            recording.places.name_modules(module)
        self._kept = [
            (store, key, x)
            for store in stores(modules)
            for key, x in store.items()
            if isinstance(x, DeviceTensor)
        ]
        self._inputs, self._named = inputs, _check_state(state)
        for name, tensor in self._named.items():
            value = recording.new(tensor)
            recording.graph.state[name] = value.value
            recording.initial_tensors[value.value.id] = tensor
            set_value(tensor, value)
        for tensor in inputs:
            set_value(tensor, recording.input(tensor))
        self._mode = ExitStack()
        self._mode.enter_context(tracing(recording))

    def keep_as_state(self, tensor: DeviceTensor) -> None:
        """Make an unnamed tensor state of the step, even if the step only reads it."""
        self.recording.variable.add(id(tensor))

    def changes_parameters(self) -> bool:
        """Return True if the step has replaced a parameter so far."""
        before = self.recording.graph.state
        return any(
            isinstance(tensor, nn.Parameter) and value_of(tensor).value != before[name]
            for name, tensor in self._named.items()
        )

    def end(self, returned: Any, with_numbers: bool = False) -> TracedStep:
        """End the tracing and return the step.

        Args:
            returned: a nest with the outputs of the step.
            with_numbers: adds scalar state that the step changes and that belongs to no single parameter to
                the outputs, such as learning rates, loss scales and counts of metrics.
        """
        try:
            self._restore_replaced()
            self._check_gradients()
            self.recording.end_guarded(whole=True)
            if self.recording.bodies and self.recording.roots:
                with torch.no_grad():
                    keep_unused(self.recording)
        finally:
            self._mode.close()
        try:
            return _finish(self.recording, self._named, returned, with_numbers)
        finally:
            self._forget()

    def _restore_replaced(self) -> None:
        """Write tensors that replace state, as in `self.mean = 0.9 * self.mean + x`, into the state."""
        with torch.no_grad():
            for store, key, tensor in self._kept:
                found = store.get(key)
                if found is tensor or not isinstance(found, torch.Tensor):
                    continue
                if not tensor.numel() and found.numel():  # sized by its first use, as a neuron's potential
                    _warn_of_sized_state(key, _describe(found))
                    store[key] = tensor
                    continue
                if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
                    raise StepError(
                        f"the step replaces its state '{key}' by {_describe(found)}, expected "
                        f"{_describe(tensor)} as before the step: each step begins with the state that the "
                        "previous one left"
                    )
                tensor.copy_(found)
                store[key] = tensor

    def _check_gradients(self) -> None:
        """Warn of a step that keeps its gradients and does not clear those of the previous step."""
        parameters = (x for x in self._named.values() if isinstance(x, nn.Parameter))
        kept = self.recording.roots and any(x.grad is not None for x in parameters)
        is_first = not self.recording.earlier
        if kept and is_first and not self.recording.sees_gradients:
            log.warning(
                "the step does not call zero_grad(): it begins without gradients, while PyTorch would add to "
                "those of the previous step"
            )

    def abandon(self) -> None:
        """End the tracing without a result, as after an error."""
        for store, key, tensor in self._kept:
            if isinstance(store.get(key), torch.Tensor):
                store[key] = tensor
        self._mode.close()
        self._forget()

    def _forget(self) -> None:
        for tensor in (*self._named.values(), *self._inputs, *self.recording.unnamed):
            tensor.elem = tensor.base = None


@cache
def _warn_of_sized_state(key: str, described: str) -> None:
    log.warning("the empty state '%s' becomes %s in the step: it is empty again in the next", key, described)


def _describe(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def trace(
    function: Callable[[], Any],
    inputs: Sequence[DeviceTensor],
    state: Mapping[str, torch.Tensor],
    modules: Sequence[nn.Module] = (),
) -> TracedStep:
    """Call a step function once and record all that it does with tensors of the device.

    The other arguments are those of `StepTracing`.

    Raises:
        StepError: the function reads a value, writes into a tensor of this CPU, or draws numbers on this CPU.
    """
    step = StepTracing(inputs, state, modules)
    try:
        returned = function()
    except BaseException:
        step.abandon()
        raise
    return step.end(returned)


def _check_state(state: Mapping[str, torch.Tensor]) -> dict[str, DeviceTensor]:
    named: dict[str, DeviceTensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        if not isinstance(tensor, DeviceTensor):
            raise StepError(
                f"{name} is a tensor of {tensor.device}, expected one of the CS system's device: the model "
                "was moved, or the parameter replaced, after cstorch.compile; remove .to(), .cpu() and the "
                "like, and load values with load_state_dict"
            )
        if id(tensor) not in seen:
            named[name] = tensor
            seen.add(id(tensor))
    return named


def _finish(
    recording: Recording, named: dict[str, DeviceTensor], returned: Any, with_numbers: bool
) -> TracedStep:
    graph = recording.graph
    graph.half = _half_of(graph)
    first = recording.initial_values
    changed = [
        tensor
        for tensor in recording.unnamed
        if value_of(tensor).value != first[id(tensor)] or id(tensor) in recording.variable
    ]
    # The program has read state on the assumption that the step does not change it.
    for number, error in recording.assumed.items():
        if value_of(recording.initial_tensors[number]).value.id != number:
            raise error
    assumed = {id(recording.initial_tensors[number]) for number in recording.assumed}
    names = names_of(changed)
    for tensor in changed:
        name = names.get(id(tensor), f"{UNNAMED_PREFIX}{len(named)}")
        value = graph.state[name] = first[id(tensor)]
        named[name] = tensor
        graph.constants.pop(value.id)
    read = [tensor for tensor in recording.unnamed if first[id(tensor)].id in graph.constants]
    fixed = [(tensor, graph.constants[first[id(tensor)].id].array) for tensor in read]
    for name, tensor in list(named.items()):
        value = value_of(tensor).value
        if value != graph.state[name]:
            graph.updates[name] = value
        elif id(tensor) in assumed or (name.startswith(MODEL_STATE) and _is_fixed(tensor)):
            value = graph.state.pop(name)
            graph.constants[value.id] = Constant(value, to_array(named.pop(name).to_host()))
            fixed.append((tensor, graph.constants[value.id].array))
    # A tensor that is returned twice is one output.
    leaves = {id(x): x for x in pytree.tree_leaves(returned) if isinstance(x, DeviceTensor)}
    computed = [x for x in leaves.values() if x.elem is not None]
    for position, leaf in enumerate(computed):
        graph.outputs[str(position)] = value_of(leaf).value
    for name in graph.updates if with_numbers else ():
        tensor = named[name]
        if not tensor.ndim and id(tensor) not in leaves and not _OF_A_PARAMETER.match(name):
            graph.outputs[name] = graph.updates[name]
            computed.append(tensor)
    recording.compute_float64()
    return TracedStep(graph, named, returned, computed, recording.numbers, fixed)


def _half_of(graph: Graph) -> str | None:
    """Return the 16-bit format of the autocasts of a step."""
    found = {node.half: node.source for node in graph.nodes if node.half is not None}
    if len(found) > 1:
        where = ", ".join(f"{half} at {source}" for half, source in found.items())
        raise StepError(f"the step has autocasts in {where}; expected one 16-bit format in a step")
    return next(iter(found), None)


def _is_fixed(tensor: DeviceTensor) -> bool:
    """Return True if a tensor that no operation writes is a constant: integers, bools or a triangle."""
    # Masks and position ids are such buffers. The compiler reads constants, so that it sees which keys an
    # attention masks. Floats and counters are state: another step changes them, and checkpoints have them.
    if isinstance(tensor, torch.nn.Parameter) or tensor.host is None or not tensor.ndim:
        return False
    return not tensor.is_floating_point() or triangle(to_array(tensor.host)) is not None
