"""Counts of numbers, and parts at places that are numbers: sizes have to be known before the numbers are."""

from __future__ import annotations

from typing import Any

import torch

from cstorch.errors import StepError, TensorReadError

_bincount, _tensor_split = torch.bincount, torch.tensor_split
_repeat_interleave = torch.repeat_interleave


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


def repeat_interleave(
    input: torch.Tensor,  # noqa: A002 - as torch calls it
    *given: Any,
    output_size: int | None = None,
    **named: Any,
) -> torch.Tensor:
    """`torch.repeat_interleave`, whose result has a size that numbers decide which every step shares.

    Raises:
        StepError: they differ from step to step, and `output_size` is not given.
    """
    repeats, dim = (*given, None, None)[:2]
    repeats, dim = named.get("repeats", repeats), named.get("dim", dim)
    counts = input if repeats is None else repeats
    if output_size is None and isinstance(counts, torch.Tensor) and counts.device.type != "cpu":
        try:
            output_size = int(counts.numpy().sum())
        except TensorReadError as error:
            raise StepError(
                "torch.repeat_interleave got numbers of the step and no output_size, so the size of its "
                "result depends on the data; give output_size, the sum of the numbers"
            ) from error
        if repeats is not None and counts.numel() == 1:
            output_size *= input.numel() if dim is None else input.size(dim)
    with torch._C.DisableTorchFunctionSubclass():
        if repeats is None:
            return _repeat_interleave(input, output_size=output_size)
        return _repeat_interleave(input, repeats, dim, output_size=output_size)


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
