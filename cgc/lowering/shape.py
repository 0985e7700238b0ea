"""Lowerings of constants and of ops that only move elements."""

from __future__ import annotations

import jax
from jax import lax

from cgc.cirh import ops
from cgc.cirh.ops import (
    BroadcastInDimOp,
    ConcatOp,
    PadOp,
    ReshapeOp,
    SplitOp,
    TransposeOp,
)
from cgc.lowering.dtypes import result_shape
from cgc.lowering.table import Table


def reshape(op: ReshapeOp, x: jax.Array) -> jax.Array:
    """The same elements in row-major order under another shape."""
    return lax.reshape(x, result_shape(op))


def transpose(op: TransposeOp, x: jax.Array) -> jax.Array:
    """Dimension `permutation[i]` of x becomes dimension i."""
    return lax.transpose(x, op.permutation)


def broadcast_in_dim(op: BroadcastInDimOp, x: jax.Array) -> jax.Array:
    """Dimension i of x becomes dimension `broadcast_dimensions[i]`; sizes of 1 are repeated."""
    return lax.broadcast_in_dim(x, result_shape(op), op.broadcast_dimensions)


def concat(op: ConcatOp, *parts: jax.Array) -> jax.Array:
    """The parts one after another along an axis."""
    return lax.concatenate(parts, op.axis)


def pad(op: PadOp, x: jax.Array, value: jax.Array) -> jax.Array:
    """`low` elements of `value` before and `high` after, in every dimension."""
    return lax.pad(x, value, [(low, high, 0) for low, high in zip(op.low, op.high, strict=True)])


def split(op: SplitOp, x: jax.Array) -> tuple[jax.Array, ...]:
    """The pieces along an axis."""
    return tuple(lax.split(x, op.sizes, op.axis))


LOWERINGS: Table = {
    ops.ReshapeOp: reshape,
    ops.TransposeOp: transpose,
    ops.BroadcastInDimOp: broadcast_in_dim,
    ops.ConcatOp: concat,
    ops.SplitOp: split,
    ops.PadOp: pad,
}
