"""Types of lowering tables, and element types on the device."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import lax
from numpy.typing import DTypeLike, NDArray
from xdsl.ir import Operation

from cgc.cirh.base import CirhOp
from cgc.cirh.types import numpy_dtype, tensor_of
from cgc.errors import LoweringError
from cs_toolkit.step import NARROWED


def describe(op: CirhOp) -> str:
    """Return the name of an op for messages: its kind, and its node and source line if known."""
    parts = [op.name]
    if op.node_name:
        parts.append(f"node {op.node_name!r}")
    if op.source:
        parts.append(op.source)
    return ", ".join(parts)


Lowered = jax.Array | tuple[jax.Array, ...]

# (op, the jax values of its operands) -> the value of its result, or a tuple if it has several.
#
# It is pure and called under jax tracing.
Lowering = Callable[..., Lowered]

Table = dict[type[CirhOp], Lowering]


def plain(function: Callable[..., jax.Array]) -> Lowering:
    """Return a lowering that reads no attribute of the op."""
    return lambda _op, *operands: function(*operands)


def result_shape(op: Operation, index: int = 0) -> tuple[int, ...]:
    """Return the shape of a result of `op`."""
    return tensor_of(op.results[index]).get_shape()


def result_dtype(op: Operation, index: int = 0) -> np.dtype[np.generic]:
    """Return the type in which a result of `op` is computed."""
    return device_type(numpy_dtype(tensor_of(op.results[index]).element_type))


def device_type(dtype: DTypeLike) -> np.dtype[np.generic]:
    """Return the device type of a dtype object."""
    given = np.dtype(dtype)
    return np.dtype(NARROWED[given.name]) if given.name in NARROWED else given


def narrow_to_device(values: NDArray[np.generic], what: str) -> NDArray[np.generic]:
    """Convert `values` to their device type.

    Args:
        values: an array of any type of CIRH.
        what: names the values in the message.

    Raises:
        LoweringError: a 64-bit integer does not fit into 32 bits.
    """
    target = device_type(values.dtype)
    if target == values.dtype:
        return values
    limits = np.iinfo(target.name)
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        worst = values.max() if values.max() > limits.max else values.min()
        raise LoweringError(
            f"{what} holds {worst}, which does not fit into {target}; the device computes 64-bit integers in "
            f"32 bits, so values must be in [{limits.min}, {limits.max}]"
        )
    return values.astype(target)


def like(x: jax.Array, value: float) -> jax.Array:
    """Return a constant of the shape and type of `x`."""
    return lax.full_like(x, value)
