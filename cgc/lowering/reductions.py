"""Lowerings of ops that combine elements along dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh.ops import ArgMaxOp, CumSumOp, ReduceOp
from cgc.lowering.dtypes import result_dtype, result_shape


def reduce(op: ReduceOp, x: jax.Array) -> jax.Array:
    """ADD MUL MAX MIN AND OR MEAN over dimensions; 16-bit floats are summed in float32, as in TensorFlow."""
    reduced = _REDUCTIONS[op.reduce_kind](x, op.dimensions)
    return lax.reshape(reduced, result_shape(op))


def argmax(op: ArgMaxOp, x: jax.Array) -> jax.Array:
    """Position of the largest element along an axis, the first of equals."""
    return lax.argmax(x, op.axis, result_dtype(op))


def cumsum(op: CumSumOp, x: jax.Array) -> jax.Array:
    """Running sum along an axis; `exclusive` leaves the element itself out, `reverse` starts at the end."""
    return lax.cumsum(_shifted(x, op.axis, op.reverse) if op.exclusive else x, op.axis, op.reverse)


def _shifted(x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """One place towards the far end, with zero moving in: the exclusive sum is the inclusive one of this."""
    edge = (-1, 1, 0) if reverse else (1, -1, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), [edge if d == axis else (0, 0, 0) for d in range(x.ndim)])


def _sum(x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
    return jnp.sum(x, dimensions, dtype=x.dtype)


def _product(x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
    return jnp.prod(x, dimensions, dtype=x.dtype)


def _mean(x: jax.Array, dimensions: tuple[int, ...]) -> jax.Array:
    """Sum divided by count, both in float32 for narrower floats."""
    count = math.prod(x.shape[d] for d in dimensions)
    total = jnp.sum(x, dimensions, dtype=jnp.float32)
    return lax.div(total, lax.full_like(total, count)).astype(x.dtype)


_REDUCTIONS: dict[str, Callable[[Any, tuple[int, ...]], jax.Array]] = {
    "ADD": _sum,
    "MUL": _product,
    "MAX": jnp.max,
    "MIN": jnp.min,
    "AND": lax.reduce_and,
    "OR": lax.reduce_or,
    "MEAN": _mean,
}
