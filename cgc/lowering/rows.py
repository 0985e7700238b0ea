"""Lowerings of ops on rows of a table that are named by number."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.ops import ScatterNdOp, ScatterOp, UniqueOp
from cgc.cirh.rows import PADDING_INDEX
from cgc.lowering.dtypes import result_dtype, result_shape
from cgc.lowering.table import Table


def unique(op: UniqueOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(values, idx): the different elements in order of first appearance, and the place of each element's.

    A stable sort brings equal elements together, the first to appear in front; the elements at the front
    are numbered in the order of x. Places that no value takes hold PADDING_INDEX.
    """
    (size,) = x.shape
    if size == 0:
        return x, lax.full((0,), 0, result_dtype(op, 1))
    order = lax.iota(jnp.int32, size)
    ordered, position = lax.sort((x, order), is_stable=True, num_keys=1)
    starts = jnp.concatenate([lax.full((1,), True), ordered[1:] != ordered[:-1]])
    is_first = jnp.zeros(size, bool).at[position].set(starts, unique_indices=True)
    place = jnp.cumsum(is_first, dtype=jnp.int32) - 1
    start = lax.cummax(jnp.where(starts, order, 0))
    idx = jnp.zeros(size, jnp.int32).at[position].set(place[position[start]], unique_indices=True)
    padding = lax.full((size,), PADDING_INDEX, x.dtype)
    values = padding.at[jnp.where(is_first, place, size)].set(x, mode="drop")
    return values, idx.astype(result_dtype(op, 1))


def scatter_nd(op: ScatterNdOp, indices: jax.Array, updates: jax.Array) -> jax.Array:
    """Rows of `updates` added to zeros at the rows that `indices` name; indices out of range are dropped."""
    return _scattered(lax.full(result_shape(op), 0, updates.dtype), indices, updates, "ADD")


def scatter(op: ScatterOp, x: jax.Array, indices: jax.Array, updates: jax.Array) -> jax.Array:
    """Rows of `updates` put or combined with those of x that `indices` name; others are dropped."""
    return _scattered(x, indices, updates, op.reduce_kind)


def _scattered(x: jax.Array, indices: jax.Array, updates: jax.Array, kind: str) -> jax.Array:
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
    ops.ScatterNdOp: scatter_nd,
    ops.UniqueOp: unique,
    ops.ScatterOp: scatter,
}
