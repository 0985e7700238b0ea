"""Muon: momentum whose steps are orthogonal matrices."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cstorch.optim.arguments import at_least_zero, refused
from cstorch.optim.optimizer import ParamsT, PerParameter

_COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the quintic polynomial: a large slope at 0, at the price of singular values of 0.7 to 1.2."""

_SMALLEST_NORM = 1e-7


class Muon(PerParameter):
    """Steps of orthogonalized momentum, for matrices (Jordan, 2024, kellerjordan.github.io/posts/muon).

    `m += (1 - momentum) * (g - m)`, with `nesterov` `u = g + momentum * (m - g)`, else `u = m`;
    `p *= 1 - lr * weight_decay`, then `p -= lr * sqrt(max(1, rows / columns)) * orthogonalize(u)`.
    Dimensions after the first are the columns of a parameter that has more than two.

    State: `momentum_buffer` (m) of the parameter's shape.

    Args:
        params: see `Optimizer`; each has at least two dimensions.
        lr: learning rate.
        weight_decay: rate of the decoupled decay.
        momentum: rate of the average of gradients.
        nesterov: steps go by the average after the next gradient.
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
        at_least_zero(self, lr=lr, weight_decay=weight_decay, momentum=momentum, ns_steps=ns_steps)
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
        """The momentum."""
        return ["momentum_buffer"]

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        if parameter.dim() < 2:
            raise refused(
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
