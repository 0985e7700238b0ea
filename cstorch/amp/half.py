"""Where a process computes in 16 bits, and in which type."""

from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator, nullcontext

import torch

from cstorch.compiled import use_cs
from cstorch.precision import (
    format_of,
    half_dtype,
    is_mixed,
    mix_precision,
    name_half_dtype,
    torch_half_dtype,
)
from cstorch.tracing.device import current_recording
from cstorch.tracing.places import Places


def set_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Chooses the 16-bit type, and that steps are computed in it; `autocast` says which part of a step.

    Arguments, result and errors are those of `cstorch.precision.name_half_dtype`.
    """
    found = name_half_dtype(value)
    mix_precision()
    return found


def use_bfloat16(value: bool = True) -> torch.dtype:
    """Chooses bfloat16 as `set_half_dtype` does, or says that the type is float16; of releases before 2.0."""
    return set_half_dtype("bfloat16") if value else name_half_dtype("float16")


def enable_mixed_precision(enable: bool = True) -> None:
    """Compute steps in the 16-bit type, or in float32 again; `set_half_dtype` chooses the type."""
    mix_precision(enable)


def mixed_precision() -> bool:
    """Return True if steps are computed in the 16-bit type."""
    return is_mixed()


def get_half_dtype() -> torch.dtype:
    """Return the 16-bit type as PyTorch's; float16 also stands for cbfloat16."""
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
    """Return True if a tensor has cbfloat16 elements on the CS system, for which PyTorch says float16."""
    return use_cs() and half_dtype() == "cbfloat16" and tensor.dtype == torch.float16


class autocast(ContextDecorator):  # noqa: N801 - as torch.autocast is called
    """Computes a part of a step in the 16-bit type, the rest in float32; gradients as what they belong to.

    Products and what lies between them have 16 bits (docs/precision.md); losses, sums and updates have not. A
    step has one 16-bit type. On the CPU backend it is `torch.autocast` with bfloat16, and nothing with other
    types.

    Args:
        dtype: one of PyTorch's types; None, and float16 where that stands for cbfloat16, mean the chosen one.
        enabled: False computes in float32, inside of another `autocast` too.
        cache_enabled: without meaning.
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
