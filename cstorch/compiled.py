"""The models that this process has compiled; what is made later lives where they do."""

from __future__ import annotations

import torch
from torch import nn

from cstorch.backends import on_csx
from cstorch.tracing.device import to_device
from cstorch.tracing.state import holders

models: list[nn.Module] = []
"""Of the CS system, in the order of `cstorch.compile`."""

cpu_models: list[nn.Module] = []
"""Of the CPU backend."""


def use_cs() -> bool:
    """Whether this process computes on a CS system: it has chosen that, or compiled a model for it."""
    return bool(models) or on_csx()


def trains() -> bool:
    """Return True unless the program can only evaluate: without optimizers, gradients, or models to train."""
    known = (*models, *cpu_models)
    if not known:
        return True
    has_optimizer = any(isinstance(holder, torch.optim.Optimizer) for holder in holders())
    return has_optimizer and torch.is_grad_enabled() and any(model.training for model in known)


def beside_models(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CS system's device where this process computes there, else the same tensor."""
    return to_device(tensor) if use_cs() else tensor
