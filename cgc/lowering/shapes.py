"""Lowerings of constants and of ops that only move elements."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    ArangeOp,
    BroadcastInDimOp,
    ConcatOp,
    ConstOp,
    GatherOp,
    OneHotOp,
    PadOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
)
from cgc.cirh.types import numpy_dtype, tensor_of
from cgc.lowering.dtypes import narrowed, result_dtype, result_shape


def constant(op: ConstOp) -> jax.Array:
    """The value; one that repeats a single element is broadcast on the device instead of stored."""
    values = narrowed(op.to_array(), describe(op))
    if op.splat_value() is not None:
        return lax.broadcast(jnp.asarray(values.reshape(-1)[0]), values.shape)
    return jnp.asarray(values)


def arange(op: ArangeOp) -> jax.Array:
    """`start + step * i` for as many elements as the result has.

    Raises:
        LoweringError: a number does not fit into the 32 bits of the device.
    """
    (length,) = result_shape(op)
    if not length:
        return jnp.zeros(0, result_dtype(op))
    dtype = numpy_dtype(tensor_of(op.result).element_type)
    ends = np.array([op.start, op.start + op.step * (length - 1)], dtype if dtype.kind in "iu" else np.int32)
    ends = narrowed(ends, describe(op))
    counted = np.dtype(np.uint32 if ends.dtype == np.uint32 else np.int32)
    step = np.array(op.step if length > 1 else 0, np.int64).astype(counted)  # wraps, as does the product
    integers = lax.iota(counted, length) * step + ends[0].astype(counted)
    return lax.convert_element_type(integers, result_dtype(op))


def one_hot(op: OneHotOp, indices: jax.Array, on: jax.Array, off: jax.Array) -> jax.Array:
    """`on` where the position along the axis is the index, `off` elsewhere and for indices out of range."""
    shape = result_shape(op)
    positions = lax.broadcasted_iota(jnp.int32, shape, op.axis)
    wanted = lax.broadcast_in_dim(
        indices.astype(jnp.int32), shape, tuple(d for d in range(len(shape)) if d != op.axis)
    )
    return lax.select(lax.eq(positions, wanted), lax.broadcast(on, shape), lax.broadcast(off, shape))


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


def slice_(op: SliceOp, x: jax.Array) -> jax.Array:
    """`x[start:limit:stride]` in every dimension."""
    return lax.slice(x, op.start_indices, op.limit_indices, op.strides)


def pad(op: PadOp, x: jax.Array, value: jax.Array) -> jax.Array:
    """`low` elements of `value` before and `high` after, in every dimension."""
    return lax.pad(x, value, [(low, high, 0) for low, high in zip(op.low, op.high, strict=True)])


def gather(op: GatherOp, x: jax.Array, indices: jax.Array) -> jax.Array:
    """`x[:, ..., indices, ...]` along an axis: shape x[:axis] + indices + x[axis+1:].

    TensorFlow refuses indices out of range on a CPU. A device cannot stop in the middle of a step; it
    answers NaN (the smallest value for integers), which the check of the loss reports.
    """
    if 0 in result_shape(op):  # maybe there is nothing to pick from
        return jnp.zeros(result_shape(op), x.dtype)
    axis, batch = op.axis, indices.ndim
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(d if d < axis else d + batch - 1 for d in range(x.ndim) if d != axis),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
    )
    sizes = tuple(1 if d == axis else size for d, size in enumerate(x.shape))
    return lax.gather(
        x, lax.expand_dims(indices, (batch,)), numbers, sizes, mode=lax.GatherScatterMode.FILL_OR_DROP
    )


def describe(op: CirhOp) -> str:
    """An op as messages name it: its kind, and its node and source line where they are known."""
    parts = [op.name]
    if op.node_name:
        parts.append(f"node {op.node_name!r}")
    if op.source:
        parts.append(op.source)
    return ", ".join(parts)
