"""Optimizers that divide gradients by the root of their accumulated squares."""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cstorch.optim.optimizer import (
    ParamsT,
    PerParameter,
    add_weight_decay,
    apply_maximize,
    argument_error,
    check_not_negative,
    is_off,
    update_average,
    update_average_square,
)


class Adagrad(PerParameter):
    """Divides by the root of the sum of all squares (Duchi et al., 2011).

    The rate of step t is `lr / (1 + (t - 1) * lr_decay)`.

    State: `sum` of the parameter's shape, `step` without dimensions.

    Raises:
        OptimizerArgumentError: a negative number.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-6,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
        }
        check_not_negative(self, **defaults)
        super().__init__(params, {**defaults, "maximize": maximize}, enable_global_step=True)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"sum": torch.full_like(parameter, group["initial_accumulator_value"])}

    def state_names_to_sparsify(self) -> list[str]:
        """Return the name of the sum of squares."""
        return ["sum"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        step = self.increment_global_step(parameter)
        gradient = add_weight_decay(apply_maximize(gradient, group), parameter, group["weight_decay"])
        total = state["sum"].addcmul_(gradient, gradient)
        rate = group["lr"]
        if not is_off(group["lr_decay"]):
            rate = rate / (1 + (step - 1) * group["lr_decay"])
        parameter.sub_(gradient / (total.sqrt() + group["eps"]) * rate)


class Adadelta(PerParameter):
    """Steps scaled by the average of previous steps (Zeiler, 2012, arXiv:1212.5701).

    State: `square_avg` and `acc_delta`, averages of the squares of gradients and of steps, of the
    parameter's shape.

    Raises:
        OptimizerArgumentError: a negative number, or a `rho` of more than 1.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        maximize: bool = False,
    ) -> None:
        check_not_negative(self, lr=lr, eps=eps, weight_decay=weight_decay)
        if not 0 <= rho <= 1:
            raise argument_error(self, "rho", rho, "a number from 0 to 1")
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"square_avg": torch.zeros_like(parameter), "acc_delta": torch.zeros_like(parameter)}

    def state_names_to_sparsify(self) -> list[str]:
        """Return the names of both averages."""
        return ["square_avg", "acc_delta"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        rho, eps = group["rho"], group["eps"]
        gradient = add_weight_decay(apply_maximize(gradient, group), parameter, group["weight_decay"])
        squares = update_average_square(state["square_avg"], gradient, rho)
        change = (state["acc_delta"] + eps).sqrt() / (squares + eps).sqrt() * gradient
        update_average_square(state["acc_delta"], change, rho)
        parameter.sub_(change * group["lr"])


class RMSprop(PerParameter):
    """Divides by the root of an average of the squares (Tieleman and Hinton, 2012).

    State: `square_avg`; with `momentum` `momentum_buffer`; with `centered` `grad_avg`, all of the parameter's
    shape.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        momentum: decay rate of the accumulated steps.
        alpha: rate of the averages.
        eps: term added to the root.
        centered: takes the variance instead of the squares (Graves, 2013, arXiv:1308.0850).
        weight_decay: rate of the decay that is part of the gradient.

    Raises:
        OptimizerArgumentError: a negative number.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
    ) -> None:
        check_not_negative(self, lr=lr, momentum=momentum, alpha=alpha, eps=eps, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        names = ["square_avg"]
        if not is_off(group["momentum"]):
            names.append("momentum_buffer")
        if group["centered"]:
            names.append("grad_avg")
        return {name: torch.zeros_like(parameter) for name in names}

    def state_names_to_sparsify(self) -> list[str]:
        """Return the names of all states."""
        return ["square_avg", "momentum_buffer", "grad_avg"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        alpha = group["alpha"]
        gradient = add_weight_decay(gradient, parameter, group["weight_decay"])
        squares = update_average_square(state["square_avg"], gradient, alpha)
        if group["centered"]:
            variance = squares - update_average(state["grad_avg"], gradient, alpha).square()
            squares = variance.clamp(min=0)  # rounding makes it negative where gradients are equal
        change = gradient / (squares.sqrt() + group["eps"])
        if not is_off(group["momentum"]):
            change = state["momentum_buffer"].mul_(group["momentum"]).add_(change)
        parameter.sub_(change * group["lr"])


class Adafactor(PerParameter):
    """Keeps a row and a column of squares for each matrix (Shazeer and Stern, 2018, arXiv:1804.04235).

    The rate of the averages in step t is `1 - t^decay_rate`. A step is divided by its root mean square over
    `clip_threshold` if that is more than 1.

    State: `exp_avg_sq_row` and `exp_avg_sq_col` of a parameter with two dimensions or more, without its
    last and its last but one dimension; `exp_avg_sq` of others, of their shape; `step` without dimensions.

    Args:
        params: parameters, or groups of them.
        lr: learning rate; None with `relative_step`, or if a schedule sets it before the first step.
        eps: term added to the squares of the gradient; smallest root mean square of a parameter.
        clip_threshold: root mean square of the longest step.
        decay_rate: exponent of the rate of the averages.
        beta1: None, the only supported value: no average of gradients is kept.
        weight_decay: rate of the decay.
        scale_parameter: the learning rate is relative to the root mean square of the parameter.
        relative_step: the learning rate is `min(1e-2, 1 / sqrt(t))`.
        warmup_init: the first learning rates are `1e-6 * t`; only with `relative_step`.

    Raises:
        OptimizerArgumentError: both `lr` and `relative_step`, a `beta1`, or an `eps` that is no pair; in a
            step, neither `lr` nor `relative_step`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | None = None,
        eps: Sequence[float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
    ) -> None:
        if lr is not None and relative_step:
            raise argument_error(self, "lr", lr, "None with relative_step=True")
        if warmup_init and not relative_step:
            raise argument_error(self, "warmup_init", warmup_init, "False without relative_step")
        if beta1 is not None:
            raise argument_error(self, "beta1", beta1, "None, as it keeps no average of gradients")
        if not isinstance(eps, tuple | list) or len(eps) != 2:
            raise argument_error(self, "eps", eps, "two numbers")
        if lr is not None:
            check_not_negative(self, lr=lr)
        check_not_negative(self, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
        }
        super().__init__(params, defaults, enable_global_step=True)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        shape = tuple(parameter.shape)
        if len(shape) < 2:
            return {"exp_avg_sq": torch.zeros_like(parameter)}
        return {
            "exp_avg_sq_row": parameter.new_zeros(shape[:-1]),
            "exp_avg_sq_col": parameter.new_zeros(shape[:-2] + shape[-1:]),
        }

    def state_names_to_sparsify(self) -> list[str]:
        """Return the name of the squares of parameters below two dimensions; rows and columns are sums."""
        return ["exp_avg_sq"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        step = self.increment_global_step(parameter)
        new = torch.pow(step, group["decay_rate"])
        change = gradient * _inverse_root(gradient.square() + group["eps"][0], state, new)
        change = change / (_root_mean_square(change) / group["clip_threshold"]).clamp(min=1.0)
        rate = self._rate(parameter, step, group)
        change = add_weight_decay(change, parameter, group["weight_decay"])
        parameter.sub_(change * rate)

    def _rate(self, parameter: Tensor, step: Tensor, group: Mapping[str, Any]) -> float | Tensor:
        rate = group["lr"]
        if group["relative_step"]:
            rate = torch.minimum(
                1e-6 * step if group["warmup_init"] else torch.full_like(step, 1e-2), torch.rsqrt(step)
            )
        elif rate is None:
            raise argument_error(self, "lr", rate, "a number or a schedule with relative_step=False")
        if group["scale_parameter"]:
            rate = rate * _root_mean_square(parameter).clamp(min=group["eps"][1])
        return rate


def _inverse_root(squares: Tensor, state: Mapping[str, Tensor], new: Tensor) -> Tensor:
    """Update the averages of squares with weight `new`, and return one over their root."""
    for name, value in (
        ("exp_avg_sq", squares),
        ("exp_avg_sq_row", squares.mean(-1) if squares.dim() > 1 else None),
        ("exp_avg_sq_col", squares.mean(-2) if squares.dim() > 1 else None),
    ):
        if name in state:
            state[name].add_((value - state[name]) * new)
    if "exp_avg_sq" in state:
        return state["exp_avg_sq"].rsqrt()
    row, column = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
    return (row / row.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1) * column.rsqrt().unsqueeze(-2)


def _root_mean_square(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()
