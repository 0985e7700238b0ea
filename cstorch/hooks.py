"""Hooks that a program registers: around its steps, for tensors of a step, and for values from the system.

Hooks run when a step is recorded, and at every step on a CPU.
"""

from __future__ import annotations

import fnmatch
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from cstorch.loop.steps import summarize_tensor
from cstorch.program import Program

StepHook = Callable[[], object]
TensorHook = Callable[[torch.Tensor, str], object]
AnyHook = TypeVar("AnyHook", StepHook, TensorHook)


def register_trace_fn_pre_hook(hook: StepHook) -> RemovableHandle:
    """Call a function before the function of a step.

    Returns:
        A handle whose `remove()` unregisters the hook.
    """
    return _register(Program.current().hooks.before_step, hook)


def register_trace_fn_post_hook(hook: StepHook) -> RemovableHandle:
    """Call a function after the function of a step.

    Returns:
        A handle whose `remove()` unregisters the hook.
    """
    return _register(Program.current().hooks.after_step, hook)


def register_after_tensor_to_cpu(hook: TensorHook) -> RemovableHandle:
    """Call a function with each tensor whose value comes from the system for a step closure, and its name.

    Args:
        hook: Called with the tensor on this CPU, and with "output".

    Returns:
        A handle whose `remove()` unregisters the hook.
    """
    return _register(Program.current().hooks.tensor_to_cpu, hook)


def register_traced_tensor_hook(hook: TensorHook) -> RemovableHandle:
    """Call a function with the outputs of modules, their gradients and their names.

    A tensor is named after the module that returned it, with `.fwd`, or `.bwd` for its gradient. A number
    follows if a module returns several tensors or is called several times.

    Args:
        hook: Called with the tensor and its name.

    Returns:
        A handle whose `remove()` unregisters the hook.
    """
    return _register(Program.current().hooks.traced_tensor, hook)


def create_listener(listener_name: str, tensor_names: str | list[str], **settings: Any) -> RemovableHandle:
    """Summarize the tensors whose names match, as `<listener_name>/<name>`.

    Args:
        listener_name: Begins the names of the summaries.
        tensor_names: Names with wildcards.
        settings: `listener`, its kind: "summary".

    Returns:
        A handle whose `remove()` unregisters the hook.

    Raises:
        ValueError: The kind is another one.
    """
    kind = settings.pop("listener", "summary")
    if settings or kind != "summary":
        raise ValueError(f"listener is {kind!r} with {sorted(settings)}, expected 'summary' and nothing else")
    patterns = [tensor_names] if isinstance(tensor_names, str) else list(tensor_names)

    def summarize(tensor: torch.Tensor, name: str) -> None:
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            summarize_tensor(f"{listener_name}/{name}", tensor)

    return register_traced_tensor_hook(summarize)


def _register(hooks: OrderedDict[int, AnyHook], hook: AnyHook) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
