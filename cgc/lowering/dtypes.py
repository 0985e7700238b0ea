"""Element types on the device: 64-bit integers are computed in 32 bits, everything else as the IR says."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray
from xdsl.ir import Operation

from cgc.cirh.types import DTYPE_NAMES, numpy_dtype, tensor_of
from cgc.errors import LoweringError

_NARROWED = {"int64": "int32", "uint64": "uint32"}


def device_dtype(name: str) -> str:
    """The numpy name of the type that the device computes an IR type in.

    jax keeps 64-bit types off by default, and a wafer has none; "int64" is therefore "int32" at the
    boundary of an executable and inside it. All other types are their own.

    Raises:
        LoweringError: CIRH has no such type.
    """
    narrowed = _NARROWED.get(name, name)
    if narrowed not in DTYPE_NAMES:
        raise LoweringError(
            f"element type {name!r} cannot be computed on the device; "
            f"expected one of {', '.join(sorted(DTYPE_NAMES))}"
        )
    return narrowed


def result_shape(op: Operation, index: int = 0) -> tuple[int, ...]:
    """The shape of a result of `op`."""
    return tensor_of(op.results[index]).get_shape()


def result_dtype(op: Operation, index: int = 0) -> np.dtype[np.generic]:
    """The type in which a result of `op` is computed."""
    return device_type(numpy_dtype(tensor_of(op.results[index]).element_type))


def device_type(dtype: DTypeLike) -> np.dtype[np.generic]:
    """`device_dtype` for dtype objects."""
    given = np.dtype(dtype)
    return np.dtype(_NARROWED[given.name]) if given.name in _NARROWED else given


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
