"""What a process computes its steps in: float32, or 16 bits where a step says so or all of it."""

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
    """Name of the 16-bit type of this process."""
    return Program.current().half_dtype


def name_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Says which the 16-bit type is, and not that a step is computed in it.

    Args:
        value: "float16", "bfloat16" or "cbfloat16", or one of PyTorch's two types.

    Returns:
        The type that stands for it in PyTorch, which has no cbfloat16: there it is float16.

    Raises:
        ValueError: the type is none of these.
    """
    name = str(value).removeprefix("torch.")
    if name not in HALF_DTYPES:
        raise ValueError(f"got the 16-bit type {value}, expected one of {', '.join(HALF_DTYPES)}")
    Program.current().half_dtype = name
    return torch_half_dtype()


def mix_precision(wanted: bool = True) -> None:
    """Says whether steps without an autocast are computed in the 16-bit type."""
    Program.current().mixed_precision = wanted


def is_mixed() -> bool:
    """Return True if steps without an autocast are computed in the 16-bit type."""
    return Program.current().mixed_precision


def torch_half_dtype() -> torch.dtype:
    """Return PyTorch's type for the 16-bit type of this process; float16 also stands for cbfloat16."""
    return torch.bfloat16 if half_dtype() == "bfloat16" else torch.float16


def precision_of(half: str | None) -> Precision:
    """What a step is computed in: the format of its autocasts, if it has any, else what the process says."""
    if half is None and not is_mixed():
        return "float32"
    return _PRECISIONS[half or half_dtype()]


def format_of(dtype: torch.dtype | None) -> str:
    """The 16-bit format that an autocast means.

    Args:
        dtype: as the program gives it; None, and float16 where it stands for cbfloat16, mean the chosen one.

    Raises:
        StepError: PyTorch's type has not 16 bits.
    """
    if dtype is None or (dtype == torch.float16 and half_dtype() == "cbfloat16"):
        return half_dtype()
    if dtype not in _FORMATS:
        raise StepError(
            f"{user_line() or 'line unknown'}: autocast got {dtype}, expected torch.float16 or torch.bfloat16"
        )
    return _FORMATS[dtype]
