"""16-bit formats on the device.

XLA has no cbfloat16. If a function declares that f16 is cbfloat16, values of type f16 are float32 numbers
that cbfloat16 can represent: an op is computed in float32 and its result is rounded once, as on the wafer.
IEEE float16 is XLA's own type; formulas of several operations are computed in float32 and rounded once, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.activation import FeaturesGradOp, OutputsGradOp
from cgc.cirh.base import CirhOp
from cgc.cirh.elementwise import UnaryOp
from cgc.cirh.types import HalfFormat, element_type, tensor_of
from cgc.lowering.jax_table import lower
from cgc.precision import CB16_LARGEST, CB16_MANTISSA_BITS

_F16, _BF16 = element_type("float16"), element_type("bfloat16")

_CB16_SMALLEST_EXPONENT, _FLOAT16_SMALLEST_EXPONENT = -30, -14
_FLOAT16_MANTISSA_BITS = 10
_FLOAT32_EXPONENT_BITS, _FLOAT32_MANTISSA_BITS = 8, 23


def round_to_cb16(x: jax.Array, truncate: bool = False) -> jax.Array:
    """Return nearest cbfloat16 of each float32, ties to even, as float32; towards zero with `truncate`."""
    if truncate:
        scale = np.float32(2.0 ** (CB16_MANTISSA_BITS - _CB16_SMALLEST_EXPONENT))
        magnitude = lax.abs(x)
        subnormal = lax.floor(magnitude * scale) * (1 / scale)
        dropped = np.int32(-(1 << (_FLOAT32_MANTISSA_BITS - CB16_MANTISSA_BITS)))
        kept = lax.bitcast_convert_type(magnitude, jnp.int32) & dropped
        normal = lax.min(lax.bitcast_convert_type(kept, jnp.float32), np.float32(CB16_LARGEST))
        truncated = lax.select(magnitude < np.float32(2.0**_CB16_SMALLEST_EXPONENT), subnormal, normal)
        # The sign of zero is that of x, and so are infinity and NaN.
        return lax.select(lax.is_finite(x), lax.sign(x) * truncated, x)
    rounded = _round(x, _CB16_SMALLEST_EXPONENT, CB16_MANTISSA_BITS)
    return lax.select(lax.abs(rounded) > np.float32(CB16_LARGEST), x * np.float32(np.inf), rounded)


def _round(x: jax.Array, smallest_exponent: int, mantissa_bits: int) -> jax.Array:
    """Round to the nearest number of a format with unlimited range and the given smallest exponent."""
    # XLA's `reduce_precision` to the bits of the mantissa, with gradual underflow and the largest number of
    # the format added: given the exponent bits too, it would flush subnormals. It is exact on all float32.
    # XLA repeats cheap operations in every fusion that needs them, so a rounding of few operations compiles
    # faster. One that added and subtracted a power of two took three times as long in a chain of 84
    # roundings, and ran no faster.
    scale = np.float32(2.0 ** (mantissa_bits - smallest_exponent))
    subnormal = lax.round(x * scale, lax.RoundingMethod.TO_NEAREST_EVEN) * (1 / scale)
    normal = lax.reduce_precision(x, _FLOAT32_EXPONENT_BITS, mantissa_bits)
    return lax.select(lax.abs(x) < np.float32(2.0**smallest_exponent), subnormal, normal)


def _float16_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply and round to float16, also where the product enters a sum."""
    # LLVM fuses the two on machines that have a fused operation for float16 and omits the rounding between
    # them; it does not fuse this form, which costs nothing next to the memory traffic.
    x = a.astype(jnp.float32) * b.astype(jnp.float32)
    return _round(x, _FLOAT16_SMALLEST_EXPONENT, _FLOAT16_MANTISSA_BITS).astype(jnp.float16)


def lower_in(half: HalfFormat, op: CirhOp, operands: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Compute the results of an op in a function whose f16 is `half`.

    Args:
        half: the format that f16 represents.
        op: the op.
        operands: their values; float32 for an f16 that is cbfloat16.

    Raises:
        LoweringError: as `lower`.
    """
    if not any(_is_half(result) or (tensor_of(result).element_type == _BF16) for result in op.results):
        return lower(op, *operands)
    if half == "cbfloat16":
        if isinstance(op, ops.CastOp):
            (x,) = operands
            return (round_to_cb16(x.astype(jnp.float32), op.truncate),)
        values = lower(op, *operands)
        if op.TRAITS.exact:
            return values
        return tuple(
            round_to_cb16(value.astype(jnp.float32)) if _is_half(result) else value
            for result, value in zip(op.results, values, strict=True)
        )
    if isinstance(op, UnaryOp | FeaturesGradOp | OutputsGradOp | ops.EluGradOp | ops.CompositeOp):
        wide = lower(op, *(operand.astype(jnp.float32) for operand in operands))
        return tuple(value.astype(operands[0].dtype) for value in wide)
    if isinstance(op, ops.MulOp) and _is_half(op.result):
        return (_float16_product(*operands),)
    return lower(op, *operands)


def to_computed(half: HalfFormat, values: Sequence[jax.Array]) -> list[jax.Array]:
    """Convert arguments of a function to the form that `lower_in` reads."""
    if half != "cbfloat16":
        return list(values)
    return [round_to_cb16(v.astype(jnp.float32)) if v.dtype == jnp.float16 else v for v in values]


def to_declared(operands: Sequence[SSAValue], values: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Convert results of a function to the types that it declares; inverse of `to_computed`."""
    return tuple(
        value.astype(jnp.float16) if _is_half(operand) else value
        for operand, value in zip(operands, values, strict=True)
    )


def _is_half(value: SSAValue) -> bool:
    return tensor_of(value).element_type == _F16
