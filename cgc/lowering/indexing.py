"""Lowerings of ops that pick elements by position, or rows of a table by index."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.indexing import PADDING_INDEX
from cgc.cirh.ops import (
    ConditionalArangeOp,
    GatherNdOp,
    GatherOp,
    MatrixBandPartOp,
    OneHotOp,
    RepeatOp,
    ScatterNdOp,
    ScatterOp,
    SliceOp,
    StridedSliceGradOp,
    StridedSliceOp,
    UniqueOp,
    UnpadOp,
)
from cgc.lowering.base import Table, result_dtype, result_shape


def strided_slice(op: StridedSliceOp, x: jax.Array) -> jax.Array:
    """Take every `strides`-th element from `begin` to before `end`; a negative stride runs backwards."""
    slices, backwards = _forward_slices(op)
    sliced = lax.slice(x, *slices)
    return lax.rev(sliced, backwards) if backwards else sliced


def strided_slice_grad(op: StridedSliceGradOp, grad: jax.Array) -> jax.Array:
    """Fill with zeros, and `grad` where the slice takes elements: padding before, between and after them."""
    (starts, _, steps), backwards = _forward_slices(op)
    forward = lax.rev(grad, backwards) if backwards else grad
    edges = []
    for size, start, step, count in zip(result_shape(op), starts, steps, grad.shape, strict=True):
        covered = (count - 1) * step + 1 if count else 0
        edges.append((start, size - start - covered, step - 1) if count else (0, size, 0))
    return lax.pad(forward, jnp.zeros((), grad.dtype), edges)


def _forward_slices(
    op: StridedSliceOp | StridedSliceGradOp,
) -> tuple[tuple[list[int], list[int], list[int]], tuple[int, ...]]:
    """Return ((starts, limits, steps) of the same elements in rising order, the dimensions to reverse)."""
    starts, limits, steps, backwards = [], [], [], []
    for dim, (begin, end, stride) in enumerate(zip(op.begin, op.end, op.strides, strict=True)):
        forward = range(begin, end, stride)
        if stride < 0:
            backwards.append(dim)
            forward = forward[::-1]
        starts.append(forward[0] if forward else 0)
        limits.append(forward[-1] + 1 if forward else 0)
        steps.append(abs(stride))
    return (starts, limits, steps), tuple(backwards)


def unpad(op: UnpadOp, x: jax.Array) -> jax.Array:
    """Remove the first `low` and last `high` elements in every dimension."""
    return lax.slice(x, op.low, [size - high for size, high in zip(x.shape, op.high, strict=True)])


def gather_nd(op: GatherNdOp, x: jax.Array, indices: jax.Array) -> jax.Array:
    """Take the slices of x at coordinates; out of range gives NaN, the smallest value for integers."""
    if 0 in result_shape(op):  # x may be empty
        return jnp.zeros(result_shape(op), x.dtype)
    depth, batch = indices.shape[-1], indices.ndim - 1
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(batch, batch + x.ndim - depth)),
        collapsed_slice_dims=tuple(range(depth)),
        start_index_map=tuple(range(depth)),
    )
    sizes = (1,) * depth + x.shape[depth:]
    return lax.gather(x, indices, numbers, sizes, mode=lax.GatherScatterMode.FILL_OR_DROP)


def matrix_band_part(op: MatrixBandPartOp, x: jax.Array) -> jax.Array:
    """Set elements outside of the band to zero."""
    below = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 2) - lax.broadcasted_iota(
        jnp.int32, x.shape, x.ndim - 1
    )
    largest = max(x.shape[-2:])
    lower, upper = (min(n, largest) if n >= 0 else largest for n in (op.num_lower, op.num_upper))
    return lax.select((below <= lower) & (-below <= upper), x, jnp.zeros_like(x))


def repeat(op: RepeatOp, x: jax.Array) -> jax.Array:
    """Repeat each element along an axis."""
    spread = lax.broadcast_in_dim(
        x,
        (*x.shape[: op.axis + 1], op.repeats, *x.shape[op.axis + 1 :]),
        tuple(dim + (dim > op.axis) for dim in range(x.ndim)),
    )
    return lax.reshape(spread, result_shape(op))


def conditional_arange(op: ConditionalArangeOp, condition: jax.Array) -> jax.Array:
    """Number the elements for which the condition is true, from `start`; return `fill` for the others."""
    counts = lax.cumsum(condition.astype(jnp.int32), condition.ndim - 1)
    return jnp.where(condition, counts - 1 + op.start, op.fill).astype(jnp.int32)


def one_hot(op: OneHotOp, indices: jax.Array, on: jax.Array, off: jax.Array) -> jax.Array:
    """Return `on` where the position along the axis is the index, `off` elsewhere and for invalid indices."""
    shape = result_shape(op)
    positions = lax.broadcasted_iota(jnp.int32, shape, op.axis)
    expanded = lax.broadcast_in_dim(
        indices.astype(jnp.int32), shape, tuple(d for d in range(len(shape)) if d != op.axis)
    )
    return lax.select(lax.eq(positions, expanded), lax.broadcast(on, shape), lax.broadcast(off, shape))


def gather(op: GatherOp, x: jax.Array, indices: jax.Array) -> jax.Array:
    """Compute `x[:, ..., indices, ...]` along an axis: shape x[:axis] + indices + x[axis+1:]."""
    # TensorFlow rejects indices out of range on a CPU. A device cannot stop in the middle of a step; it
    # returns NaN (the smallest value for integers), which the check of the loss reports.
    if 0 in result_shape(op):  # x may be empty
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


def slice_(op: SliceOp, x: jax.Array) -> jax.Array:
    """Compute `x[start:limit:stride]` in every dimension."""
    return lax.slice(x, op.start_indices, op.limit_indices, op.strides)


def unique(op: UniqueOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the distinct elements in order of first appearance, and for each element its index in them."""
    # A stable sort makes equal elements contiguous, in the order of x. The first of each are numbered in the
    # order of x. Unused elements of the result are PADDING_INDEX.
    (size,) = x.shape
    if size == 0:
        return x, lax.full((0,), 0, result_dtype(op, 1))
    order = lax.iota(jnp.int32, size)
    ordered, position = lax.sort((x, order), is_stable=True, num_keys=1)
    starts = jnp.concatenate([lax.full((1,), True), ordered[1:] != ordered[:-1]])
    is_first = jnp.zeros(size, bool).at[position].set(starts, unique_indices=True)
    rank = jnp.cumsum(is_first, dtype=jnp.int32) - 1
    start = lax.cummax(jnp.where(starts, order, 0))
    idx = jnp.zeros(size, jnp.int32).at[position].set(rank[position[start]], unique_indices=True)
    padding = lax.full((size,), PADDING_INDEX, x.dtype)
    values = padding.at[jnp.where(is_first, rank, size)].set(x, mode="drop")
    return values, idx.astype(result_dtype(op, 1))


def scatter_nd(op: ScatterNdOp, indices: jax.Array, updates: jax.Array) -> jax.Array:
    """Add rows of `updates` to zeros at the rows that `indices` name; indices out of range are dropped."""
    return _scatter(lax.full(result_shape(op), 0, updates.dtype), indices, updates, "ADD")


def scatter(op: ScatterOp, x: jax.Array, indices: jax.Array, updates: jax.Array) -> jax.Array:
    """Replace or combine rows of x that `indices` name with those of `updates`; others are dropped."""
    return _scatter(x, indices, updates, op.reduce_kind)


def _scatter(x: jax.Array, indices: jax.Array, updates: jax.Array, kind: str) -> jax.Array:
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, updates.ndim)),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )
    return _SCATTERS[kind](
        x, lax.expand_dims(indices, (1,)), updates, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP
    )


_SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "SET": lax.scatter,
    "ADD": lax.scatter_add,
    "MUL": lax.scatter_mul,
    "MAX": lax.scatter_max,
    "MIN": lax.scatter_min,
}

LOWERINGS: Table = {
    ops.OneHotOp: one_hot,
    ops.GatherOp: gather,
    ops.GatherNdOp: gather_nd,
    ops.StridedSliceOp: strided_slice,
    ops.StridedSliceGradOp: strided_slice_grad,
    ops.UnpadOp: unpad,
    ops.SliceOp: slice_,
    ops.RepeatOp: repeat,
    ops.MatrixBandPartOp: matrix_band_part,
    ops.ConditionalArangeOp: conditional_arange,
    ops.ScatterNdOp: scatter_nd,
    ops.UniqueOp: unique,
    ops.ScatterOp: scatter,
}
