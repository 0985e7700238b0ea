"""Functions of PyTorch that a step records as the operations which a program would write by hand.

Kernels are found by those, and PyTorch's own composition differs between its devices, or has no gradient that
it describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint

from cstorch.tracing.composed import assertions, checkpointing, linalg, makers, packing, sparse
from cstorch.tracing.composed.attention import scaled_dot_product_attention
from cstorch.tracing.composed.counting import bincount, repeat_interleave, tensor_split
from cstorch.tracing.composed.factors import SUMS
from cstorch.tracing.composed.layers import _weight_norm, embedding_bag, forward, renorm, rrelu
from cstorch.tracing.composed.losses import (
    gaussian_nll_loss,
    multi_margin_loss,
    multilabel_margin_loss,
)
from cstorch.tracing.composed.sampling import grid_sampler

_OURS: Mapping[ModuleType | type, tuple[Callable[..., Any], ...]] = {
    functional: (
        embedding_bag,
        gaussian_nll_loss,
        multi_margin_loss,
        multilabel_margin_loss,
        rrelu,
        scaled_dot_product_attention,
    ),
    torch: (
        bincount,
        grid_sampler,
        linalg.pinverse,
        makers.tensor,
        makers.as_tensor,
        *makers.SIZED,
        renorm,
        repeat_interleave,
        sparse.sparse_coo_tensor,
        tensor_split,
        _weight_norm,
        *assertions.REPLACED,
    ),
    torch.sparse: (sparse.mm, sparse.addmm),
    torch.linalg: (linalg.householder_product, linalg.matrix_rank, linalg.pinv),
    _BatchNorm: (forward,),
    checkpoint: checkpointing.REPLACED,
    torch._VF: (linalg.frobenius_norm, *packing.REPLACED),
}
_FUNCTIONS = [(module, function.__name__, function) for module, found in _OURS.items() for function in found]

COMPOSED: Mapping[Any, Callable[..., Any]] = {
    **{
        getattr(module, name): function
        for module, name, function in _FUNCTIONS
        if function not in makers.SIZED  # they call what they replace
    },
    torch.orgqr: linalg.householder_product,
    torch.Tensor.orgqr: linalg.householder_product,
    torch.Tensor.bincount: bincount,
    torch.Tensor.pinverse: linalg.pinverse,
    torch.Tensor.renorm: renorm,
    torch.Tensor.repeat_interleave: repeat_interleave,
    torch.Tensor.tensor_split: tensor_split,
    torch.Tensor.new_tensor: makers.new_tensor,
    **SUMS,
}
"""By the functions that they stand for."""


@contextmanager
def composing() -> Iterator[None]:
    """Puts them where PyTorch's own layers and programs look, past `__torch_function__`."""
    originals = [(module, name, getattr(module, name)) for module, name, _ in _FUNCTIONS]
    try:
        for module, name, function in _FUNCTIONS:
            setattr(module, name, function)
        with assertions.unchecked_distributions():
            yield
    finally:
        for module, name, function in originals:
            setattr(module, name, function)
