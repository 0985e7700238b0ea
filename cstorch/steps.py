"""The decorators of a program's functions: the step, and what runs behind it on this CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch.utils import _pytree as pytree

from cstorch.backends import on_cpu
from cstorch.compiled import cpu_models, models
from cstorch.core.compile import hooked
from cstorch.cpu_loop import CpuLoop
from cstorch.experimental.listener import listening
from cstorch.loop import Loop, Recordings, call_closure, call_outside_of_loops, running, step_of
from cstorch.recorded_step import ClosureCall
from cstorch.tracing.device import DeviceTensor, is_tracing

P = ParamSpec("P")
T = TypeVar("T")


def compile_step(step_fn: Callable[P, T]) -> Callable[P, T]:
    """Compiles a function that is one whole step: forward, backward, update.

    Its first call is traced; Python runs once. What it returns can be read in step closures only; operations
    between steps compute with it on this CPU. On the CPU backend every call is the function's own.
    """

    known: Recordings = {}

    @wraps(step_fn)
    def function(*args: P.args, **kwargs: P.kwargs) -> T:
        with hooked(), listening([*models, *cpu_models]):
            return step_fn(*args, **kwargs)

    @wraps(step_fn)
    def step(*args: P.args, **kwargs: P.kwargs) -> T:
        if on_cpu():
            loop = running()
            if not isinstance(loop, CpuLoop):
                return function(*args, **kwargs)
            loop.count_turn()
            returned = function(*args, **kwargs)
            loop.step_returned(returned)
            return returned
        return step_of(function, args, kwargs, known)

    return step


trace = compile_step


def step_closure(closure: Callable[P, T]) -> Callable[P, T | None]:
    """A function that gets the values of tensors: it runs on this CPU, after the step.

    Called inside of the step it runs after every step, and returns None there. Called outside of a loop it
    runs immediately, for tensors have values there.
    """

    @wraps(closure)
    def at_step(*args: P.args, **kwargs: P.kwargs) -> T | None:
        loop = running()
        if loop is None:
            return call_outside_of_loops(closure, *args, **kwargs)
        if is_tracing():
            assert isinstance(loop, Loop)
            loop.add_closure(
                ClosureCall(closure, pytree.tree_map_only(DeviceTensor, _as_now, (args, kwargs)))
            )
            return None
        if loop.ended:  # nothing runs when a program is only compiled
            return None
        return call_closure(loop, closure, *args, **kwargs)

    return at_step


def _as_now(tensor: DeviceTensor) -> torch.Tensor:
    """A number of the state, such as a learning rate, as it is here: the step may write it later."""
    is_number_of_state = tensor.host is not None and tensor.dim() == 0
    return tensor.detach().clone() if is_number_of_state else tensor


def checkpoint_closure(closure: Callable[P, T]) -> Callable[P, T | None]:
    """A step closure that runs at checkpoint steps alone: there the state of the model can be read.

    These are the multiples of `checkpoint_steps`, and the last step, of a loop that has checkpoint steps.
    """

    @wraps(closure)
    def at_checkpoints(*args: P.args, **kwargs: P.kwargs) -> T | None:
        loop = running()
        return closure(*args, **kwargs) if loop is None or loop.at_checkpoint else None

    return step_closure(at_checkpoints)
