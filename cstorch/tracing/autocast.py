"""`torch.autocast` in a step: the recorder notes it, and the compiler computes in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from cstorch.precision import format_of
from cstorch.tracing.nests import leaves, mapped
from cstorch.tracing.places import Places


@contextmanager
def following_autocast(places: Places) -> Iterator[None]:
    """Notes where a step enters and leaves `torch.autocast`, of whatever device; PyTorch casts nothing."""

    def enter(context: Any) -> Any:
        places.enter_half(format_of(context.fast_dtype) if context._enabled else None)
        return context

    def leave(context: Any, *error: object) -> None:
        places.leave_half()

    kind: Any = torch.autocast
    originals = kind.__enter__, kind.__exit__
    kind.__enter__, kind.__exit__ = enter, leave
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = originals


_OF_ONE_TYPE = (
    "__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm batch_norm bilinear bmm "
    "chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d "
    "conv_transpose3d dot einsum ger group_norm gru gru_cell inner instance_norm layer_norm "
    "linear lstm lstm_cell matmul mm multi_head_attention_forward mv outer prelu rms_norm "
    "rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention tensordot vdot"
)

OF_ONE_TYPE = frozenset(
    getattr(module, name)
    for module in (torch, torch.Tensor, functional, torch._C._nn)
    for name in _OF_ONE_TYPE.split()
    if hasattr(module, name)
)
"""Functions that refuse tensors of 16 bits together with those of float32, outside of an autocast."""

_HALVES = {torch.float16, torch.bfloat16}


def widen_mixed(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments with tensors of 16 bits cast to float32 where others have it.

    An autocast would narrow the others. In a step the compiler does so, and the types of the recording stay
    those of the parameters: the cast back changes no element.
    """
    types = {x.dtype for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
    if torch.float32 not in types or not types & _HALVES:
        return args, kwargs

    def widen(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in _HALVES else leaf

    return mapped(widen, args), mapped(widen, kwargs)
