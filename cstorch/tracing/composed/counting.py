"""Counts of numbers, and parts at places that are numbers: sizes have to be known before the numbers are."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.errors import StepError

_bincount, _tensor_split = torch.bincount, torch.tensor_split


def bincount(
    input: torch.Tensor,  # noqa: A002 - as torch calls it
    weights: torch.Tensor | None = None,
    minlength: int = 0,
) -> torch.Tensor:
    """`torch.bincount` of numbers below `minlength`: in a step a result has that many elements.

    Numbers of `minlength` and above, for which PyTorch makes the result longer, are left out.

    Raises:
        StepError: `minlength` is not given, so that the size of the result depends on the numbers.
    """
    if input.device.type == "cpu":
        return _bincount(input, weights, minlength)
    if not minlength:
        raise StepError(
            "torch.bincount got no minlength, so the size of its result depends on the data; give minlength, "
            "one more than the largest number that can occur"
        )
    amounts = torch.ones_like(input) if weights is None else weights
    inside = (input >= 0) & (input < minlength)
    counts = torch.zeros(minlength, dtype=amounts.dtype, device=input.device)
    return counts.index_add(0, torch.where(inside, input, 0), torch.where(inside, amounts, 0))


def tensor_split(input: torch.Tensor, *where: Any, **named: Any) -> tuple[torch.Tensor, ...]:  # noqa: A002
    """`torch.tensor_split`, which reads the places that are a tensor.

    Raises:
        TensorReadError: they differ from step to step.
    """
    if where and isinstance(where[0], torch.Tensor):
        where = (where[0].tolist(), *where[1:])
    places = named.pop("tensor_indices_or_sections", None)
    if places is not None:
        where = (places.tolist(), *where)
    with torch._C.DisableTorchFunctionSubclass():
        found: tuple[torch.Tensor, ...] = _tensor_split(input, *where, **named)
    return found
