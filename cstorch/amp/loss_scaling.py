"""Loss scaling, gradient clipping, and a whole optimizer step with both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from cs_toolkit.step import OPTIMIZER_STATE
from cstorch.errors import StepError
from cstorch.optim.registry import check_optimizer
from cstorch.tracing.precision import half_dtype, mix_precision
from cstorch.tracing.recorder import current_recording
from cstorch.tracing.state import place_with_models, register

SMALLEST_SCALE = 2.0**-14
"""The smallest normal float16."""
_LARGEST_SCALE = {"cbfloat16": 2.0**31}
_LARGEST_FLOAT16_SCALE = 2.0**15
_STEPS_PER_INCREASE = 2000

UPDATED_IF_FINITE = "_updated_if_finite"
"""Attribute of an optimizer: other tensors that its step changes, which are restored with its state."""

Scaled = TypeVar("Scaled", torch.Tensor, list[torch.Tensor], tuple[torch.Tensor, ...])


class GradScaler(nn.Module):
    """Multiplies the loss by a scale and divides the gradients by it.

    A static scale is constant, and every step is applied. A dynamic one is halved when the share of steps
    with inf or nan in their gradients exceeds a tolerance, and doubled after a number of steps without; a
    step with inf or nan changes neither parameters nor state of its optimizer. It is a module because its
    state, in buffers, is on the device of a model's: a step that is traced once writes it in place.
    `state_dict` has the buffers of a dynamic scale and nothing of a static one.

    Args:
        loss_scale: the static scale, or "dynamic". None and 0 mean no scaling.
        init_scale: first dynamic scale; by default 2^15, or 2^31 if the 16-bit type is cbfloat16.
        steps_per_increase: number of steps since the last change after which the scale is doubled; 2000.
        min_loss_scale: smallest dynamic scale; 2^-14.
        max_loss_scale: largest dynamic scale; by default that of `init_scale`.
        overflow_tolerance: largest share of the steps since the last change whose gradients may be inf or
            nan. The default is that of the first releases; later ones halve at the first (0).
        max_gradient_norm: `step` clips the gradients of its optimizer to this norm if the scale is dynamic;
            None does not clip. The documented default of 0.05 is that of the compiler's clipping, which does
            not exist here.
        mixed_precision: compute activations in 16 bits or in float32, for programs of release 1.9; None
            changes nothing.

    Raises:
        ValueError: a scale is no number, is negative, or is smaller than float16 holds.
    """

    warned_unscaling_non_fp32_grad = False
    """Kept for programs that set it: gradients of every type are unscaled without a warning."""

    def __init__(
        self,
        loss_scale: str | float | None = 0.0,
        init_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        overflow_tolerance: float = 0.05,
        max_gradient_norm: float | None = None,
        mixed_precision: bool | None = None,
    ) -> None:
        super().__init__()
        if mixed_precision is not None:
            mix_precision(mixed_precision)
        largest = _LARGEST_SCALE.get(half_dtype(), _LARGEST_FLOAT16_SCALE)
        self.dynamic = loss_scale == "dynamic"
        self.max_loss_scale = largest if max_loss_scale is None else max_loss_scale
        self.min_loss_scale = SMALLEST_SCALE if min_loss_scale is None else min_loss_scale
        if self.min_loss_scale < SMALLEST_SCALE:
            raise ValueError(
                f"got min_loss_scale={min_loss_scale}, expected at least 2^-14, the smallest normal float16"
            )
        self.steps_per_increase = _STEPS_PER_INCREASE if steps_per_increase is None else steps_per_increase
        self.overflow_tolerance = overflow_tolerance
        self.max_gradient_norm = max_gradient_norm
        self.loss_is_scaled = bool(loss_scale)
        first = (largest if init_scale is None else init_scale) if self.dynamic else _static(loss_scale)
        self.register_buffer("loss_scale", place_with_models(torch.tensor(first)), persistent=self.dynamic)
        for name in ("steps_since_rescale", "overflows_since_rescale", "num_skipped_steps"):
            self.register_buffer(name, place_with_models(torch.tensor(0.0)), persistent=self.dynamic)
        self.register_buffer("non_clamped_scale", place_with_models(torch.tensor(first)), persistent=False)
        self.loss_scale: torch.Tensor
        self.non_clamped_scale: torch.Tensor
        self.steps_since_rescale: torch.Tensor
        self.overflows_since_rescale: torch.Tensor
        self.num_skipped_steps: torch.Tensor
        self._finite: dict[int, torch.Tensor] = {}
        self._stepped: set[int] = set()
        register(f"{OPTIMIZER_STATE}grad_scaler.", self)

    def named_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the scale and its counters."""
        return self.named_buffers()

    def get_scale(self) -> torch.Tensor:
        """Return the scale, a scalar tensor."""
        return self.loss_scale

    def get_non_clamped_scale(self) -> torch.Tensor:
        """Return the dynamic scale before `min_loss_scale` limits it."""
        return self.non_clamped_scale

    def get_num_skipped_steps(self) -> torch.Tensor:
        """Return the number of steps that were undone, a float32 scalar."""
        return self.num_skipped_steps

    def scale(self, loss: Scaled) -> Scaled:
        """Multiply a loss, or a list of losses, by the scale; a run reports losses without it."""
        if isinstance(loss, torch.Tensor):
            if (recording := current_recording()) is not None:
                recording.roots.append(loss)
            return loss * self.loss_scale
        return type(loss)(part * self.loss_scale for part in loss)

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale a loss, for older programs that call the scaler itself."""
        return self.scale(loss)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale; a second call before `update` does nothing."""
        if id(optimizer) in self._finite:
            return
        inverse = 1.0 / self.loss_scale
        finite = torch.tensor(True)
        for grad in gradients(optimizer):
            grad.mul_(inverse)
            finite = finite & torch.isfinite(grad).all()
        self._finite[id(optimizer)] = finite

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        """Step an optimizer, after `unscale_` if the program has not called it.

        A dynamic scaler undoes a step with inf or nan, and sets `optimizer.step_applied`, a bool tensor, for
        schedules.

        Raises:
            RuntimeError: the optimizer has stepped since the last `update`.
            StepError: the optimizer makes state in its step, whose previous value is not known.
        """
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() of this optimizer came before; expected update() between two steps")
        self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        if not self.dynamic:
            optimizer.step(*args, **kwargs)
            return
        self.clip_gradients_and_return_isfinite([optimizer])
        self.step_if_finite(optimizer, *args, **kwargs)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def clip_gradients_and_return_isfinite(self, optimizers: Sequence[torch.optim.Optimizer]) -> torch.Tensor:
        """Clip the gradients of each optimizer to `max_gradient_norm`, if that is set.

        Returns:
            True if all gradients are finite, a bool scalar.
        """
        for optimizer in optimizers:
            self.unscale_(optimizer)
            if self.max_gradient_norm:
                clip_by_norm(gradients(optimizer), self.max_gradient_norm)
        return torch.stack([self._finite[id(optimizer)] for optimizer in optimizers]).all()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step_if_finite(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        """Step an optimizer, and undo the step if its gradients are not finite.

        Raises:
            StepError: the optimizer makes state in its step, whose previous value is not known.
        """
        self.unscale_(optimizer)
        # A recorded step has no branches: it always steps, and then restores the old values if it must.
        before = [(tensor, tensor.clone()) for tensor in _tensors(optimizer)]
        optimizer.step(*args, **kwargs)
        known = {id(tensor) for tensor, _ in before}
        if any(id(tensor) not in known for tensor in _tensors(optimizer)):
            raise StepError(
                f"{type(optimizer).__name__} makes state in its step, which cannot be undone if gradients "
                "are not finite; make it in preinitialize of a cstorch.optim.Optimizer"
            )
        applied = self._finite[id(optimizer)]
        for tensor, old in before:
            tensor.copy_(torch.where(applied, tensor, old))
        optimizer.step_applied = applied

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update(self, new_scale: float | None = None) -> None:
        """Change a dynamic scale after all optimizers have stepped.

        Raises:
            ValueError: a new scale is given.
        """
        if new_scale is not None:
            raise ValueError(f"got new_scale={new_scale}, expected none; set init_scale or a static scale")
        finite = [*self._finite.values()]
        self._finite.clear()
        self._stepped.clear()
        if self.dynamic and finite:
            self._rescale(finite)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update_scale(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Change a dynamic scale according to the gradients of some optimizers, after `unscale_`."""
        if self.dynamic:
            self._rescale([self._finite[id(optimizer)] for optimizer in optimizers])

    def _rescale(self, finite: list[torch.Tensor]) -> None:
        """Halve or double the scale; both start counting again after a change."""
        overflowed = (~torch.stack(finite).all()).float()
        steps, overflows = self.steps_since_rescale + 1, self.overflows_since_rescale + overflowed
        halve = overflows / steps > self.overflow_tolerance
        steps = torch.where(halve, 0.0, steps)
        double = steps > self.steps_per_increase
        scale = self.loss_scale * torch.where(halve, 0.5, 1.0) * torch.where(double, 2.0, 1.0)
        scale = scale.clamp(max=self.max_loss_scale)
        self.non_clamped_scale.copy_(scale)
        self.loss_scale.copy_(scale.clamp(min=self.min_loss_scale))
        self.steps_since_rescale.copy_(torch.where(double, 0.0, steps))
        self.overflows_since_rescale.copy_(torch.where(halve | double, 0.0, overflows))
        self.num_skipped_steps.add_(overflowed)


def isfinite(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Return True if all gradients of an optimizer are finite, a bool scalar."""
    found = [torch.isfinite(grad).all() for grad in gradients(optimizer)]
    return torch.stack(found).all() if found else torch.tensor(True)


def update_if_finite(optimizer: torch.optim.Optimizer, tensor: torch.Tensor) -> None:
    """Restore a tensor, too, when a dynamic `GradScaler` undoes a step of the optimizer.

    Args:
        optimizer: the optimizer in whose step the tensor is written, by a hook for example.
        tensor: state of the step, such as the mask of a sparse weight.
    """
    kept = vars(optimizer).setdefault(UPDATED_IF_FINITE, [])
    if not any(known is tensor for known in kept):
        kept.append(tensor)


def setup_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Check that a dynamic `GradScaler` can undo the steps of an optimizer.

    Raises:
        OptimizerInStepError: it is one of `torch.optim` for a compiled model, which makes state in its step.
    """
    check_optimizer(optimizer)


def _static(scale: str | float | None) -> float:
    try:
        found = float(scale or 1.0)
    except ValueError:
        found = -1.0
    if not 0 < found < math.inf:
        raise ValueError(f"got loss_scale={scale!r}, expected a positive, finite number or 'dynamic'")
    return found


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield parameters with gradients, and all state."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor):
                    yield value
    yield from getattr(optimizer, UPDATED_IF_FINITE, ())


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the existing gradients, in the order of the parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad for p in parameters if p.grad is not None]


def clip_by_norm(grads: list[torch.Tensor], limit: float) -> None:
    """Scale gradients so that their total norm is at most the limit.

    The factor is min(1, limit / (norm + 1e-6)), with a norm in float32, as in `torch.nn.utils`.
    """
    if not grads:
        return
    norm = torch.stack([grad.float().square().sum() for grad in grads]).sum().sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor)


def clip_by_value(grads: list[torch.Tensor], limit: float) -> None:
    """Clamp every element to [-limit, limit]."""
    for grad in grads:
        grad.clamp_(-limit, limit)


def optimizer_step(
    loss: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    grad_scaler: GradScaler | None = None,
    max_gradient_norm: float | None = None,
    max_gradient_val: float | None = None,
    max_gradient_value: float | None = None,
) -> None:
    """Take one step down the gradient of a loss.

    Args:
        loss: a scalar tensor.
        optimizer: the optimizer of the parameters.
        grad_scaler: scales the loss, and undoes the step if gradients are not finite.
        max_gradient_norm: limit of the total norm of the gradients; None and 0 mean no limit.
        max_gradient_val: limit of every element of a gradient; None and 0 mean no limit.
        max_gradient_value: another name of `max_gradient_val`.

    Raises:
        ValueError: the loss is no tensor, a limit is negative, or limits of both kinds are given.
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
            raise ValueError(f"got {name}={limit}, expected a non-negative number")
    if norm and value:
        raise ValueError(
            f"got max_gradient_norm={norm} and max_gradient_val={value}, expected one of the two; "
            "clip by the norm or by value"
        )
