"""The table: what every CIRH op computes."""

from __future__ import annotations

import jax

from cgc.cirh.base import CirhOp
from cgc.errors import LoweringError
from cgc.lowering import (
    activation,
    attention,
    batch_norm,
    composite,
    constant,
    convolution,
    elementwise,
    fourier,
    indexing,
    layer_norm,
    linalg,
    linear,
    optimizer,
    pool,
    random,
    reduction,
    rows,
    shape,
    softmax,
    token_loop,
)
from cgc.lowering.table import Table, describe

LOWERINGS: Table = {
    **activation.LOWERINGS,
    **attention.LOWERINGS,
    **batch_norm.LOWERINGS,
    **composite.LOWERINGS,
    **constant.LOWERINGS,
    **convolution.LOWERINGS,
    **elementwise.LOWERINGS,
    **fourier.LOWERINGS,
    **indexing.LOWERINGS,
    **layer_norm.LOWERINGS,
    **linalg.LOWERINGS,
    **linear.LOWERINGS,
    **optimizer.LOWERINGS,
    **pool.LOWERINGS,
    **random.LOWERINGS,
    **reduction.LOWERINGS,
    **rows.LOWERINGS,
    **shape.LOWERINGS,
    **softmax.LOWERINGS,
    **token_loop.LOWERINGS,
}


def lower(op: CirhOp, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """The values of all results of `op`.

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
