"""Checks and arithmetic that metrics share."""

from __future__ import annotations

import warnings

import torch

from cstorch.tracing.device import current_recording


def same_shapes(**tensors: torch.Tensor | None) -> None:
    """Refuses tensors of different shapes; None is left out.

    Raises:
        ValueError: two shapes differ.
    """
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(given.values())) > 1:
        raise ValueError(
            f"got {_listed(**given)}; expected one shape for all, an entry for each sample or token"
        )


def shaped_like(labels: torch.Tensor, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the shape of the labels, with a warning where it has another one of their size.

    Raises:
        ValueError: it has another number of entries.
    """
    if tensor.shape == labels.shape:
        return tensor
    shapes = _listed(**{"labels": tuple(labels.shape), name: tuple(tensor.shape)})
    if tensor.numel() != labels.numel():
        raise ValueError(f"got {shapes}; expected an entry of {name} for each label")
    warnings.warn(f"got {shapes}: {name} are taken in the shape of the labels", stacklevel=4)
    return tensor.reshape(labels.shape)


def refuse_outside(name: str, tensor: torch.Tensor, low: float, high: float, expected: str) -> None:
    """Refuse values outside of [low, high], where they can be read: a step on the CS system cannot look.

    Raises:
        ValueError: there are some.
    """
    if tensor.device.type != "cpu" or not tensor.numel():
        return
    least, most = tensor.min().item(), tensor.max().item()
    if least < low or most > high:
        raise ValueError(f"got {name} from {least:g} to {most:g}, expected {expected}")


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


def as_number(value: torch.Tensor) -> torch.Tensor | float:
    """Return a Python number, but the tensor itself in a recorded step, where it has no value."""
    return value if current_recording() is not None else float(value)


def as_tensor(value: torch.Tensor | float) -> torch.Tensor:
    """Return a tensor as it is, and a number as a tensor without dimensions."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def _listed(**shapes: tuple[int, ...]) -> str:
    return ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
