"""Lowerings of constants and ranges."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.ops import (
    ArangeOp,
    ConstOp,
)
from cgc.cirh.types import numpy_dtype, tensor_of
from cgc.lowering.dtypes import narrowed, result_dtype, result_shape
from cgc.lowering.table import Table, describe


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


LOWERINGS: Table = {
    ops.ConstOp: constant,
    ops.ArangeOp: arange,
}
