"""Counts of numbers; how many there are has to be known before the numbers are."""

from __future__ import annotations

import torch

from cstorch.errors import StepError

_bincount = torch.bincount


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
