"""Methods for the first masks of sparse weights, by the names that programs import."""

from __future__ import annotations

import torch
from torch import Tensor

from cstorch.sparse.utils import Number, Shaper, make_mask_topk_sparsity
from cstorch.sparse.utils import checkerboard_mask as _checkerboard
from cstorch.sparse.utils import from_zeros_mask as _from_zeros
from cstorch.sparse.utils import init_method_of as make_init_method

__all__ = ["checkerboard", "from_zeros", "make_init_method", "random", "topk"]


def random(
    p: Tensor, sparsity: Number, score_shaper: Shaper | None = None, device: torch.device | None = None
) -> Tensor:
    """Return a mask of random elements, on the device of the weight."""
    return make_mask_topk_sparsity(torch.rand_like(p), sparsity, score_shaper)


def topk(
    p: Tensor, sparsity: Number, score_shaper: Shaper | None = None, device: torch.device | None = None
) -> Tensor:
    """Return a mask of the largest elements."""
    return make_mask_topk_sparsity(p.detach().abs(), sparsity, score_shaper)


def from_zeros(
    p: Tensor, sparsity: Number, score_shaper: Shaper | None = None, device: torch.device | None = None
) -> Tensor:
    """Return a mask of the elements that are not 0, whatever the sparsity."""
    return _from_zeros(p, sparsity)


def checkerboard(
    p: Tensor, sparsity: Number, score_shaper: Shaper | None = None, device: torch.device | None = None
) -> Tensor:
    """Return a mask whose elements are spread evenly."""
    return _checkerboard(p, sparsity)
