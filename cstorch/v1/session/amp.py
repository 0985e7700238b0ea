"""Loss scaling as programs of the session API call it: `scaler(loss).backward()`, then `optimizer.step()`.

A program has one scaler. `state_dict`, `load_state_dict` and `get_init_params` of this module are those of
that scaler, and may be called before there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cstorch import amp
from cstorch.amp.half import set_half_dtype, use_bfloat16
from cstorch.tracing.precision import half_dtype, mix_precision, torch_half_dtype
from cstorch.v1.session.environment import state, use_cs

__all__ = [
    "GradScaler",
    "get_init_params",
    "half_dtype",
    "load_state_dict",
    "set_half_dtype",
    "state_dict",
    "use_bfloat16",
]

_DEFAULT_STEPS_PER_INCREASE = 2000

PENDING = "_scaler_of_gradients"
"""Attribute of an optimizer: the scaler of the gradients for its next step."""


class GradScaler(amp.GradScaler):
    """`cstorch.amp.GradScaler` that is called with a loss.

    The `backward` of the returned loss computes scaled gradients and divides them by the scale. The `step` of
    an optimizer that was passed to `cbtorch.optimizer` then clips the gradients, skips steps with inf or nan,
    and adjusts a dynamic scale.

    Args:
        loss_scale: The static scale, or "dynamic"; None for no scaling.
        init_scale: First dynamic scale.
        steps_per_increase: Number of steps without inf or nan after which the scale is doubled.
        min_loss_scale: Smallest dynamic scale.
        max_loss_scale: Largest dynamic scale.
        max_gradient_norm: With a dynamic scale, limit of the norm of all gradients of an optimizer.
        mixed_precision: Compute activations on the CS system in 16 bits (True), in float32 (False), or as
            before (None).
        initial_loss_scale: Name of `init_scale` in release 1.2.
        overflow_tolerance: As in `cstorch.amp.GradScaler`.
    """

    def __init__(
        self,
        loss_scale: str | float | None = None,
        init_scale: float | None = None,
        steps_per_increase: int | None = _DEFAULT_STEPS_PER_INCREASE,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        max_gradient_norm: float | None = None,
        mixed_precision: bool | None = None,
        initial_loss_scale: float | None = None,
        overflow_tolerance: float = 0.0,
    ) -> None:
        first = initial_loss_scale if init_scale is None else init_scale
        super().__init__(
            loss_scale,
            first,
            steps_per_increase,
            min_loss_scale,
            max_loss_scale,
            overflow_tolerance,
            max_gradient_norm,
        )
        self._init_params = {
            "loss_scale": loss_scale,
            "init_scale": first,
            "steps_per_increase": steps_per_increase,
            "min_loss_scale": min_loss_scale,
            "max_loss_scale": max_loss_scale,
            # Programs clip the gradients themselves unless it is given; a static scale leaves it to them.
            "max_gradient_norm": max_gradient_norm if self.dynamic else None,
            "mixed_precision": mixed_precision,
        }
        if mixed_precision is not None:
            state().mixed_precision = mixed_precision
            if use_cs():
                mix_precision(mixed_precision)
        state().scaler = self
        loaded, state().scaler_state = state().scaler_state, None
        if loaded is not None:
            self.load_state_dict(loaded)

    def get_init_params(self) -> dict[str, Any]:
        """Return the arguments of the constructor; `max_gradient_norm` only if `step` clips by it."""
        return dict(self._init_params)

    def forward(self, loss: torch.Tensor) -> ScaledLoss:
        """Return the loss, whose `backward` scales it."""
        return ScaledLoss(self, loss)


@dataclass(frozen=True)
class ScaledLoss:
    """A loss whose gradients are scaled."""

    scaler: GradScaler
    loss: torch.Tensor

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Compute scaled gradients, and divide them by the scale."""
        if not state().optimizers:  # nothing would divide the gradients
            self.loss.backward(*args, **kwargs)
            return
        self.scaler.scale(self.loss).backward(*args, **kwargs)
        for optimizer in state().optimizers:
            self.scaler.unscale_(optimizer)  # now, because programs may clip the gradients themselves
            vars(optimizer)[PENDING] = self.scaler

    def item(self) -> float:
        """Return the loss as a number, where it can be read."""
        return float(self.loss.item())


def _scaler() -> GradScaler | None:
    return state().scaler


def state_dict() -> dict[str, Any]:
    """Return the state of the program's scaler, which is empty without one, or if the scale is static."""
    scaler = _scaler()
    return {} if scaler is None else scaler.state_dict()


def load_state_dict(state_dict: Mapping[str, Any]) -> None:
    """Load a saved state into the program's scaler, or into the next one if there is none."""
    scaler = _scaler()
    if not state_dict:  # as `state_dict()` returns it without a scaler
        return
    if scaler is None:
        state().scaler_state = dict(state_dict)
    else:
        scaler.load_state_dict(state_dict)


def get_init_params() -> dict[str, Any]:
    """Return the arguments of the program's scaler, which are empty before there is one."""
    scaler = _scaler()
    return {} if scaler is None else scaler.get_init_params()


class _AmpState:
    """The object in which programs look up the 16-bit type."""

    @property
    def half_dtype(self) -> torch.dtype:
        """PyTorch's 16-bit type: bfloat16, or float16 for float16 and cbfloat16."""
        return torch_half_dtype()


_amp_state = _AmpState()
