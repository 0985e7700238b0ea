"""Functions that choose the type they compute in: the 16-bit type, float32, or the widest of their arguments.

They cast only with mixed precision (`enable_mixed_precision`, `set_half_dtype`), and not in `disable_casts`.
In a recorded step the compiler casts to the 16-bit type, as in `autocast`; elsewhere PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from cstorch.amp.half import autocast, enable_mixed_precision
from cstorch.compatibility import announce_unused
from cstorch.precision import is_mixed, torch_half_dtype
from cstorch.tracing.device import current_recording

Function = TypeVar("Function", bound=Callable[..., Any])

_REGISTERED = "_cstorch_casting"
"""Attribute of a function that casts: the function as it was."""

_disabled = [0]


def half_function(fn: Function) -> Function:
    """Return a function that computes in the 16-bit type of mixed precision."""

    def cast(args: Any, contexts: ExitStack) -> Any:
        if current_recording() is None:
            return _cast(args, torch_half_dtype())
        contexts.enter_context(autocast())
        return args

    return _casting(fn, cast)


def float_function(fn: Function) -> Function:
    """Return a function that computes in float32, within `autocast` too."""

    def cast(args: Any, contexts: ExitStack) -> Any:
        contexts.enter_context(autocast(enabled=False))
        return _cast(args, torch.float32)

    return _casting(fn, cast)


def promote_function(fn: Function) -> Function:
    """Return a function whose floating-point arguments are cast to the widest type among them."""

    def cast(args: Any, contexts: ExitStack) -> Any:
        found = {leaf.dtype for leaf in pytree.tree_leaves(args) if _is_floating(leaf)}
        if len(found) < 2:
            return args
        widest, *others = found
        for dtype in others:
            widest = torch.promote_types(widest, dtype)
        return _cast(args, widest)

    return _casting(fn, cast)


def register_half_function(module: Any, name: str) -> None:
    """Replace a function of a module by its `half_function`.

    Raises:
        ValueError: the module has no function of that name.
    """
    _register(module, name, half_function)


def register_float_function(module: Any, name: str) -> None:
    """Replace a function of a module by its `float_function`; see `register_half_function`."""
    _register(module, name, float_function)


def register_promote_function(module: Any, name: str) -> None:
    """Replace a function of a module by its `promote_function`; see `register_half_function`."""
    _register(module, name, promote_function)


@contextmanager
def disable_casts() -> Iterator[None]:
    """Compute the body in the types of its tensors: neither `autocast` nor these functions cast."""
    _disabled[0] += 1
    try:
        with autocast(enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        _disabled[0] -= 1


def init(
    enabled: bool = True, enable_caching: bool = True, verbose: bool = False, allow_banned: bool = False
) -> None:
    """Switch mixed precision on or off for this process.

    Args:
        enabled: computes steps in the 16-bit type.
        enable_caching: without effect: the compiler casts each value once.
        verbose: without effect: it logs casts of the original.
        allow_banned: without effect: no function is refused.
    """
    announce_unused("amp.init()", {"verbose": verbose, "allow_banned": allow_banned})
    enable_mixed_precision(enabled)


def _casting(fn: Function, cast: Callable[[Any, ExitStack], Any]) -> Function:
    @wraps(fn)
    def casting(*args: Any, **kwargs: Any) -> Any:
        if _disabled[0] or not is_mixed():
            return fn(*args, **kwargs)
        with ExitStack() as contexts:
            args, kwargs = cast((args, kwargs), contexts)
            return fn(*args, **kwargs)

    setattr(casting, _REGISTERED, fn)
    return casting  # type: ignore[return-value]


def _register(module: Any, name: str, kind: Callable[[Any], Any]) -> None:
    found = getattr(module, name, None)
    if not callable(found):
        raise ValueError(f"{module!r} has no function {name!r}; expected the name of one of its functions")
    setattr(module, name, kind(getattr(found, _REGISTERED, found)))


def _cast(args: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(dtype) if _is_floating(leaf) else leaf, args)


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
