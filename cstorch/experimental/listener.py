"""Listeners for the tensors of a step while it is recorded, and of every step on a CPU.

A name is that of the module that returned the tensor, with `.fwd` or, for its gradient, `.bwd`; a number
follows where a module returns several, or is called several times.
"""

from __future__ import annotations

import fnmatch
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

Hook = Callable[[torch.Tensor, str], object]

_hooks: OrderedDict[int, Hook] = OrderedDict()


def register_traced_tensor_hook(hook: Hook) -> RemovableHandle:
    """Call a function with the outputs of modules, their gradients and their names.

    Args:
        hook: Called with the tensor and its name.

    Returns:
        A handle; its `remove()` ends that.
    """
    handle = RemovableHandle(_hooks)
    _hooks[handle.id] = hook
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
    from cstorch.loop.steps import summarize_tensor

    kind = settings.pop("listener", "summary")
    if settings or kind != "summary":
        raise ValueError(f"listener is {kind!r} with {sorted(settings)}, expected 'summary' and nothing else")
    patterns = [tensor_names] if isinstance(tensor_names, str) else list(tensor_names)

    def summarize(tensor: torch.Tensor, name: str) -> None:
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            summarize_tensor(f"{listener_name}/{name}", tensor)

    return register_traced_tensor_hook(summarize)


@contextmanager
def listening(models: list[nn.Module]) -> Iterator[None]:
    """Call the hooks with the tensors of the body, which runs the function of a step.

    Args:
        models: Name the modules, as their parameters are named.
    """
    if not _hooks:
        yield
        return
    names = {id(module): name for model in models for name, module in model.named_modules()}
    seen: Counter[str] = Counter()

    def announce(tensor: torch.Tensor, name: str) -> None:
        for hook in list(_hooks.values()):
            hook(tensor, name)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        path = names.get(id(module))
        for tensor in pytree.tree_leaves(output):
            if path is None or not isinstance(tensor, torch.Tensor):
                continue
            name = f"{path or 'model'}.{{}}" + (f".{seen[path]}" if seen[path] else "")
            seen[path] += 1
            announce(tensor, name.format("fwd"))
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient, name=name: announce(gradient, name.format("bwd")))

    handle = register_module_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()
