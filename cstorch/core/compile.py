"""Hooks around step functions, which run when a step is recorded, and around every step on a CPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch.utils.hooks import RemovableHandle

from cstorch.program import Program

Hook = Callable[[], object]


def register_trace_fn_pre_hook(hook: Hook) -> RemovableHandle:
    """Call a function before the function of a step.

    Returns:
        A handle; its `remove()` ends that.
    """
    return _register(Program.current().hooks.before_step, hook)


def register_trace_fn_post_hook(hook: Hook) -> RemovableHandle:
    """Call a function after the function of a step.

    Returns:
        A handle; its `remove()` ends that.
    """
    return _register(Program.current().hooks.after_step, hook)


def _register(hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
