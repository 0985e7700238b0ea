"""Hooks of values that come from the system."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle

from cstorch.program import Program

Hook = Callable[[torch.Tensor, str], object]


def register_after_tensor_to_cpu(hook: Hook) -> RemovableHandle:
    """Call a function with each tensor whose value comes from the system for a step closure, and its name.

    Args:
        hook: Called with the tensor on this CPU, and with "output".

    Returns:
        A handle; its `remove()` ends that.
    """
    hooks = Program.current().hooks.tensor_to_cpu
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
