"""16-bit formats on the device.

cbfloat16 has no type of its own in XLA. Where a function says that f16 is cbfloat16, values of type f16 are
float32 numbers that cbfloat16 has as well: an op is computed in float32 and its result is rounded once, as on
the wafer. IEEE float16 is XLA's own type; formulas of several operations are computed in float32 and rounded
once, too.

The rounding adds and subtracts a power of two whose last place is the last place of cbfloat16 at x. Exact on
all float32, gradual underflow and signed zeros included, and cheaper on a CPU than XLA's `reduce_precision`,
which flushes subnormals: three roundings in a row of 4,000,000 elements on two AMD EPYC cores, without
rounding 0.6 ms, 1.1 ms this way, 1.4 ms with `reduce_precision` alone and 1.9 ms with its subnormals fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.activation import FeaturesGradOp, OutputsGradOp
from cgc.cirh.base import CirhOp
from cgc.cirh.elementwise import UnaryOp
from cgc.cirh.precision import HalfFormat
from cgc.cirh.types import element_type, tensor_of
from cgc.lowering.jax_table import lower
from cgc.precision import CB16_LARGEST, CB16_MANTISSA_BITS

_F16, _BF16 = element_type("float16"), element_type("bfloat16")

_EXPONENT_BITS = np.int32(0x7F800000)
_SIGN_BIT = np.int32(-(2**31))


class _Places(NamedTuple):
    """The places of a format, in the exponent bits of float32.

    Attributes:
        smallest_exponent: of normal numbers.
        largest_exponent: larger ones are beyond the format, and their ruler may be beyond float32.
        last_place: what to add to an exponent for the ruler.
    """

    smallest_exponent: np.int32
    largest_exponent: np.int32
    last_place: np.int32

    @classmethod
    def of(cls, smallest: int, largest: int, mantissa_bits: int) -> _Places:
        """From the exponents of a format, and the bits behind the point."""
        return cls(*(np.int32(bits << 23) for bits in (127 + smallest, 127 + largest, 23 - mantissa_bits)))


_CB16 = _Places.of(-30, 33, CB16_MANTISSA_BITS)
_FLOAT16 = _Places.of(-14, 17, 10)


def round_to_cb16(x: jax.Array, truncate: bool = False) -> jax.Array:
    """The nearest cbfloat16 of each float32, ties to even, as float32; towards zero with `truncate`."""
    magnitude = lax.abs(x)
    ruler = _ruler(magnitude, _CB16)
    rounded = (magnitude + ruler) - ruler
    beyond = lax.full_like(x, np.inf)
    if truncate:
        rounded = lax.select(rounded > magnitude, rounded - ruler * np.float32(2.0**-23), rounded)
        beyond = lax.select(magnitude == np.inf, magnitude, lax.full_like(x, CB16_LARGEST))
    limited = lax.select(rounded > np.float32(CB16_LARGEST), beyond, rounded)
    return _with_sign_of(x, limited)


def _ruler(magnitude: jax.Array, places: _Places) -> jax.Array:
    """The power of two whose last place in float32 is the last place of a format at a magnitude."""
    exponent = lax.bitcast_convert_type(magnitude, jnp.int32) & _EXPONENT_BITS
    near = lax.clamp(places.smallest_exponent, exponent, places.largest_exponent)
    return lax.bitcast_convert_type(near + places.last_place, jnp.float32)


def _with_sign_of(x: jax.Array, magnitude: jax.Array) -> jax.Array:
    sign = lax.bitcast_convert_type(x, jnp.int32) & _SIGN_BIT
    return lax.bitcast_convert_type(lax.bitcast_convert_type(magnitude, jnp.int32) | sign, jnp.float32)


def _float16_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product rounded to float16, also where it goes into a sum.

    LLVM makes one operation of the two on machines that have it for float16 and leaves the rounding between
    them out; it does not see through this one, which costs nothing beside the way to the memory.
    """
    x = a.astype(jnp.float32) * b.astype(jnp.float32)
    magnitude = lax.abs(x)
    ruler = _ruler(magnitude, _FLOAT16)
    return _with_sign_of(x, (magnitude + ruler) - ruler).astype(jnp.float16)


def lower_in(half: HalfFormat, op: CirhOp, operands: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """The results of an op in a function whose f16 is `half`.

    Args:
        half: what f16 stands for.
        op: the op.
        operands: their values; float32 for an f16 that is cbfloat16.

    Raises:
        LoweringError: as `lower`.
    """
    if not any(_is_half(result) or _is_bfloat16(result) for result in op.results):
        return lower(op, *operands)
    if half == "cbfloat16":
        return _lower_cb16(op, operands)
    if isinstance(op, UnaryOp | FeaturesGradOp | OutputsGradOp | ops.EluGradOp | ops.CompositeOp):
        wide = lower(op, *(operand.astype(jnp.float32) for operand in operands))
        return tuple(value.astype(operands[0].dtype) for value in wide)
    if isinstance(op, ops.MulOp) and _is_half(op.result):
        return (_float16_product(*operands),)
    return lower(op, *operands)


def taken(half: HalfFormat, values: Sequence[jax.Array]) -> list[jax.Array]:
    """Arguments of a function in the form in which `lower_in` takes them."""
    if half != "cbfloat16":
        return list(values)
    return [round_to_cb16(v.astype(jnp.float32)) if v.dtype == jnp.float16 else v for v in values]


def given(operands: Sequence[SSAValue], values: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Results of a function in the types that it declares; inverse of `taken`."""
    return tuple(
        value.astype(jnp.float16) if _is_half(operand) else value
        for operand, value in zip(operands, values, strict=True)
    )


def _lower_cb16(op: CirhOp, operands: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    if isinstance(op, ops.CastOp):
        (x,) = operands
        return (round_to_cb16(x.astype(jnp.float32), op.truncate),)
    values = lower(op, *operands)
    if op.FACTS.exact:
        return values
    return tuple(
        round_to_cb16(value.astype(jnp.float32)) if _is_half(result) else value
        for result, value in zip(op.results, values, strict=True)
    )


def _is_half(value: SSAValue) -> bool:
    return tensor_of(value).element_type == _F16


def _is_bfloat16(value: SSAValue) -> bool:
    return tensor_of(value).element_type == _BF16
