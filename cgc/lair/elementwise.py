"""CIRH ops that treat every element by itself, as scalar arithmetic; the formulas of `cgc.lowering`."""

from __future__ import annotations

import math

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    CastOp,
    CompareOp,
)
from cgc.cirh.types import tensor_of
from cgc.lair.scalar import FLOAT_NAMES, Scalar, dtype_of
from cgc.lair.structure import Formula


def _function(name: str) -> Formula:
    return lambda _op, x, *others: x.apply(name, *others)


def _power(_op: CirhOp, base: Scalar, exponent: Scalar) -> Scalar:
    return base.apply("powf" if base.is_float else "ipowi", exponent)


def _floor_div(_op: CirhOp, x: Scalar, y: Scalar) -> Scalar:
    return (x / y).apply("floor") if x.is_float else x / y


def floor_mod(_op: CirhOp, x: Scalar, y: Scalar) -> Scalar:
    """The remainder with the sign of the divisor; of floats by its own function, see `Scalar.remainder`."""
    rest = x.remainder(y)
    if x.is_unsigned:
        return rest
    wrong_sign = rest.compare("LT", 0) ^ y.compare("LT", 0)
    return (rest.compare("NE", 0) & wrong_sign).select(rest + y, rest)


def _sign(_op: CirhOp, x: Scalar) -> Scalar:
    sign = x.compare("GT", 0).select(1, x.compare("LT", 0).select(-1, x.constant(0)))
    return x.is_nan().select(x, sign) if x.is_float else sign


def _not(_op: CirhOp, x: Scalar) -> Scalar:
    return x ^ (1 if x.dtype == "bool" else -1)


def _is_finite(_op: CirhOp, x: Scalar) -> Scalar:
    return x.abs().compare("LT", math.inf)


def _compare(op: CompareOp, x: Scalar, y: Scalar) -> Scalar:
    return x.compare(op.direction, y)


def _cast(op: CastOp, x: Scalar) -> Scalar:
    target = dtype_of(tensor_of(op.result))
    if op.truncate and x.dtype == "float32" and target in FLOAT_NAMES - {"float32"}:
        return _truncated(x, target)
    return x.to(target)


def _extend_signed(op: CirhOp, x: Scalar) -> Scalar:
    """More bits, copies of the highest one."""
    target = dtype_of(tensor_of(op.results[0]))
    if x.dtype == "bool":
        return (-x.to("int32")).to(target)
    return x.read_as("int").to(target)


def _extend_unsigned(op: CirhOp, x: Scalar) -> Scalar:
    """More bits, all zero."""
    read = x if x.dtype == "bool" else x.read_as("uint")
    return read.to(dtype_of(tensor_of(op.results[0])))


def _truncated(x: Scalar, target: str) -> Scalar:
    """Rounded to the nearest, then one unit back where the magnitude has grown."""
    nearest = x.to(target)
    grown = nearest.to("float32").abs().compare("GT", x.abs())
    bits = nearest.bits_as("int16")
    return grown.select(bits - 1, bits).bits_as(target)


FORMULAS: dict[type[CirhOp], Formula] = {
    ops.AddOp: lambda _op, x, y: x + y,
    ops.SubOp: lambda _op, x, y: x - y,
    ops.MulOp: lambda _op, x, y: x * y,
    ops.DivOp: lambda _op, x, y: x / y,
    ops.PowOp: _power,
    ops.MaxOp: lambda _op, x, y: x.max(y),
    ops.MinOp: lambda _op, x, y: x.min(y),
    ops.FloorDivOp: _floor_div,
    ops.FloorModOp: floor_mod,
    ops.Atan2Op: _function("atan2"),
    ops.AndOp: lambda _op, x, y: x & y,
    ops.OrOp: lambda _op, x, y: x | y,
    ops.XorOp: lambda _op, x, y: x ^ y,
    ops.NegOp: lambda _op, x: -x,
    ops.AbsOp: lambda _op, x: x.abs(),
    ops.ExpOp: _function("exp"),
    ops.Expm1Op: _function("expm1"),
    ops.LogOp: _function("log"),
    ops.Log1pOp: _function("log1p"),
    ops.SqrtOp: _function("sqrt"),
    ops.RsqrtOp: _function("rsqrt"),
    ops.ReciprocalOp: lambda _op, x: x.constant(1) / x,
    ops.SinOp: _function("sin"),
    ops.CosOp: _function("cos"),
    ops.TanhOp: _function("tanh"),
    ops.SigmoidOp: lambda _op, x: sigmoid(x),
    ops.SignOp: _sign,
    ops.FloorOp: _function("floor"),
    ops.CeilOp: _function("ceil"),
    ops.RoundOp: _function("round"),
    ops.ErfOp: _function("erf"),
    ops.NotOp: _not,
    ops.IsFiniteOp: _is_finite,
    ops.CompareOp: _compare,
    ops.SelectOp: lambda _op, condition, on_true, on_false: condition.select(on_true, on_false),
    ops.ClampOp: lambda _op, x, low, high: x.max(low).min(high),
    ops.CastOp: _cast,
    ops.ExtSIOp: _extend_signed,
    ops.ExtUIOp: _extend_unsigned,
}


def sigmoid(x: Scalar) -> Scalar:
    """`1 / (1 + exp(-x))`."""
    return x.constant(1) / ((-x).apply("exp") + 1)
