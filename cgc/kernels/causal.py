"""Whether the queries of an attention see no later keys."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.constant import ConstOp
from cgc.cirh.types import AnyArray, shape_of
from cgc.kernels.program import PRODUCTS, Program, elements
from cgc.passes.evaluate import evaluate

_OTHER_SCORES = PRODUCTS | {ops.AttentionOp, ops.SoftmaxOp}


def is_causal(program: Program, members: AbstractSet[int], read: Iterable[SSAValue], size: int) -> bool:
    """Whether a constant mask hides all keys behind a query's own place.

    Such a mask has one value above the diagonal and another one on it, whether it is added to the scores,
    multiplies them or selects among them. It may meet others, such as one of padding, on its way.

    Args:
        program: the step.
        members: ops of the attention.
        read: what they read beside queries, keys and values.
        size: queries, and as many keys.
    """
    pending, seen = list(read), set[int]()
    while pending:
        value = pending.pop()
        index = program.producer(value)
        if index is None or index in seen or index in members:
            continue
        seen.add(index)
        if elements(value) == size * size and index in program.constant:
            mask = _computed(program, value, size)
            if mask is not None and _hides_what_follows(mask.reshape(size, size)):
                return True
        elif shape_of(value)[-2:] == (size, size) and program.kinds[index] not in _OTHER_SCORES:
            pending += program.ops[index].operands
    return False


def _hides_what_follows(mask: AnyArray) -> bool:
    if len(mask) < 2:
        return False
    hidden = mask[0, 1]
    return bool(np.all(mask[np.triu_indices(len(mask), 1)] == hidden) and np.all(mask.diagonal() != hidden))


def _computed(program: Program, value: SSAValue, size: int) -> AnyArray | None:
    """A constant value of at most size x size elements; None where numpy is not to say what it is."""
    if isinstance(value.owner, ConstOp):
        return value.owner.to_array()
    index = program.producer(value)
    if index is None or elements(value) > size * size:
        return None
    operands = [_computed(program, operand, size) for operand in program.ops[index].operands]
    known = [operand for operand in operands if operand is not None]
    return evaluate(program.ops[index], known) if len(known) == len(operands) else None
