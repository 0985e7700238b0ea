"""Hooks around the function of a step: they run when it is recorded, and around every call on a CPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], object]

_before: OrderedDict[int, Hook] = OrderedDict()
_after: OrderedDict[int, Hook] = OrderedDict()


def register_trace_fn_pre_hook(hook: Hook) -> RemovableHandle:
    """Call a function before the function of a step.

    Returns:
        A handle; its `remove()` ends that.
    """
    return _register(_before, hook)


def register_trace_fn_post_hook(hook: Hook) -> RemovableHandle:
    """Call a function after the function of a step.

    Returns:
        A handle; its `remove()` ends that.
    """
    return _register(_after, hook)


@contextmanager
def hooked() -> Iterator[None]:
    """Call the hooks around the body, which runs the function of a step."""
    for hook in list(_before.values()):
        hook()
    yield
    for hook in list(_after.values()):
        hook()


def _register(hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
