"""Tensors that a program makes where its model is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cstorch.backends import BackendType, Device
from cstorch.program import use_cs
from cstorch.tracing.device import DEVICE, is_tracing
from cstorch.tracing.state import place_with_models


def current_torch_device() -> torch.device:
    """The device that tensors of a compiled model say they are on."""
    return DEVICE if use_cs() else torch.device("cpu")


def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As `torch.tensor`; in a step a value of the step, which it may write into."""
    return _placed(torch.tensor(data, *args, **kwargs))


def full(*args: Any, **kwargs: Any) -> torch.Tensor:
    """As `torch.full`, beside the model."""
    return _placed(torch.full(*args, **kwargs))


def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
    """As `torch.zeros`, beside the model."""
    return _placed(torch.zeros(*args, **kwargs))


def ones(*args: Any, **kwargs: Any) -> torch.Tensor:
    """As `torch.ones`, beside the model."""
    return _placed(torch.ones(*args, **kwargs))


def full_like(other: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As `torch.full_like`."""
    return torch.full_like(other, *args, **kwargs)


def zeros_like(other: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """As `torch.zeros_like`."""
    return torch.zeros_like(other, **kwargs)


def ones_like(other: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """As `torch.ones_like`."""
    return torch.ones_like(other, **kwargs)


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose elements are part of the step; every tensor of this CPU is that in a step."""
    return tensor


def from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor of this CPU with the elements of an array; `bfloat16` arrays have the type of ml_dtypes."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements of a tensor; bfloat16 with the type of ml_dtypes.

    Raises:
        TensorReadError: in a step.
        ValueNotThereError: only a step computes it.
    """
    from cstorch.tracing.values import to_array

    return to_array(tensor.detach().cpu())


def _placed(made: torch.Tensor) -> torch.Tensor:
    return made.to(DEVICE) if is_tracing() else place_with_models(made)


def device(backend_type: str | BackendType | None = None, *args: Any, **kwargs: Any) -> Device | torch.device:
    """A context for making a model: where the backend's tensors are, or a device of torch such as "meta"."""
    name = backend_type.value if isinstance(backend_type, BackendType) else backend_type
    if name is None or name.upper() in BackendType.__members__:
        return Device(current_torch_device())
    return torch.device(name, *args, **kwargs)
