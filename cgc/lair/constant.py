"""CIRH ops that make constants, as loop nests."""

from __future__ import annotations

import numpy as np
from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    ArangeOp,
)
from cgc.lair.build import Array, Builder
from cgc.lair.scalar import Scalar, loop_index
from cgc.lair.structure import Rule, indexed, result_dtype


def arange(builder: Builder, op: ArangeOp) -> Array:
    """`start + step * i`."""
    dtype = result_dtype(op)
    unsigned = dtype.startswith("u")
    counted = "uint32" if unsigned else "int32"
    start, step = (
        int(np.array(n, np.int64).astype(counted)) for n in (op.start, op.step)
    )  # wraps, as the sum

    def body(block: Block, *_old: Scalar) -> Scalar:
        return (loop_index(block, 0).to(counted) * step + start).to(dtype)

    return indexed(builder, op, [], body)


RULES: dict[type[CirhOp], Rule] = {
    ops.ArangeOp: arange,
}
