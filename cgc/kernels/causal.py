"""Whether the queries of an attention see no later keys."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import AnyArray, shape_of
from cgc.kernels.program import PRODUCTS, Program, elements
from cgc.passes.evaluate import computed

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
            mask = computed(value, size * size)
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
