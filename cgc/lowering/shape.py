"""Lowerings of constants, ranges, and ops that only move elements."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.ops import ArangeOp, BroadcastInDimOp, ConcatOp, ConstOp, PadOp, ReshapeOp, SplitOp, TransposeOp
from cgc.cirh.types import numpy_dtype, tensor_of
from cgc.lowering.base import Table, describe, narrow_to_device, result_dtype, result_shape


def constant(op: ConstOp) -> jax.Array:
    """Return the value; a splat is broadcast on the device instead of stored."""
    values = narrow_to_device(op.to_array(), describe(op))
    if op.splat_value() is not None:
        return lax.broadcast(jnp.asarray(values.reshape(-1)[0]), values.shape)
    return jnp.asarray(values)


def arange(op: ArangeOp) -> jax.Array:
    """Compute `start + step * i` for as many elements as the result has.

    Raises:
        LoweringError: a number does not fit into the 32 bits of the device.
    """
    (length,) = result_shape(op)
    if not length:
        return jnp.zeros(0, result_dtype(op))
    dtype = numpy_dtype(tensor_of(op.result).element_type)
    ends = np.array([op.start, op.start + op.step * (length - 1)], dtype if dtype.kind in "iu" else np.int32)
    ends = narrow_to_device(ends, describe(op))
    counted = np.dtype(np.uint32 if ends.dtype == np.uint32 else np.int32)
    step = np.array(op.step if length > 1 else 0, np.int64).astype(counted)  # wraps, as does the product
    integers = lax.iota(counted, length) * step + ends[0].astype(counted)
    return lax.convert_element_type(integers, result_dtype(op))


def reshape(op: ReshapeOp, x: jax.Array) -> jax.Array:
    """Keep elements in row-major order under another shape."""
    return lax.reshape(x, result_shape(op))


def transpose(op: TransposeOp, x: jax.Array) -> jax.Array:
    """Move dimension `permutation[i]` of x to dimension i."""
    return lax.transpose(x, op.permutation)


def broadcast_in_dim(op: BroadcastInDimOp, x: jax.Array) -> jax.Array:
    """Move dimension i of x to dimension `broadcast_dimensions[i]`; sizes of 1 are repeated."""
    return lax.broadcast_in_dim(x, result_shape(op), op.broadcast_dimensions)


def concat(op: ConcatOp, *parts: jax.Array) -> jax.Array:
    """Join the parts along an axis."""
    return lax.concatenate(parts, op.axis)


def pad(op: PadOp, x: jax.Array, value: jax.Array) -> jax.Array:
    """Add `low` elements of `value` before and `high` after, in every dimension."""
    return lax.pad(x, value, [(low, high, 0) for low, high in zip(op.low, op.high, strict=True)])


def split(op: SplitOp, x: jax.Array) -> tuple[jax.Array, ...]:
    """Return the pieces along an axis."""
    return tuple(lax.split(x, op.sizes, op.axis))


LOWERINGS: Table = {
    ops.ReshapeOp: reshape,
    ops.TransposeOp: transpose,
    ops.BroadcastInDimOp: broadcast_in_dim,
    ops.ConcatOp: concat,
    ops.SplitOp: split,
    ops.PadOp: pad,
    ops.ConstOp: constant,
    ops.ArangeOp: arange,
}
