"""The models that this process has compiled; what is made later lives where they do."""

from __future__ import annotations

import torch
from torch import nn

from cstorch.tracing.device import to_device

models: list[nn.Module] = []
"""In the order of `cstorch.compile`."""


def beside_models(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the device where a model is compiled, else the same tensor of this CPU."""
    return to_device(tensor) if models else tensor
