"""Lowerings of ops that combine elements along dimensions: reductions, scans, order statistics."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    ArgMaxOp,
    CumLogSumExpOp,
    CumMaxOp,
    CumProdOp,
    CumSumOp,
    NthOrderStatisticOp,
    ReduceOp,
    TopKOp,
)
from cgc.lowering.base import Table, result_dtype, result_shape


def reduce(op: ReduceOp, x: jax.Array) -> jax.Array:
    """Reduce by ADD MUL MAX MIN AND OR MEAN; 16-bit floats are summed in float32, as in TensorFlow."""
    reduced = _REDUCTIONS[op.reduce_kind](x, op.dimensions)
    return lax.reshape(reduced, result_shape(op))


def argmax(op: ArgMaxOp, x: jax.Array) -> jax.Array:
    """Return the position of the largest element along an axis, the first of equals."""
    return lax.argmax(x, op.axis, result_dtype(op))


def cumsum(op: CumSumOp, x: jax.Array) -> jax.Array:
    """Compute the running sum along an axis; `exclusive` omits the element, `reverse` starts at the end."""
    return lax.cumsum(_shift(x, op.axis, op.reverse) if op.exclusive else x, op.axis, op.reverse)


def cumprod(op: CumProdOp, x: jax.Array) -> jax.Array:
    """Compute the running product along an axis, with the attributes of `cumsum`."""
    return lax.cumprod(_shift(x, op.axis, op.reverse, 1) if op.exclusive else x, op.axis, op.reverse)


def cummax(op: CumMaxOp, x: jax.Array) -> jax.Array:
    """Compute the running maximum along an axis, with the attributes of `cumsum`."""
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    least = -math.inf if floating else int(np.iinfo(x.dtype).min)
    return lax.cummax(_shift(x, op.axis, op.reverse, least) if op.exclusive else x, op.axis, op.reverse)


def cumlogsumexp(op: CumLogSumExpOp, x: jax.Array) -> jax.Array:
    """Compute the logarithm of the running sum of exponentials, with the attributes of `cumsum`."""
    shifted = _shift(x, op.axis, op.reverse, -math.inf) if op.exclusive else x
    return lax.cumlogsumexp(shifted, op.axis, op.reverse)


def l2_norm(_op: CirhOp, *xs: jax.Array) -> jax.Array:
    """Compute the root of the sum of all squares of all tensors, float32."""
    return lax.sqrt(functools.reduce(lax.add, map(_sum_of_squares, xs)))


def _sum_of_squares(x: jax.Array) -> jax.Array:
    # A deep network has hundreds of norms under one norm: functions of lax are traced in a third of the time.
    squares = lax.square(x if x.dtype == jnp.float32 else lax.convert_element_type(x, jnp.float32))
    return jnp.sum(squares) if x.ndim else squares


def nth_order_statistic(op: NthOrderStatisticOp, x: jax.Array) -> jax.Array:
    """Return the n-th smallest, or largest, element along the last dimension; NaN is the largest."""
    ordered = lax.sort(x, dimension=x.ndim - 1)
    place = x.shape[-1] - 1 - op.n if op.reverse else op.n
    return lax.index_in_dim(ordered, place, x.ndim - 1, keepdims=False)


def top_k(op: TopKOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (values, indices) of the k largest elements along the last dimension."""
    values, indices = lax.top_k(x, op.k)
    return values, indices


def _shift(x: jax.Array, axis: int, reverse: bool, neutral: float = 0) -> jax.Array:
    """Shift by one place towards the far end, filling with `neutral`: for an exclusive scan."""
    edge = (-1, 1, 0) if reverse else (1, -1, 0)
    return lax.pad(
        x, jnp.asarray(neutral, x.dtype), [edge if d == axis else (0, 0, 0) for d in range(x.ndim)]
    )


def _sum(x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
    return jnp.sum(x, dimensions, dtype=x.dtype)


def _product(x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
    return jnp.prod(x, dimensions, dtype=x.dtype)


def _mean(x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
    """Divide sum by count, both in float32 for narrower floats."""
    count = math.prod(x.shape[d] for d in dimensions)
    total = jnp.sum(x, dimensions, dtype=jnp.float32)
    return lax.div(total, lax.full_like(total, count)).astype(x.dtype)


_REDUCTIONS: dict[str, Callable[[Any, tuple[int, ...]], jax.Array]] = {
    "ADD": _sum,
    "MUL": _product,
    "MAX": lax.reduce_max,
    "MIN": lax.reduce_min,
    "AND": lax.reduce_and,
    "OR": lax.reduce_or,
    "MEAN": _mean,
}

LOWERINGS: Table = {
    ops.ReduceOp: reduce,
    ops.ArgMaxOp: argmax,
    ops.CumSumOp: cumsum,
    ops.CumProdOp: cumprod,
    ops.CumMaxOp: cummax,
    ops.CumLogSumExpOp: cumlogsumexp,
    ops.NthOrderStatisticOp: nth_order_statistic,
    ops.TopKOp: top_k,
    ops.L2NormOp: l2_norm,
}
