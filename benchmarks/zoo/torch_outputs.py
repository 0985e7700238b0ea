"""Losses and comparable outputs of torch models, for any return type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.architecture import SEED


def without_randomness(model: nn.Module) -> None:
    """Turns off dropout in all its forms: two frameworks draw different random numbers."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and (
                "drop" in name or (name == "p" and "Drop" in type(module).__name__)
            ):
                setattr(module, name, 0.0)


def without_ties(model: nn.Module) -> None:
    """Makes weights that are all equal differ a little.

    Routers of experts begin with zeros, and among equal scores every implementation chooses others.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if (
                parameter.numel() > 1
                and parameter.is_floating_point()
                and (parameter == parameter.flatten()[0]).all()
            ):
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def mean_square(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The mean over a model's outputs of the mean square of each: a loss for models without one."""
    return _mean_square_of(float_tensors(model(**batch)))


def mean_square_of_finite(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The same, with zeros for what is infinite, for models that score padded places so."""
    found = float_tensors(model(**batch))
    return _mean_square_of([output.masked_fill(output.isinf(), 0) for output in found])


def _mean_square_of(outputs: list[torch.Tensor]) -> torch.Tensor:
    if not outputs:
        raise TypeError("the model returns no tensor of numbers")
    found = [output.float().square().mean() for output in outputs]
    return sum(found[1:], found[0]) / len(found)


def float_tensors(outputs: Any) -> list[torch.Tensor]:
    """All tensors of real numbers in a nest that carry a gradient, in its order."""
    if isinstance(outputs, torch.Tensor):
        return [outputs] if outputs.is_floating_point() and outputs.requires_grad else []
    if isinstance(outputs, Mapping):
        return [tensor for value in outputs.values() for tensor in float_tensors(value)]
    if isinstance(outputs, list | tuple):
        return [tensor for value in outputs for tensor in float_tensors(value)]
    return []
