"""Gradients of an optimizer's parameters, and clipping them."""

from __future__ import annotations

import torch


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Gradients that are there, in the order of the parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad for p in parameters if p.grad is not None]


def clip_by_norm(grads: list[torch.Tensor], limit: float) -> None:
    """Scales gradients so that the norm of all together is at most the limit.

    The factor is min(1, limit / (norm + 1e-6)), with a norm in float32, as in `torch.nn.utils`.
    """
    if not grads:
        return
    norm = torch.stack([grad.float().square().sum() for grad in grads]).sum().sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor)


def clip_by_value(grads: list[torch.Tensor], limit: float) -> None:
    """Limits every entry to [-limit, limit]."""
    for grad in grads:
        grad.clamp_(-limit, limit)
