"""Checks of what optimizers are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cstorch.errors import OptimizerArgumentError


def at_least_zero(optimizer: object, **given: float | Tensor) -> None:
    """Refuses negative numbers; a tensor is not read.

    Raises:
        OptimizerArgumentError: names the argument and its value.
    """
    for name, value in given.items():
        if not isinstance(value, torch.Tensor) and not value >= 0:
            raise refused(optimizer, name, value, "a number of at least 0")


def rates(optimizer: object, name: str, given: Sequence[float]) -> None:
    """Refuses rates of averages that do not forget.

    Raises:
        OptimizerArgumentError: names the argument and its value.
    """
    for position, value in enumerate(given):
        if not 0 <= value < 1:
            raise refused(optimizer, f"{name}[{position}]", value, "a number from 0 to below 1")


def refused(optimizer: object, name: str, value: object, expected: str) -> OptimizerArgumentError:
    """The error of an argument that cannot be used."""
    return OptimizerArgumentError(f"{type(optimizer).__name__} got {name} = {value}, expected {expected}")
