"""Optimizers that do not average squares of gradients: SGD, ASGD, Lion, Rprop and Muon."""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cstorch.optim.optimizer import (
    ParamsT,
    PerParameter,
    add_weight_decay,
    apply_maximize,
    argument_error,
    check_betas,
    check_not_negative,
    is_off,
    scalar,
    update_average,
)

# Of the quintic polynomial: a large slope at 0, at the price of singular values of 0.7 to 1.2.
_COEFFICIENTS = 3.4445, -4.7750, 2.0315
_SMALLEST_NORM = 1e-7


class SGD(PerParameter):
    """Gradient descent with momentum (Sutskever et al., 2013, "On the importance of initialization ...").

    `b = momentum * b + (1 - dampening) * g` with an initial b of 0, so `dampening` affects the first step;
    `p -= lr * b`, with `nesterov` `p -= lr * (g + momentum * b)`.

    State: `momentum_buffer` (b) of the parameter's shape if the group has a momentum.

    Raises:
        OptimizerArgumentError: a negative number, or `nesterov` without a momentum or with a dampening.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        check_not_negative(self, lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (is_off(momentum) or not is_off(dampening)):
            raise argument_error(
                self,
                "nesterov",
                nesterov,
                f"False, or a momentum and no dampening, not {momentum}, {dampening}",
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {} if is_off(group["momentum"]) else {"momentum_buffer": torch.zeros_like(parameter)}

    def state_names_to_sparsify(self) -> list[str]:
        """Return the name of the momentum."""
        return ["momentum_buffer"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        change = gradient = add_weight_decay(
            apply_maximize(gradient, group), parameter, group["weight_decay"]
        )
        momentum = group["momentum"]
        if not is_off(momentum):
            change = state["momentum_buffer"].mul_(momentum).add_(gradient * (1 - group["dampening"]))
            if group["nesterov"]:
                change = gradient + momentum * change
        parameter.sub_(change * group["lr"])


class ASGD(PerParameter):
    """Gradient descent with an average of the parameters (Polyak and Juditsky, 1992).

    In step t, from 1, `p -= eta * (g + lambd * p)`; from there on `eta = lr / (1 + lambd * lr * t)^alpha` and
    `mu = 1 / max(1, t - t0)`, the weight of a parameter in the average.

    State: `eta`, `mu` and `step` without dimensions, `ax`, the average, of the parameter's shape.

    Raises:
        OptimizerArgumentError: a negative `lr` or `weight_decay`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        maximize: bool = False,
    ) -> None:
        check_not_negative(self, lr=lr, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults, enable_global_step=True)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {
            "eta": scalar(parameter, 1).mul_(group["lr"]),
            "mu": scalar(parameter, 1),
            "ax": torch.zeros_like(parameter),
        }

    def state_names_to_sparsify(self) -> list[str]:
        """Return the name of the average."""
        return ["ax"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        eta, mu, average = state["eta"], state["mu"], state["ax"]
        step = self.increment_global_step(parameter)
        gradient = add_weight_decay(apply_maximize(gradient, group), parameter, group["weight_decay"])
        parameter.sub_((gradient + group["lambd"] * parameter) * eta)
        average.copy_(torch.where(mu == 1, parameter, average + (parameter - average) * mu))
        rate = group["lr"]
        eta.copy_(rate / torch.pow(1 + group["lambd"] * rate * step, group["alpha"]))
        mu.copy_(1 / (step - group["t0"]).clamp(min=1))


class Lion(PerParameter):
    """Steps of the sign of a momentum (Chen et al., 2023, arXiv:2302.06675).

    State: `exp_avg` of the parameter's shape.

    Raises:
        OptimizerArgumentError: a negative number, or a beta of 1 or more.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        check_not_negative(self, lr=lr, weight_decay=weight_decay)
        check_betas(self, "betas", betas)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"exp_avg": torch.zeros_like(parameter)}

    def state_names_to_sparsify(self) -> list[str]:
        """Return the name of the momentum."""
        return ["exp_avg"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        average = state["exp_avg"]
        direction = (average * beta1 + gradient * (1 - beta1)).sign()
        parameter.sub_(add_weight_decay(direction, parameter, group["weight_decay"]) * group["lr"])
        update_average(average, gradient, beta2)


class Rprop(PerParameter):
    """A step size for each element, which grows while the gradient's sign is constant.

    An element does not change in a step where its gradient changes sign (Riedmiller and Braun, 1993).

    State: `prev`, the previous gradient, and `step_size`, initially `lr`, both of the parameter's shape.

    Args:
        params: parameters, or groups of them.
        lr: the initial step sizes; later values have no effect.
        etas: factors of a step size if the sign changes, and if it does not.
        step_sizes: the smallest and the largest step size.

    Raises:
        OptimizerArgumentError: a negative `lr`, or `etas` that are not around 1.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
    ) -> None:
        check_not_negative(self, lr=lr)
        if not 0 < etas[0] < 1 < etas[1]:
            raise argument_error(self, "etas", etas, "one between 0 and 1, and one above 1")
        super().__init__(params, {"lr": lr, "etas": etas, "step_sizes": step_sizes})

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {
            "prev": torch.zeros_like(parameter),
            "step_size": torch.ones_like(parameter).mul_(group["lr"]),
        }

    def state_names_to_sparsify(self) -> list[str]:
        """Return the names of both states."""
        return ["prev", "step_size"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        before, size = state["prev"], state["step_size"]
        shrink, grow = group["etas"]
        agreement = gradient * before
        turned = agreement < 0
        factor = torch.where(turned, shrink, torch.where(agreement > 0, grow, 1.0))
        size.copy_((size * factor).clamp(*group["step_sizes"]))
        before.copy_(torch.where(turned, 0.0, gradient))
        parameter.sub_(before.sign() * size)


class Muon(PerParameter):
    """Steps of orthogonalized momentum, for matrices (Jordan, 2024, kellerjordan.github.io/posts/muon).

    `m += (1 - momentum) * (g - m)`, with `nesterov` `u = g + momentum * (m - g)`, else `u = m`;
    `p *= 1 - lr * weight_decay`, then `p -= lr * sqrt(max(1, rows / columns)) * orthogonalize(u)`.
    Dimensions after the first are the columns of a parameter that has more than two.

    State: `momentum_buffer` (m) of the parameter's shape.

    Args:
        params: parameters with at least two dimensions, or groups of them.
        lr: learning rate.
        weight_decay: rate of the decoupled decay.
        momentum: rate of the average of gradients.
        nesterov: Nesterov's momentum: the gradient is added to the average once more.
        ns_steps: Newton-Schulz iterations of the orthogonalization.

    Raises:
        OptimizerArgumentError: a negative number; in a step a parameter with less than two dimensions.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.02,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> None:
        check_not_negative(self, lr=lr, weight_decay=weight_decay, momentum=momentum, ns_steps=ns_steps)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
        }
        super().__init__(params, defaults)

    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(parameter)}

    def state_names_to_sparsify(self) -> list[str]:
        """Return the name of the momentum."""
        return ["momentum_buffer"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        if parameter.dim() < 2:
            raise argument_error(
                self,
                "params",
                f"a parameter of shape {tuple(parameter.shape)}",
                "parameters with two dimensions or more; give the others to AdamW",
            )
        rate, momentum = group["lr"], group["momentum"]
        average = state["momentum_buffer"]
        average.add_((gradient - average) * (1 - momentum))
        update = gradient + (average - gradient) * momentum if group["nesterov"] else average
        rows = update.reshape(update.shape[0], -1)
        scale = math.sqrt(max(1.0, rows.shape[0] / rows.shape[1]))
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.sub_(orthogonalize(rows, group["ns_steps"]).reshape(parameter.shape) * (rate * scale))


def orthogonalize(matrix: Tensor, steps: int) -> Tensor:
    """Return a matrix with the singular vectors of a given one and singular values near 1.

    Args:
        matrix: [rows, columns].
        steps: iterations of a quintic Newton-Schulz polynomial.
    """
    a, b, c = _COEFFICIENTS
    wide = matrix.shape[0] <= matrix.shape[1]  # the products of the iterations have the smaller side
    found = matrix if wide else matrix.t()
    found = found / torch.linalg.vector_norm(found).clamp(min=_SMALLEST_NORM)
    for _ in range(steps):
        gram = found @ found.t()
        found = a * found + (b * gram + c * (gram @ gram)) @ found
    return found if wide else found.t()
