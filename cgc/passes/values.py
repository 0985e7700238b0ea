"""Questions about values that several passes ask."""

from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter

from cgc.cirh.ops import BroadcastInDimOp, ConstOp, ReshapeOp, TransposeOp
from cgc.cirh.types import Tensor, tensor_type


def constant_splat(value: SSAValue) -> Any | None:
    """The numpy scalar that every element of `value` is known to be, or None.

    Looks through ops that only move or repeat elements.
    """
    owner: Any = value.owner
    while type(owner) in _MOVES:
        owner = owner.x.owner
    return owner.splat_value() if type(owner) is ConstOp else None


_MOVES = frozenset((BroadcastInDimOp, ReshapeOp, TransposeOp))


def splat_value(rewriter: PatternRewriter, number: float, like: Tensor) -> SSAValue:
    """A value of type `like` with one number everywhere, which takes the memory of that one number."""
    made = ConstOp.splat(number, tensor_type((), like.element_type))
    spread = BroadcastInDimOp(made, like.get_shape(), ())
    rewriter.insert(made)
    rewriter.insert(spread)
    return spread.result


def is_splat_of(value: SSAValue, number: float) -> bool:
    """Whether every element of `value` is `number`; -0.0 and 0.0 are different numbers here."""
    splat = constant_splat(value)
    if splat is None or float(splat) != number:
        return False
    return math.copysign(1, float(splat)) == math.copysign(1, number)
