"""Hooks of values that come from the system."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle

Hook = Callable[[torch.Tensor, str], object]

_hooks: OrderedDict[int, Hook] = OrderedDict()


def register_after_tensor_to_cpu(hook: Hook) -> RemovableHandle:
    """Call a function with each tensor whose value comes from the system for a step closure, and its name.

    Args:
        hook: Called with the tensor on this CPU, and with "output".

    Returns:
        A handle; its `remove()` ends that.
    """
    handle = RemovableHandle(_hooks)
    _hooks[handle.id] = hook
    return handle


def announce(tensor: torch.Tensor) -> torch.Tensor:
    """Call the hooks with a tensor that has come, and return it."""
    for hook in list(_hooks.values()):
        hook(tensor, "output")
    return tensor
