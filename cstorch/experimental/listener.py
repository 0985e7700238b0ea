"""Listeners for the tensors of a step while it is recorded, and of every step on a CPU.

A tensor is named after the module that returned it, with `.fwd`, or `.bwd` for its gradient. A number follows
if a module returns several tensors or is called several times.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from cstorch.loop.steps import summarize_tensor
from cstorch.program import Program

Hook = Callable[[torch.Tensor, str], object]


def register_traced_tensor_hook(hook: Hook) -> RemovableHandle:
    """Call a function with the outputs of modules, their gradients and their names.

    Args:
        hook: Called with the tensor and its name.

    Returns:
        A handle; its `remove()` ends that.
    """
    hooks = Program.current().hooks.traced_tensor
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def create_listener(listener_name: str, tensor_names: str | list[str], **settings: Any) -> RemovableHandle:
    """Summarize the tensors whose names match, as `<listener_name>/<name>`.

    Args:
        listener_name: Begins the names of the summaries.
        tensor_names: Names with wildcards.
        settings: `listener`, its kind: "summary".

    Returns:
        A handle; its `remove()` ends that.

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
