"""Checks of what metrics get."""

from __future__ import annotations

import torch


def same_shapes(**tensors: torch.Tensor | None) -> None:
    """Refuses tensors of different shapes; None is left out.

    Raises:
        ValueError: two shapes differ.
    """
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(given.values())) > 1:
        raise ValueError(
            f"got {', '.join(f'{name} of shape {shape}' for name, shape in given.items())}; expected one "
            "shape for all, an entry for each sample or token"
        )


def positive_count(name: str, value: int) -> int:
    """Refuses counts below 1.

    Raises:
        ValueError: the count is not at least 1.
    """
    if value < 1:
        raise ValueError(f"got {name}={value}, expected at least 1")
    return value


def ratio(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """A quotient, 0 where the denominator is 0."""
    there = denominator != 0
    return torch.where(there, numerator / torch.where(there, denominator, 1.0), 0.0)
