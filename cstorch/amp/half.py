"""Mixed precision: the 16-bit type of a process, `autocast`, and functions that cast their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from cstorch.compatibility import log_unused
from cstorch.program import Program, use_cs
from cstorch.tracing.places import Places
from cstorch.tracing.precision import (
    format_of,
    half_dtype,
    is_mixed,
    mix_precision,
    name_half_dtype,
    torch_half_dtype,
)
from cstorch.tracing.recorder import current_recording

Function = TypeVar("Function", bound=Callable[..., Any])

_REGISTERED = "_cstorch_casting"
"""Attribute of a function that casts: the original function."""


def set_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Choose the 16-bit type and compute whole steps in it; `autocast` chooses a part of a step.

    Arguments, result and errors are those of `cstorch.tracing.precision.name_half_dtype`.
    """
    found = name_half_dtype(value)
    mix_precision()
    return found


def use_bfloat16(value: bool = True) -> torch.dtype:
    """Choose bfloat16 as `set_half_dtype` does, or set the type to float16; of releases before 2.0."""
    return set_half_dtype("bfloat16") if value else name_half_dtype("float16")


def enable_mixed_precision(enable: bool = True) -> None:
    """Compute steps in the 16-bit type, or in float32 again; `set_half_dtype` chooses the type."""
    mix_precision(enable)


def mixed_precision() -> bool:
    """Return True if steps are computed in the 16-bit type."""
    return is_mixed()


def get_half_dtype() -> torch.dtype:
    """Return the 16-bit type as PyTorch's; cbfloat16 is float16 there."""
    return torch_half_dtype()


def get_half_dtype_str() -> str:
    """Return the name of the 16-bit type: "float16", "bfloat16" or "cbfloat16"."""
    return half_dtype()


def get_floating_point_dtype(default: torch.dtype = torch.float32) -> torch.dtype:
    """Return the type of activations: the 16-bit type with mixed precision, else `default`."""
    return torch_half_dtype() if is_mixed() else default


def get_floating_point_dtype_str(default: str = "float32") -> str:
    """Return the name of the type of activations: the 16-bit type with mixed precision, else `default`."""
    return half_dtype() if is_mixed() else default


def is_cbfloat16_tensor(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has cbfloat16 elements on the CS system, which PyTorch shows as float16."""
    return use_cs() and half_dtype() == "cbfloat16" and tensor.dtype == torch.float16


class autocast(ContextDecorator):  # noqa: N801 - as torch.autocast is called
    """Computes a part of a step in the 16-bit type, the rest in float32; gradients like their operations.

    Products, and elementwise operations between them, have 16 bits (docs/how-to/precision.md); losses,
    sums and updates do not. A step has one 16-bit type. On the CPU backend it is `torch.autocast` with
    bfloat16, and has no effect with other types.

    Args:
        dtype: one of PyTorch's types; None, or float16 if the chosen type is cbfloat16, mean the chosen one.
        enabled: False computes in float32, inside of another `autocast` too.
        cache_enabled: has no effect.
    """

    def __init__(
        self, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        self._half = format_of(dtype) if enabled else None
        self._entered: list[AbstractContextManager[object] | Places] = []

    def __enter__(self) -> autocast:
        recording = current_recording()
        if recording is not None:
            recording.places.enter_half(self._half)
            self._entered.append(recording.places)
            return self
        on_cpu: AbstractContextManager[object] = nullcontext()
        if self._half == "bfloat16":
            on_cpu = torch.autocast("cpu", torch.bfloat16)
        on_cpu.__enter__()
        self._entered.append(on_cpu)
        return self

    def __exit__(self, *error: object) -> None:
        entered = self._entered.pop()
        if isinstance(entered, Places):
            entered.leave_half()
        else:
            entered.__exit__(None, None, None)


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
    """Replace a function of a module by its `float_function`."""
    _register(module, name, float_function)


def register_promote_function(module: Any, name: str) -> None:
    """Replace a function of a module by its `promote_function`."""
    _register(module, name, promote_function)


@contextmanager
def disable_casts() -> Iterator[None]:
    """Compute the body in the types of its tensors: neither `autocast` nor these functions cast."""
    program = Program.current()
    program.disabled_casts += 1
    try:
        with autocast(enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        program.disabled_casts -= 1


def init(
    enabled: bool = True, enable_caching: bool = True, verbose: bool = False, allow_banned: bool = False
) -> None:
    """Switch mixed precision on or off for this process.

    Args:
        enabled: computes steps in the 16-bit type.
        enable_caching: has no effect: the compiler casts each value once.
        verbose: has no effect: it logs casts of the original.
        allow_banned: has no effect: no function is refused.
    """
    log_unused("amp.init()", {"verbose": verbose, "allow_banned": allow_banned})
    enable_mixed_precision(enabled)


def _casting(fn: Function, cast: Callable[[Any, ExitStack], Any]) -> Function:
    @wraps(fn)
    def casting(*args: Any, **kwargs: Any) -> Any:
        if Program.current().disabled_casts or not is_mixed():
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
