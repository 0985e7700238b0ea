"""Adam and its variants."""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cstorch.optim.optimizer import (
    ParamsT,
    PerParameter,
    add_weight_decay,
    apply_maximize,
    bias_correction,
    check_betas,
    check_not_negative,
    is_off,
    scalar,
    update_average,
    update_average_square,
)

Betas = tuple[float, float]


class _Moments(PerParameter):
    """Keeps averages of the gradients and of their squares.

    State: `exp_avg` and `exp_avg_sq`, of the parameter's shape.
    """

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}

    def state_names_to_sparsify(self) -> list[str]:
        """Return the names of both averages."""
        return ["exp_avg", "exp_avg_sq"]

    def _averages(
        self, gradient: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        beta1, beta2 = group["betas"]
        return (
            update_average(state["exp_avg"], gradient, beta1),
            update_average_square(state["exp_avg_sq"], gradient, beta2),
        )


class AdamW(_Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, arXiv:1711.05101).

    `p *= 1 - lr * weight_decay`, then `p -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)`.

    State: `exp_avg` (m), `exp_avg_sq` (v), with `amsgrad` `max_exp_avg_sq`; with `correct_bias`
    `beta1_power` and `beta2_power`, the powers of the betas that the next step uses, without dimensions.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: rates of the two averages, from 0 to below 1.
        eps: term added to the root of the squares.
        weight_decay: rate of the decoupled decay.
        correct_bias: False leaves out the factor of the first steps.
        amsgrad: the largest average of squares so far divides (Reddi et al., 2018, arXiv:1904.09237).
        l2_regularization_rate: rate of a decay that is part of the gradient.

    Raises:
        OptimizerArgumentError: a negative number, or a beta of 1 or more.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
        l2_regularization_rate: float = 0.0,
    ) -> None:
        check_not_negative(
            self, lr=lr, eps=eps, weight_decay=weight_decay, l2_regularization_rate=l2_regularization_rate
        )
        check_betas(self, "betas", betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "l2_regularization_rate": l2_regularization_rate,
            "correct_bias": correct_bias,
            "amsgrad": amsgrad,
        }
        super().__init__(params, defaults)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        state = super()._initial(parameter, group)
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = torch.zeros_like(parameter)
        if group["correct_bias"]:
            for name, beta in zip(("beta1_power", "beta2_power"), group["betas"], strict=True):
                state[name] = scalar(parameter, beta)
        return state

    def state_names_to_sparsify(self) -> list[str]:
        """Return the names of the averages and of the largest average of squares."""
        return ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        gradient = add_weight_decay(gradient, parameter, group["l2_regularization_rate"])
        average, squares = self._averages(gradient, state, group)
        if group["amsgrad"]:
            largest = state["max_exp_avg_sq"]
            squares = largest.copy_(torch.maximum(largest, squares))
        rate = group["lr"]
        if group["correct_bias"]:
            rate = rate * torch.sqrt(1 - state["beta2_power"]) / (1 - state["beta1_power"])
            for name, beta in zip(("beta1_power", "beta2_power"), group["betas"], strict=True):
                state[name].mul_(beta)
        if not is_off(group["weight_decay"]):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        # eps is added before the bias correction, as in section 2 of Kingma and Ba (2015).
        parameter.sub_(average / (squares.sqrt() + group["eps"]) * rate)


class Adam(AdamW):
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980); its weight decay is part of the gradient.

    State and rule are those of `AdamW`. A group has its weight decay as `l2_regularization_rate`, and 0 as
    `weight_decay`.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: rates of the two averages, from 0 to below 1.
        eps: term added to the root of the squares.
        weight_decay: rate of the decay that is part of the gradient.
        amsgrad: the largest average of squares so far divides.

    Raises:
        OptimizerArgumentError: a negative number, or a beta of 1 or more.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        check_not_negative(self, weight_decay=weight_decay)
        super().__init__(params, lr, betas, eps, 0.0, True, amsgrad, weight_decay)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; its weight decay is part of the gradient, too."""
        super().add_param_group(self.handle_weight_decay([param_group])[0])

    def handle_weight_decay(self, param_groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return groups in which `weight_decay` has become `l2_regularization_rate`."""
        return [
            {**group, "weight_decay": 0.0, "l2_regularization_rate": group["weight_decay"]}
            if "weight_decay" in group
            else group
            for group in param_groups
        ]


class Adamax(PerParameter):
    """Adam with the largest gradient instead of the squares (Kingma and Ba, 2015, section 7.1).

    State: `exp_avg`, `exp_inf` of the parameter's shape, and `beta1_power` without dimensions.

    Raises:
        OptimizerArgumentError: a negative number, or a beta of 1 or more.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        check_not_negative(self, lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(self, "betas", betas)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {
            "exp_avg": torch.zeros_like(parameter),
            "exp_inf": torch.zeros_like(parameter),
            "beta1_power": scalar(parameter, group["betas"][0]),
        }

    def state_names_to_sparsify(self) -> list[str]:
        """Return the names of the average and of the largest gradient."""
        return ["exp_avg", "exp_inf"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        gradient = add_weight_decay(apply_maximize(gradient, group), parameter, group["weight_decay"])
        average, largest, power = state["exp_avg"], state["exp_inf"], state["beta1_power"]
        update_average(average, gradient, beta1)
        largest.copy_(torch.maximum(largest * beta2, gradient.abs() + group["eps"]))
        parameter.sub_(average / largest * (group["lr"] / (1 - power)))
        power.mul_(beta1)


class Lamb(_Moments):
    """Adam with steps scaled by the norm of their parameter (You et al., 2020, arXiv:1904.00962).

    The step is `r = m / (sqrt(v) + eps) + weight_decay * p`, without correction of bias. It is taken as
    `p -= lr * trust * r` with `trust = min(|p|, 10) / |r|`, or 1 if one of the two is zero.

    State: `exp_avg` (m) and `exp_avg_sq` (v), of the parameter's shape.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: rates of the two averages, from 0 to below 1.
        eps: term added to the root of the squares.
        weight_decay: rate of the decay.
        adam: takes 1 for `trust`.

    Raises:
        OptimizerArgumentError: a negative number, or a beta of 1 or more.
    """

    _LONGEST = 10.0

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0,
        adam: bool = False,
    ) -> None:
        check_not_negative(self, lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(self, "betas", betas)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adam": adam}
        super().__init__(params, defaults)

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        average, squares = self._averages(gradient, state, group)
        change = add_weight_decay(average / (squares.sqrt() + group["eps"]), parameter, group["weight_decay"])
        rate = group["lr"]
        if not group["adam"]:
            rate = rate * self._trust(parameter, change)
        parameter.sub_(change * rate)

    def _trust(self, parameter: Tensor, change: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(parameter).clamp(max=self._LONGEST)
        change_length = torch.linalg.vector_norm(change)
        both = (length > 0) & (change_length > 0)
        one = torch.ones_like(length)
        return torch.where(both, length / torch.where(both, change_length, one), one)


class NAdam(_Moments):
    """Adam with Nesterov's momentum (Dozat, 2016, "Incorporating Nesterov Momentum into Adam").

    The momentum of step t is `u[t] = beta1 * (1 - 0.96^(t * momentum_decay) / 2)`, and U[t] the product of
    those so far: `p -= lr / root * (g * (1 - u[t]) / (1 - U[t]) + m * u[t+1] / (1 - U[t] * u[t] * u[t+1]))`.

    State: `mu_product`, the product of all momenta so far, and `step`, without dimensions; `exp_avg` and
    `exp_avg_sq` of the parameter's shape.

    Raises:
        OptimizerArgumentError: a negative number, or a beta of 1 or more.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
    ) -> None:
        check_not_negative(self, lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_betas(self, "betas", betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
        }
        super().__init__(params, defaults, enable_global_step=True)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"mu_product": scalar(parameter, 1), **super()._initial(parameter, group)}

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        step = self.increment_global_step(parameter)
        now, following = (
            beta1 * (1 - 0.5 * torch.pow(0.96, count * group["momentum_decay"])) for count in (step, step + 1)
        )
        product = state["mu_product"].mul_(now)
        gradient = add_weight_decay(gradient, parameter, group["weight_decay"])
        average, squares = self._averages(gradient, state, group)
        root = (squares / bias_correction(beta2, step)).sqrt() + group["eps"]
        # The paper has U[t+1] in the last term; release 2.10 of the CS software counts u[t] twice.
        ahead = gradient * ((1 - now) / (1 - product)) + average * (
            following / (1 - product * now * following)
        )
        parameter.sub_(ahead / root * group["lr"])


class RAdam(_Moments):
    """Adam that divides by the squares once their variance is known (Liu et al., 2020, arXiv:1908.03265).

    State: `exp_avg` and `exp_avg_sq` of the parameter's shape, `step` without dimensions.

    Raises:
        OptimizerArgumentError: a negative number, or a beta of 1 or more.
    """

    _ENOUGH = 5
    """Length of the average above which its variance is known (the paper's rho)."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        check_not_negative(self, lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(self, "betas", betas)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, enable_global_step=True)

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        step = self.increment_global_step(parameter)
        gradient = add_weight_decay(gradient, parameter, group["weight_decay"])
        average, squares = self._averages(gradient, state, group)
        seen = bias_correction(beta2, step)
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * (1 - seen) / seen
        known = length > self._ENOUGH
        length = torch.where(known, length, self._ENOUGH)
        certainty = ((length - 4) * (length - 2) * longest) / ((longest - 4) * (longest - 2) * length)
        adapted = torch.sqrt(certainty * seen) / (squares.sqrt() + group["eps"])
        rate = group["lr"] / bias_correction(beta1, step)
        parameter.sub_(average * torch.where(known, adapted, 1.0) * rate)
