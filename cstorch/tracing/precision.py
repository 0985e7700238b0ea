"""The precision of steps: float32, or the 16-bit type of the program."""

from __future__ import annotations

import torch

from cs_toolkit.step import Precision
from cstorch.errors import StepError
from cstorch.program import Program
from cstorch.tracing.places import user_line

HALF_DTYPES = ("float16", "bfloat16", "cbfloat16")
_PRECISIONS: dict[str, Precision] = {
    "float16": "mixed_float16",
    "bfloat16": "mixed_bfloat16",
    "cbfloat16": "cbfloat16",
}
_FORMATS = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def half_dtype() -> str:
    """Return the name of the program's 16-bit type."""
    return Program.current().half_dtype


def name_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Set the 16-bit type, without computing steps in it.

    Args:
        value: "float16", "bfloat16" or "cbfloat16", or one of PyTorch's two types.

    Returns:
        PyTorch's type for it; float16 for cbfloat16, which PyTorch lacks.

    Raises:
        ValueError: The type is none of these.
    """
    name = str(value).removeprefix("torch.")
    if name not in HALF_DTYPES:
        raise ValueError(f"got the 16-bit type {value}, expected one of {', '.join(HALF_DTYPES)}")
    Program.current().half_dtype = name
    return torch_half_dtype()


def mix_precision(wanted: bool = True) -> None:
    """Set whether steps without an autocast are computed in the 16-bit type."""
    Program.current().mixed_precision = wanted


def is_mixed() -> bool:
    """Return True if steps without an autocast are computed in the 16-bit type."""
    return Program.current().mixed_precision


def torch_half_dtype() -> torch.dtype:
    """Return PyTorch's type for the program's 16-bit type; float16 for cbfloat16, which PyTorch lacks."""
    return torch.bfloat16 if half_dtype() == "bfloat16" else torch.float16


def precision_of(half: str | None) -> Precision:
    """Return the precision of a step: the format of its autocasts, or without any that of the program."""
    if half is None and not is_mixed():
        return "float32"
    return _PRECISIONS[half or half_dtype()]


def format_of(dtype: torch.dtype | None) -> str:
    """Return the 16-bit format of an autocast.

    Args:
        dtype: Type that the program gives; None means the program's 16-bit type, as does float16 if that is
            cbfloat16.

    Raises:
        StepError: The type does not have 16 bits.
    """
    if dtype is None or (dtype == torch.float16 and half_dtype() == "cbfloat16"):
        return half_dtype()
    if dtype not in _FORMATS:
        raise StepError(
            f"{user_line() or 'line unknown'}: autocast got {dtype}, expected torch.float16 or torch.bfloat16"
        )
    return _FORMATS[dtype]
