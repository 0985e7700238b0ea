"""Losses whose gradients PyTorch does not describe, or which read values to check them."""

from __future__ import annotations

import math

import torch
from torch.nn import functional


def gaussian_nll_loss(
    input: torch.Tensor,  # noqa: A002 - as torch.nn.functional calls it
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """`torch.nn.functional.gaussian_nll_loss`, which does not check that variances are positive."""
    variance = torch.full_like(input, var) if isinstance(var, float | int) else var
    if variance.shape != input.shape and variance.shape == input.shape[:-1]:
        variance = variance.unsqueeze(-1)
    variance = variance + (variance.clamp(min=eps) - variance).detach()
    loss = 0.5 * (variance.log() + (input - target) ** 2 / variance)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def multi_margin_loss(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """`torch.nn.functional.multi_margin_loss`.

    The sum of max(0, margin - x[y] + x[i])**p over i != y, divided by the number of classes.
    """
    input = input.reshape(-1) if not input.dim() else input  # noqa: A001
    classes = input.size(-1)
    hot = functional.one_hot(target.long(), classes).to(input.dtype)
    chosen = (input * hot).sum(-1, keepdim=True)
    excess = (margin - chosen + input).clamp(min=0) ** p * (1 - hot)
    if weight is not None:
        excess = excess * (hot * weight).sum(-1, keepdim=True)
    return _reduced(excess.sum(-1) / classes, reduction)


def multilabel_margin_loss(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """`torch.nn.functional.multilabel_margin_loss`: labels stand before the first -1 of a row of `target`."""
    if not input.dim():
        input, target = input.reshape(1), target.reshape(1)  # noqa: A001
    classes = input.size(-1)
    counts = (target >= 0).to(input.dtype).cumprod(-1)
    hot = functional.one_hot(target.clamp(min=0).long(), classes).to(input.dtype) * counts[..., None]
    labelled = hot.amax(-2)
    chosen = (hot * input[..., None, :]).sum(-1)
    excess = (1 - chosen[..., None] + input[..., None, :]).clamp(min=0)
    excess = excess * counts[..., None] * (1 - labelled)[..., None, :]
    return _reduced(excess.sum((-1, -2)) / classes, reduction)


def _reduced(loss: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()
