"""Functions that create tensors where the model is, and convert them from and to NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cstorch.backends import BackendType, Device
from cstorch.program import use_cs
from cstorch.tracing.device import DEVICE, is_tracing
from cstorch.tracing.state import place_with_models


def current_torch_device() -> torch.device:
    """Return the device that tensors of a compiled model report."""
    return DEVICE if use_cs() else torch.device("cpu")


def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Create a tensor as `torch.tensor` does, next to the model; a step may write into it."""
    return _place(torch.tensor(data, *args, **kwargs))


def full(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Create a tensor as `torch.full` does, next to the model."""
    return _place(torch.full(*args, **kwargs))


def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Create a tensor as `torch.zeros` does, next to the model."""
    return _place(torch.zeros(*args, **kwargs))


def ones(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Create a tensor as `torch.ones` does, next to the model."""
    return _place(torch.ones(*args, **kwargs))


def full_like(other: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Create a tensor as `torch.full_like` does."""
    return torch.full_like(other, *args, **kwargs)


def zeros_like(other: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Create a tensor as `torch.zeros_like` does."""
    return torch.zeros_like(other, **kwargs)


def ones_like(other: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Create a tensor as `torch.ones_like` does."""
    return torch.ones_like(other, **kwargs)


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor: in a step, every tensor of this CPU is a constant."""
    return tensor


def from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor of this CPU with the elements of an array, also of ml_dtypes' bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the elements of a tensor as an array; bfloat16 has the type of ml_dtypes.

    Raises:
        TensorReadError: The call is in a step.
        ValueUnavailableError: Only a step computes the value.
    """
    from cstorch.tracing.values import to_array

    return to_array(tensor.detach().cpu())


def _place(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(DEVICE) if is_tracing() else place_with_models(tensor)


def device(backend_type: str | BackendType | None = None, *args: Any, **kwargs: Any) -> Device | torch.device:
    """Return a context for creating a model: the device of a backend, or one of PyTorch such as "meta"."""
    name = backend_type.value if isinstance(backend_type, BackendType) else backend_type
    if name is None or name.upper() in BackendType.__members__:
        return Device(current_torch_device())
    return torch.device(name, *args, **kwargs)
