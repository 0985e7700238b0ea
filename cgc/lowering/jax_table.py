"""The table of lowerings of all CIRH ops."""

from __future__ import annotations

import jax

from cgc.cirh.base import CirhOp
from cgc.errors import LoweringError
from cgc.lowering import (
    activation,
    convolution,
    elementwise,
    indexing,
    linear,
    normalization,
    optimizer,
    pool,
    random,
    reduction,
    shape,
    softmax,
    token_loop,
)
from cgc.lowering.base import Table, describe

LOWERINGS: Table = {
    **activation.LOWERINGS,
    **convolution.LOWERINGS,
    **elementwise.LOWERINGS,
    **indexing.LOWERINGS,
    **linear.LOWERINGS,
    **normalization.LOWERINGS,
    **optimizer.LOWERINGS,
    **pool.LOWERINGS,
    **random.LOWERINGS,
    **reduction.LOWERINGS,
    **shape.LOWERINGS,
    **softmax.LOWERINGS,
    **token_loop.LOWERINGS,
}


def lower(op: CirhOp, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Compute the values of all results of `op`.

    Raises:
        LoweringError: the table has no entry for the op, or the op holds a value that the device cannot
            compute.
    """
    lowering = LOWERINGS.get(type(op))
    if lowering is None:
        raise LoweringError(
            f"{describe(op)}: no lowering is known for this op; expected one of the ops of cgc.cirh.ops"
        )
    values = lowering(op, *operands)
    return values if isinstance(values, tuple) else (values,)
