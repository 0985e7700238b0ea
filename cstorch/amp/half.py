"""The 16-bit type that a process computes with."""

from __future__ import annotations

import torch

HALF_DTYPES = ("float16", "bfloat16", "cbfloat16")
_chosen = ["float16"]


def set_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Chooses the 16-bit type.

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
    _chosen[0] = name
    return torch.bfloat16 if name == "bfloat16" else torch.float16


def use_bfloat16(value: bool = True) -> torch.dtype:
    """Chooses bfloat16, or float16; the form of releases before 2.0."""
    return set_half_dtype("bfloat16" if value else "float16")


def half_dtype() -> str:
    """Name of the chosen 16-bit type."""
    return _chosen[0]
