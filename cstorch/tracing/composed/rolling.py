"""`torch.roll` by numbers that only a step knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_roll = torch.roll


def roll(
    input: torch.Tensor,  # noqa: A002 - as torch calls it
    shifts: Any,
    dims: int | Sequence[int] = (),
) -> torch.Tensor:
    """`torch.roll`: rows are taken from their places, where a shift is a tensor.

    Args:
        input: Any tensor.
        shifts: A number for each of `dims`; by how far elements move to higher places.
        dims: The dimensions along which they move; none for those of the flattened tensor.
    """
    from cstorch.tracing.device import current_recording

    recording = current_recording()
    given = shifts if isinstance(shifts, list | tuple) else [shifts]
    amounts = [shift if recording is None else recording.amounts.tensor_of(shift) for shift in given]
    if not any(isinstance(amount, torch.Tensor) for amount in amounts):
        with torch._C.DisableTorchFunctionSubclass():
            return _roll(input, shifts, dims)
    axes = list(dims) if isinstance(dims, list | tuple) else [dims]
    if not axes:
        return roll(input.flatten(), amounts, 0).view(input.shape)
    found = input
    for amount, axis in zip(amounts, axes, strict=True):
        size = input.size(axis)
        places = torch.arange(size, device=input.device) - amount
        found = found.index_select(axis, places.remainder(size).reshape(-1))
    return found
