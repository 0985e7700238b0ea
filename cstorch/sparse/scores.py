"""Masks by scores, for update functions of programs: what is dropped, what grows, and within which groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from cstorch.sparse.masks import kept_count, largest
from cstorch.sparse.schedules import Number

Unshaper = Callable[[Tensor], Tensor]
"""Gives a tensor the shape that it had before a `ScoreShaper` changed it."""

Shaper = Callable[[Tensor], tuple[Tensor, Unshaper]]


class ScoreShaper(ABC):
    """A way to group scores: elements compete along the last dimension of what a call returns."""

    @abstractmethod
    def __call__(self, tensor: Tensor) -> tuple[Tensor, Unshaper]:
        """Return the tensor in groups, and a function that undoes the change of shape."""


class ScoreFlattener(ScoreShaper):
    """All elements compete."""

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Unshaper]:
        """Return one dimension."""
        return tensor.reshape(-1), lambda shaped: shaped.reshape(tensor.shape)


class OutputGroupScoreShaper(ScoreShaper):
    """Rows in groups: dimension 0 is divided into parts of equal size.

    Args:
        num_groups: number of parts.
    """

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Unshaper]:
        """Return a row for each group."""
        return tensor.reshape(self.num_groups, -1), lambda shaped: shaped.reshape(tensor.shape)


class InputGroupScoreShaper(ScoreShaper):
    """Columns in groups: dimension 1 of a matrix is divided into parts of equal size.

    Args:
        num_groups: number of parts.
    """

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Unshaper]:
        """Return a row for each group."""
        outputs, inputs = tensor.shape
        shaped = tensor.T.reshape(self.num_groups, -1)
        return shaped, lambda shaped: shaped.reshape(inputs, outputs).T.contiguous()


def make_mask_topk_sparsity(score: Tensor, sparsity: Number, score_shaper: Shaper | None = None) -> Tensor:
    """Return a mask of the elements with the largest scores.

    Args:
        score: of any shape.
        sparsity: share of zeros in each group.
        score_shaper: makes the groups; None for a single one.
    """
    shaped, restore = (score_shaper or ScoreFlattener())(score)
    return restore(_largest(shaped, kept_count(shaped.shape[-1], sparsity)))


def make_mask_drop_minimum(
    score: Tensor, mask: Tensor, drop_fraction: Number, score_shaper: Shaper | None = None
) -> tuple[Tensor, Tensor]:
    """Return a mask without the smallest scores, and the number of elements in each of its groups.

    Args:
        score: of any shape; what the mask leaves out has the smallest scores.
        mask: bool tensor of its shape.
        drop_fraction: share of the elements of the mask that are dropped.
        score_shaper: makes the groups; None for a single one.
    """
    shaped, restore = (score_shaper or ScoreFlattener())(score)
    groups = shaped.numel() // shaped.shape[-1]
    count = (mask.sum().float() / groups * (1 - drop_fraction)).to(torch.int32)
    return restore(_largest(shaped, count)), count


def make_mask_grow_maximum(
    score: Tensor,
    mask: Tensor,
    sparsity: Number,
    mask_nonzero: Tensor | None = None,
    score_shaper: Shaper | None = None,
) -> Tensor:
    """Return a mask to which the elements with the largest scores are added, up to a share of zeros.

    Args:
        score: of any shape.
        mask: bool tensor of its shape.
        sparsity: share of zeros in each group of the new mask.
        mask_nonzero: number of elements in each group of the mask; None to count those of the whole mask.
        score_shaper: makes the groups; None for a single one.
    """
    shaped, restore = (score_shaper or ScoreFlattener())(torch.where(mask, -torch.inf, score))
    present = mask.sum() if mask_nonzero is None else mask_nonzero
    missing = kept_count(shaped.shape[-1], sparsity) - present
    return mask.logical_or(restore(_largest(shaped, missing.clamp(min=0))))


def _largest(score: Tensor, count: Tensor) -> Tensor:
    """Return a mask of the largest scores along the last dimension, in equal number for each row."""
    groups = score.numel() // score.shape[-1]
    return largest(score, count * groups, groups)
