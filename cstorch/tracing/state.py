"""The state of steps: names of the tensors that a step may replace, and the number of completed steps."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from cs_toolkit.step import MODEL_STATE
from cstorch.program import Program, StateHolder
from cstorch.tracing.device import is_tracing, to_device


def register(prefix: str, holder: StateHolder) -> None:
    """Name the tensors of a holder `<prefix><their name>` from now on.

    A holder that contains another one, such as a schedule made of others, is registered after it.
    """
    holding = Program.current().state_holders
    holding[:] = [(kind, known) for kind, known in holding if known() is not None]
    holding.append((prefix, weakref.ref(holder)))


def holders() -> Iterator[StateHolder]:
    """Yield the registered holders that still exist."""
    for _, known in Program.current().state_holders:
        holder = known()
        if holder is not None:
            yield holder


def names_of(tensors: Iterable[torch.Tensor]) -> dict[int, str]:
    """Return resource names of those tensors that a holder has, by the id of the tensor.

    If several holders with one prefix have some of them, a number follows the prefix after the first.
    """
    wanted = {id(tensor) for tensor in tensors}
    owners: dict[int, tuple[int, str]] = {}
    holding = Program.current().state_holders
    for index, (_, known) in enumerate(holding):
        holder = known()
        for name, tensor in () if holder is None else holder.named_state():
            if id(tensor) in wanted:
                owners[id(tensor)] = index, name
    prefixes: dict[int, str] = {}
    count: Counter[str] = Counter()
    for index in sorted({index for index, _ in owners.values()}):
        prefix = holding[index][0]
        prefixes[index] = f"{prefix}{count[prefix]}." if count[prefix] else prefix
        count[prefix] += 1
    return {key: prefixes[index] + name for key, (index, name) in owners.items()}


def stores(modules: Iterable[nn.Module]) -> Iterator[dict[Any, Any]]:
    """Yield the dictionaries in which modules and all holders of state keep their tensors."""
    for holder in (*modules, *holders()):
        if isinstance(holder, nn.Module):
            for part in holder.modules():
                yield part._parameters
                yield part._buffers
        elif isinstance(holder, torch.optim.Optimizer):
            yield from holder.state.values()
            yield from holder.param_groups
        else:
            yield vars(holder)


def model_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers of a model by resource name; those of a metric in it by the metric's."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    others = names_of(tensor for _, tensor in tensors)
    return {others.get(id(tensor), MODEL_STATE + name): tensor for name, tensor in tensors}


def move_to_device(model: nn.Module) -> None:
    """Replace the parameters and buffers of a model by tensors of the device; tied ones stay tied."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    store[name] = moved.setdefault(id(tensor), to_device(tensor))


def place_with_models(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor where the models are: on the device of the CS system if the program uses that."""
    return to_device(tensor) if Program.current().uses_cs else tensor


def steps_done() -> int:
    """Return the training steps of the state: those of the loaded checkpoint and of the loops since."""
    return Program.current().steps_done


def continue_at(step: int) -> None:
    """Set the number of completed steps, after a step or when a state is loaded."""
    Program.current().steps_done = step


class StateSteps(int):
    """A number of steps in the arguments of a closure, which gets the current number instead."""


def state_steps() -> int:
    """Return the number of steps for a state dictionary; one made within a step has the state after it."""
    return StateSteps(steps_done() + 1) if is_tracing() else steps_done()
