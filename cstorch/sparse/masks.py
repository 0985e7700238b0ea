"""Masks of sparse weights: which elements stay, by rank of a score.

Ranks, not thresholds, because scores of pruned elements are all 0: exactly as many elements stay as asked
for. A number of elements may be a tensor, as a step that is recorded once has it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cstorch.sparse.schedules import Number

InitMethod = str | Callable[[Tensor, Number], Tensor]
"""Name of a way to make the first mask, or a function of the weight and the sparsity."""


def kept_count(elements: int, sparsity: Number) -> Tensor:
    """Return the number of elements that stay, rounded down: an int64 tensor without dimensions."""
    density = 1 - sparsity
    kept = density if isinstance(density, Tensor) else torch.tensor(density, dtype=torch.float32)
    return torch.floor(kept * elements).to(torch.int64)


def largest(score: Tensor, count: Tensor, groups: int = 1) -> Tensor:
    """Return a mask of the elements with the largest scores; the first ones where scores are equal.

    Args:
        score: of any shape.
        count: number of elements that stay.
        groups: parts of the first dimension, in each of which the same number of elements stays.
    """
    rows = score.detach().reshape(groups, -1)
    order = torch.sort(rows, dim=1, descending=True, stable=True).indices
    places = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape[0], -1)
    rank = torch.zeros_like(order).scatter(1, order, places)
    share = count if groups == 1 else torch.div(count, groups, rounding_mode="floor")
    return (rank < share).reshape(score.shape)


def random_mask(weight: Tensor, sparsity: Number) -> Tensor:
    """Return a mask of random elements."""
    return largest(torch.rand_like(weight), kept_count(weight.numel(), sparsity))


def topk_mask(weight: Tensor, sparsity: Number) -> Tensor:
    """Return a mask of the largest elements."""
    return largest(weight.detach().abs(), kept_count(weight.numel(), sparsity))


def from_zeros_mask(weight: Tensor, sparsity: Number) -> Tensor:
    """Return a mask of the elements that are not 0, whatever the sparsity."""
    return weight.detach() != 0


def checkerboard_mask(weight: Tensor, sparsity: Number) -> Tensor:
    """Return a mask whose elements are spread evenly."""
    places = torch.arange(weight.numel(), device=weight.device)
    density = kept_count(weight.numel(), sparsity).float() / max(weight.numel(), 1)
    filled = ((places + 1) * density).floor() > (places * density).floor()
    return filled.reshape(weight.shape)


INIT_METHODS: dict[str, Callable[[Tensor, Number], Tensor]] = {
    "random": random_mask,
    "topk": topk_mask,
    "from_zeros": from_zeros_mask,
    "checkerboard": checkerboard_mask,
}


def init_method_of(given: InitMethod) -> Callable[[Tensor, Number], Tensor]:
    """Return the function of an init method.

    Raises:
        ValueError: there is none of that name.
    """
    found = INIT_METHODS.get(given) if isinstance(given, str) else given
    if not callable(found):
        raise ValueError(
            f"got init_method={given!r}, expected one of {', '.join(INIT_METHODS)}, or a function of the "
            "weight and its sparsity"
        )
    return found
