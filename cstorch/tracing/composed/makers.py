"""Tensors made of numbers of Python in a step: PyTorch copies these past tensors of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cstorch.tracing.selections import make_sized

_tensor, _as_tensor = torch.tensor, torch.as_tensor


def tensor(data: Any, *, device: Any = None, **settings: Any) -> torch.Tensor:
    """`torch.tensor`."""
    return _placed(_tensor(data, **settings), device)


def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """`torch.as_tensor`."""
    if isinstance(data, torch.Tensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    return _placed(_as_tensor(data, dtype=dtype), device)


def new_tensor(like: torch.Tensor, data: Any, *, device: Any = None, **settings: Any) -> torch.Tensor:
    """`Tensor.new_tensor`: of the type and on the device of another one."""
    made = data if isinstance(data, torch.Tensor) else _tensor(data, **{"dtype": like.dtype, **settings})
    return _placed(made, like.device if device is None else device)


def _placed(made: torch.Tensor, device: Any) -> torch.Tensor:
    grad = made.requires_grad
    moved = made if device is None else made.detach().to(device)
    return moved.requires_grad_() if grad else moved


def _sized(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Let a function make a tensor with as many rows as a selection has."""

    def made(*args: Any, **settings: Any) -> torch.Tensor:
        if "size" in settings:
            return make_sized(make, (settings.pop("size"),), args, settings)
        if not args:
            return make(**settings)
        whole = make is not torch.full and isinstance(args[0], int | torch.Tensor)
        sizes, others = (args, ()) if whole else (args[:1], args[1:])
        return make_sized(make, sizes, others, settings)

    made.__name__ = make.__name__
    return made


SIZED = tuple(_sized(make) for make in (torch.empty, torch.full, torch.ones, torch.zeros))
