"""Backward pass, unscaling, clipping and update in one call."""

from __future__ import annotations

import torch

from cstorch.amp.gradients import clip_by_norm, clip_by_value, gradients
from cstorch.amp.scaler import GradScaler


def optimizer_step(
    loss: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    grad_scaler: GradScaler | None = None,
    max_gradient_norm: float | None = None,
    max_gradient_val: float | None = None,
    max_gradient_value: float | None = None,
) -> None:
    """Takes one step down the gradient of a loss.

    Args:
        loss: a tensor without dimensions.
        optimizer: its parameters get new gradients and are updated.
        grad_scaler: scales the loss, and holds the step back where gradients are not finite.
        max_gradient_norm: limit of the norm of all gradients together; None and 0 mean none.
        max_gradient_val: limit of every entry of a gradient; None and 0 mean none.
        max_gradient_value: another name of `max_gradient_val`.

    Raises:
        ValueError: the loss is no tensor, a limit is negative, or there are limits of both kinds.
    """
    if not isinstance(loss, torch.Tensor):
        raise ValueError(f"got a loss of type {type(loss).__name__}, expected a tensor without dimensions")
    by_value = max_gradient_val if max_gradient_value is None else max_gradient_value
    _check_limits(max_gradient_norm, by_value)
    optimizer.zero_grad()
    (loss if grad_scaler is None else grad_scaler.scale(loss)).backward()
    if grad_scaler is not None:
        grad_scaler.unscale_(optimizer)
    with torch.no_grad():
        if max_gradient_norm:
            clip_by_norm(gradients(optimizer), max_gradient_norm)
        if by_value:
            clip_by_value(gradients(optimizer), by_value)
    if grad_scaler is None:
        optimizer.step()
    else:
        grad_scaler.step(optimizer)
        grad_scaler.update()


def _check_limits(norm: float | None, value: float | None) -> None:
    for name, limit in (("max_gradient_norm", norm), ("max_gradient_val", value)):
        if limit is not None and limit < 0:
            raise ValueError(f"got {name}={limit}, expected a number that is not negative")
    if norm and value:
        raise ValueError(
            f"got max_gradient_norm={norm} and max_gradient_val={value}, expected one of the two; "
            "clip by the norm or by value"
        )
