"""Element types on the device: 64-bit integers are computed in 32 bits, everything else as the IR says."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from numpy.typing import DTypeLike, NDArray
from xdsl.ir import Operation

from cgc.cirh.types import numpy_dtype, tensor_of
from cgc.errors import LoweringError
from cs_toolkit.step import NARROWED


def result_shape(op: Operation, index: int = 0) -> tuple[int, ...]:
    """The shape of a result of `op`."""
    return tensor_of(op.results[index]).get_shape()


def result_dtype(op: Operation, index: int = 0) -> np.dtype[np.generic]:
    """The type in which a result of `op` is computed."""
    return device_type(numpy_dtype(tensor_of(op.results[index]).element_type))


def device_type(dtype: DTypeLike) -> np.dtype[np.generic]:
    """`device_dtype` for dtype objects."""
    given = np.dtype(dtype)
    return np.dtype(NARROWED[given.name]) if given.name in NARROWED else given


def narrowed(values: NDArray[np.generic], what: str) -> NDArray[np.generic]:
    """`values` in their device type.

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
            f"32 bits, so values must lie in [{limits.min}, {limits.max}]"
        )
    return values.astype(target)


def like(x: jax.Array, value: float) -> jax.Array:
    """A constant of the shape and type of `x`."""
    return lax.full_like(x, value)
