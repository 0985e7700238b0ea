"""Lowerings of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    CastOp,
    CompareOp,
    ExtSIOp,
    ExtUIOp,
)
from cgc.lowering.base import Table, like, plain, result_dtype

_COMPARISONS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "EQ": lax.eq,
    "NE": lax.ne,
    "LT": lax.lt,
    "LE": lax.le,
    "GT": lax.gt,
    "GE": lax.ge,
}


def power(_op: CirhOp, base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Compute `base ** exponent`; integers by repeated squaring, as TensorFlow for exponents >= 0."""
    if jnp.issubdtype(base.dtype, jnp.floating):
        return jnp.power(base, exponent)
    # jnp.power of integers reads only 6 bits of the exponent; squaring, bit by bit, has no such limit.
    result = jnp.ones_like(base)
    for bit in range(np.iinfo(exponent.dtype).bits - 1):
        result = jnp.where(exponent >> bit & 1 == 1, result * base, result)
        base = base * base
    return result


def floor_div(_op: CirhOp, left: jax.Array, right: jax.Array) -> jax.Array:
    """Round the quotient towards minus infinity."""
    if jnp.issubdtype(left.dtype, jnp.floating):
        return lax.floor(lax.div(left, right))
    return jnp.floor_divide(left, right)


def floor_mod(_op: CirhOp, left: jax.Array, right: jax.Array) -> jax.Array:
    """Compute the remainder with the sign of the divisor."""
    return jnp.mod(left, right)


def reciprocal(_op: CirhOp, x: jax.Array) -> jax.Array:
    """Compute `1 / x`."""
    return lax.div(like(x, 1), x)


def extend_signed(op: ExtSIOp, x: jax.Array) -> jax.Array:
    """Add bits, copies of the highest one of x; the only bit of a bool."""
    target = result_dtype(op)
    if x.dtype == jnp.bool_:
        return lax.neg(lax.convert_element_type(x, jnp.int32)).astype(target)
    signed = lax.bitcast_convert_type(x, f"int{x.dtype.itemsize * 8}")
    return lax.convert_element_type(signed, target)


def extend_unsigned(op: ExtUIOp, x: jax.Array) -> jax.Array:
    """Add bits, all zero."""
    if x.dtype != jnp.bool_:
        x = lax.bitcast_convert_type(x, f"uint{x.dtype.itemsize * 8}")
    return lax.convert_element_type(x, result_dtype(op))


def fscale(_op: CirhOp, x: jax.Array, exponent: jax.Array) -> jax.Array:
    """Compute `x * 2**exponent`, rounded only where the result is subnormal."""
    wide = x.astype(jnp.float32)
    # Two powers that float32 has: 2**exponent itself may exceed its range when the product does not.
    half = exponent // 2
    for power in (half, exponent - half):
        wide = wide * jnp.ldexp(jnp.float32(1), jnp.clip(power, -126, 127))
    return wide.astype(x.dtype)


def compare(op: CompareOp, left: jax.Array, right: jax.Array) -> jax.Array:
    """Compare by EQ NE LT LE GT GE; every comparison with NaN but NE is false."""
    return _COMPARISONS[op.direction](left, right)


def select(_op: CirhOp, condition: jax.Array, on_true: jax.Array, on_false: jax.Array) -> jax.Array:
    """Return `on_true` where the condition holds."""
    return lax.select(condition, on_true, on_false)


def clamp(_op: CirhOp, x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Compute `min(max(x, low), high)`."""
    return lax.clamp(low, x, high)


def cast(op: CastOp, x: jax.Array) -> jax.Array:
    """Convert to another element type.

    Float to integer drops the fraction, anything to bool is `x != 0`. To a narrower float the value is
    rounded to the nearest, or towards zero with `truncate`.
    """
    target = result_dtype(op)
    if op.truncate and jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(target, jnp.floating):
        # Round to the nearest, then step one unit back where the magnitude has grown.
        if target.itemsize >= x.dtype.itemsize:
            return lax.convert_element_type(x, target)
        nearest = lax.convert_element_type(x, target)
        bits = lax.bitcast_convert_type(nearest, jnp.uint16)
        grown = lax.gt(lax.abs(lax.convert_element_type(nearest, x.dtype)), lax.abs(x))
        return lax.bitcast_convert_type(bits - lax.convert_element_type(grown, jnp.uint16), target)
    return lax.convert_element_type(x, target)


def _round_half_to_even(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


LOWERINGS: Table = {
    ops.AddOp: plain(lax.add),
    ops.SubOp: plain(lax.sub),
    ops.MulOp: plain(lax.mul),
    ops.DivOp: plain(lax.div),
    ops.PowOp: power,
    ops.MaxOp: plain(lax.max),
    ops.MinOp: plain(lax.min),
    ops.FloorDivOp: floor_div,
    ops.FloorModOp: floor_mod,
    ops.Atan2Op: plain(lax.atan2),
    ops.AndOp: plain(lax.bitwise_and),
    ops.OrOp: plain(lax.bitwise_or),
    ops.XorOp: plain(lax.bitwise_xor),
    ops.NegOp: plain(lax.neg),
    ops.AbsOp: plain(lax.abs),
    ops.ExpOp: plain(lax.exp),
    ops.Expm1Op: plain(lax.expm1),
    ops.LogOp: plain(lax.log),
    ops.Log1pOp: plain(lax.log1p),
    ops.SqrtOp: plain(lax.sqrt),
    ops.RsqrtOp: plain(lax.rsqrt),
    ops.ReciprocalOp: reciprocal,
    ops.SinOp: plain(lax.sin),
    ops.CosOp: plain(lax.cos),
    ops.TanhOp: plain(lax.tanh),
    ops.SigmoidOp: plain(lax.logistic),
    ops.SignOp: plain(lax.sign),
    ops.FloorOp: plain(lax.floor),
    ops.CeilOp: plain(lax.ceil),
    ops.RoundOp: plain(_round_half_to_even),
    ops.ErfOp: plain(lax.erf),
    ops.NotOp: plain(lax.bitwise_not),
    ops.IsFiniteOp: plain(lax.is_finite),
    ops.CompareOp: compare,
    ops.SelectOp: select,
    ops.ClampOp: clamp,
    ops.CastOp: cast,
    ops.ExtSIOp: extend_signed,
    ops.ExtUIOp: extend_unsigned,
    ops.FscaleOp: fscale,
}
