"""Sums with a factor that is a number to PyTorch, and may be a tensor in a step: `p.add_(g, alpha=-lr)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_NAMES = ("add", "sub", "addcdiv", "addcmul")
_FACTORS = ("alpha", "value")


def _with_factor(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; a factor that is a tensor multiplies the operand that it belongs to."""

    def summed(tensor: Any, operand: Any, *others: Any, **named: Any) -> Any:
        for name in _FACTORS:
            if isinstance(named.get(name), torch.Tensor):
                operand = operand * named.pop(name)
        with torch._C.DisableTorchFunctionSubclass():
            return function(tensor, operand, *others, **named)

    return summed


_ORIGINALS = [
    *(getattr(torch.Tensor, f"{name}{ending}") for name in _NAMES for ending in ("", "_")),
    *(getattr(torch, name) for name in _NAMES),
]

SUMS: Mapping[Any, Callable[..., Any]] = {function: _with_factor(function) for function in _ORIGINALS}
"""By the functions that they stand for."""
