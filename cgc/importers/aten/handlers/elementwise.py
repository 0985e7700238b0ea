"""Elementwise arithmetic, comparisons, rounding, selection and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.decompositions import special
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, Maker

_OTHER = ("self", "other")
Combine = Callable[[Emitter, SSAValue, SSAValue], SSAValue]


def _decompose_two(combine: Combine) -> Handler:
    """Return the handler of an operation on two operands, which get the result's element type."""

    def handler(node: NodeContext) -> SSAValue:
        return _whole(node, combine(node.emit, node.cast("self"), node.cast("other")))

    return handler


def _binary(op_type: Maker) -> Handler:
    return _decompose_two(lambda e, a, b: e.binary(op_type, a, b))


def _unary(op_type: Maker) -> Handler:
    return lambda node: node.emit.unary(op_type, node.cast())


def _add_scaled(sign: int, first: str = "self", second: str = "other") -> Handler:
    """`first + sign * alpha * second`."""

    def handler(node: NodeContext) -> SSAValue:
        e, a, b = node.emit, node.cast(first), node.cast(second)
        alpha = node.arg("alpha", 1)
        if alpha != 1:
            b = e.scale(b, alpha)
        if node.dtype == "bool":
            return _whole(node, e.binary(ops.OrOp, a, b))
        return _whole(node, (e.add if sign > 0 else e.sub)(a, b))

    return handler


def _whole(node: NodeContext, value: SSAValue) -> SSAValue:
    """Return an argument as a tensor: two numbers have no shape to broadcast to."""
    return node.emit.broadcast(value, node.shape)


def _mul(node: NodeContext) -> SSAValue:
    op_type: Maker = ops.AndOp if node.dtype == "bool" else ops.MulOp
    return _whole(node, node.emit.binary(op_type, node.cast("self"), node.cast("other")))


def _rsub(node: NodeContext) -> SSAValue:
    """`other - alpha * self`."""
    e, alpha = node.emit, node.arg("alpha", 1)
    x = node.cast() if alpha == 1 else e.scale(node.cast(), alpha)
    return e.sub(node.cast("other"), x)


def _div_mode(node: NodeContext) -> SSAValue:
    e, mode = node.emit, node.arg("rounding_mode")
    a, b = node.cast("self"), node.cast("other")
    if mode == "floor":
        return e.binary(ops.FloorDivOp, a, b)
    if mode == "trunc" and node.dtype not in FLOATS:
        return e.binary(ops.FloorDivOp, e.sub(a, _fmod(node)), b)
    quotient = e.div(a, b)
    return _truncate(e, quotient) if mode == "trunc" else quotient


def _truncate(e: Emitter, x: SSAValue) -> SSAValue:
    positive = e.compare("GE", x, e.like(0, x))
    return e.select(positive, e.unary(ops.FloorOp, x), e.unary(ops.CeilOp, x))


def _trunc(node: NodeContext) -> SSAValue:
    x = node.cast()
    return _truncate(node.emit, x) if node.dtype in FLOATS else x


def _frac(node: NodeContext) -> SSAValue:
    x = node.cast()
    return node.emit.sub(x, _truncate(node.emit, x))


def _fmod(node: NodeContext) -> SSAValue:
    """Return the rest of a division towards zero; it has the sign of the dividend."""
    e, a, b = node.emit, node.cast("self"), node.cast("other")
    rest = e.binary(ops.FloorModOp, e.unary(ops.AbsOp, a), e.unary(ops.AbsOp, b))
    return e.select(e.compare("LT", a, e.like(0, a)), e.unary(ops.NegOp, rest), rest)


def _pow(node: NodeContext) -> SSAValue:
    e, exponent = node.emit, node.arg("exponent")
    if not isinstance(exponent, int | float):
        return _whole(node, e.binary(ops.PowOp, node.cast("self"), node.cast("exponent")))
    x = node.cast()
    if exponent == 2:
        return e.mul(x, x)
    if exponent == 3:
        return e.mul(e.mul(x, x), x)
    if exponent == 0.5 and node.dtype in FLOATS:
        return e.unary(ops.SqrtOp, x)
    if exponent == -0.5 and node.dtype in FLOATS:
        return e.unary(ops.RsqrtOp, x)
    if exponent == -1 and node.dtype in FLOATS:
        return e.unary(ops.ReciprocalOp, x)
    return e.binary(ops.PowOp, x, node.cast("exponent"))


def _compare(direction: str) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        a, b = node.promote(*_OTHER)
        return _whole(node, node.emit.compare(direction, a, b))

    return handler


def _logical(op_type: Maker) -> Handler:
    """Combine truth values: a number is true if it is not 0."""

    def handler(node: NodeContext) -> SSAValue:
        e = node.emit
        return e.binary(op_type, e.cast(node.x("self"), "bool"), e.cast(node.x("other"), "bool"))

    return handler


def _logical_not(node: NodeContext) -> SSAValue:
    e = node.emit
    return e.unary(ops.NotOp, e.cast(node.x(), "bool"))


def _bitwise(op_type: Maker) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        return node.emit.binary(op_type, node.cast("self"), node.cast("other"))

    return handler


def _bitwise_not(node: NodeContext) -> SSAValue:
    if node.dtype != "bool":
        e, x = node.emit, node.x()
        return e.sub(e.like(-1, x), x)
    return node.emit.unary(ops.NotOp, node.x())


def _where(node: NodeContext) -> SSAValue:
    e = node.emit
    return _whole(node, e.select(e.cast(node.x("condition"), "bool"), node.cast("self"), node.cast("other")))


def _masked_fill(node: NodeContext) -> SSAValue:
    return node.emit.select(node.x("mask"), node.cast("value"), node.cast())


def _clamp(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.cast()
    low, high = node.arg("min"), node.arg("max")
    if isinstance(low, int | float) and isinstance(high, int | float):
        return e.emit(ops.ClampOp(x, e.scalar(low, node.dtype), e.scalar(high, node.dtype)))
    if low is not None:
        x = e.binary(ops.MaxOp, x, node.cast("min"))
    return x if high is None else e.binary(ops.MinOp, x, node.cast("max"))


def _clamp_min(node: NodeContext) -> SSAValue:
    return node.emit.binary(ops.MaxOp, node.cast(), node.cast("min"))


def _clamp_max(node: NodeContext) -> SSAValue:
    return node.emit.binary(ops.MinOp, node.cast(), node.cast("max"))


def _log_base(base: float) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e = node.emit
        return e.scale(e.unary(ops.LogOp, node.cast()), 1 / math.log(base))

    return handler


def _exp2(node: NodeContext) -> SSAValue:
    e = node.emit
    return e.unary(ops.ExpOp, e.scale(node.cast(), math.log(2)))


def _isnan(node: NodeContext) -> SSAValue:
    return special.is_nan(node.emit, node.x())


def _isinf(node: NodeContext) -> SSAValue:
    return special.is_inf(node.emit, node.x())


def _isfinite(node: NodeContext) -> SSAValue:
    return node.emit.unary(ops.IsFiniteOp, node.x())


def _sign(node: NodeContext) -> SSAValue:
    return node.emit.unary(ops.SignOp, node.cast())


def _hypot(node: NodeContext) -> SSAValue:
    return _whole(node, hypotenuse(node.emit, *(node.cast(name) for name in _OTHER)))


def hypotenuse(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """Return the root of the sum of squares, scaled by the larger one; broadcast."""
    a, b = e.unary(ops.AbsOp, a), e.unary(ops.AbsOp, b)
    larger, smaller = e.binary(ops.MaxOp, a, b), e.binary(ops.MinOp, a, b)
    ratio = e.div(smaller, e.select(e.compare("EQ", larger, e.like(0, larger)), e.like(1, larger), larger))
    return e.mul(larger, e.unary(ops.SqrtOp, e.add(e.mul(ratio, ratio), e.like(1, ratio))))


def _to_copy(node: NodeContext) -> SSAValue:
    return node.emit.cast(node.x(), node.dtype)


def _copy(node: NodeContext) -> SSAValue:
    """Return the elements of `src` in the shape and the element type of `self`."""
    e = node.emit
    return e.broadcast(e.cast(node.x("src"), node.dtype), node.shape)


def _clone(node: NodeContext) -> SSAValue:
    return node.x()


def _logaddexp(node: NodeContext) -> SSAValue:
    e, a, b = node.emit, node.cast("self"), node.cast("other")
    larger = e.binary(ops.MaxOp, a, b)
    distance = e.unary(ops.NegOp, e.unary(ops.AbsOp, e.sub(a, b)))
    # The difference of two infinities is NaN.
    distance = e.select(e.compare("EQ", a, b), e.scalar(0, node.dtype), distance)
    return e.add(larger, e.unary(ops.Log1pOp, e.unary(ops.ExpOp, distance)))


def _lerp(node: NodeContext) -> SSAValue:
    """`self + weight * (end - self)`, from the end where the weight is a half or more, as ATen has it."""
    e, start, end, weight = node.emit, node.cast(), node.cast("end"), node.arg("weight")
    step = e.sub(end, start)
    if isinstance(weight, int | float):
        if abs(weight) < 0.5:
            return e.add(start, e.scale(step, weight))
        return e.sub(end, e.scale(step, 1 - weight))
    w = e.broadcast(node.cast("weight"), node.shape)
    near = e.add(start, e.mul(w, step))
    far = e.sub(end, e.mul(step, e.sub(e.like(1, w), w)))
    return e.select(e.compare("LT", e.unary(ops.AbsOp, w), e.like(0.5, w)), near, far)


def _addcmul(divide: bool) -> Handler:
    """`self + value * tensor1 * tensor2`, or the quotient of the two."""

    def handler(node: NodeContext) -> SSAValue:
        e = node.emit
        a, b, value = node.cast("tensor1"), node.cast("tensor2"), node.arg("value", 1)
        a = a if value == 1 else e.scale(a, value)
        return e.add(node.cast(), e.div(a, b) if divide else e.mul(a, b))

    return handler


def _overloads(name: str, handler: Handler, overloads: str) -> Table:
    return {f"aten.{name}.{overload}": handler for overload in overloads.split()}


_UNARY: dict[str, Maker] = {
    "abs": ops.AbsOp,
    "ceil": ops.CeilOp,
    "cos": ops.CosOp,
    "erf": ops.ErfOp,
    "exp": ops.ExpOp,
    "expm1": ops.Expm1Op,
    "floor": ops.FloorOp,
    "log": ops.LogOp,
    "log1p": ops.Log1pOp,
    "neg": ops.NegOp,
    "reciprocal": ops.ReciprocalOp,
    "round": ops.RoundOp,
    "rsqrt": ops.RsqrtOp,
    "sigmoid": ops.SigmoidOp,
    "sin": ops.SinOp,
    "sqrt": ops.SqrtOp,
    "tanh": ops.TanhOp,
}
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")


def _decompose(function: Callable[[Emitter, SSAValue], SSAValue]) -> Handler:
    return lambda node: function(node.emit, node.cast())


def _polygamma(node: NodeContext) -> SSAValue:
    """Return the polygamma function of order 1, which the gradient of digamma needs."""
    if node.arg("n") != 1:
        raise RefusedError(Kind.USAGE, f"its order is {node.arg('n')}, expected 1")
    return special.trigamma(node.emit, node.cast())


TABLE: Table = {
    **{
        f"{namespace}.{name}.default": _unary(op_type)
        for name, op_type in _UNARY.items()
        for namespace in ("aten", "prims")
    },
    **{
        f"aten.{name}.{overload}": _compare(name.upper())
        for name in _COMPARED
        for overload in ("Tensor", "Scalar")
    },
    **_overloads("add", _add_scaled(1), "Tensor Scalar"),
    **_overloads("sub", _add_scaled(-1), "Tensor Scalar"),
    **_overloads("mul", _mul, "Tensor Scalar"),
    **_overloads("div", _binary(ops.DivOp), "Tensor Scalar"),
    **_overloads("div", _div_mode, "Tensor_mode Scalar_mode"),
    **_overloads("rsub", _rsub, "Tensor Scalar"),
    **_overloads("remainder", _binary(ops.FloorModOp), "Tensor Scalar"),
    **_overloads("fmod", _fmod, "Tensor Scalar"),
    **_overloads("floor_divide", _binary(ops.FloorDivOp), "default Scalar"),
    **_overloads("pow", _pow, "Tensor_Tensor Tensor_Scalar Scalar"),
    **_overloads("bitwise_and", _bitwise(ops.AndOp), "Tensor Scalar"),
    **_overloads("bitwise_or", _bitwise(ops.OrOp), "Tensor Scalar"),
    **_overloads("bitwise_xor", _bitwise(ops.XorOp), "Tensor Scalar"),
    **_overloads("where", _where, "self ScalarOther ScalarSelf Scalar"),
    **_overloads("masked_fill", _masked_fill, "Scalar Tensor"),
    **_overloads("clamp", _clamp, "default Tensor"),
    **_overloads("clamp_min", _clamp_min, "default Tensor"),
    **_overloads("clamp_max", _clamp_max, "default Tensor"),
    **_overloads("lerp", _lerp, "Scalar Tensor"),
    "aten.addcmul.default": _addcmul(divide=False),
    "aten.addcdiv.default": _addcmul(divide=True),
    "aten.atan2.default": _binary(ops.Atan2Op),
    "aten.hypot.default": _hypot,
    **_overloads("__lshift__", _decompose_two(special.shift_left), "Tensor Scalar"),
    **_overloads("bitwise_left_shift", _decompose_two(special.shift_left), "Tensor Tensor_Scalar"),
    **_overloads("__rshift__", _decompose_two(special.shift_right), "Tensor Scalar"),
    **_overloads("bitwise_right_shift", _decompose_two(special.shift_right), "Tensor Tensor_Scalar"),
    "aten.maximum.default": _binary(ops.MaxOp),
    "aten.minimum.default": _binary(ops.MinOp),
    "aten.logical_and.default": _logical(ops.AndOp),
    "aten.logical_or.default": _logical(ops.OrOp),
    "aten.logical_xor.default": _logical(ops.XorOp),
    "aten.logical_not.default": _logical_not,
    "aten.bitwise_not.default": _bitwise_not,
    "aten.trunc.default": _trunc,
    "aten.frac.default": _frac,
    "aten.log2.default": _log_base(2),
    "aten.log10.default": _log_base(10),
    "aten.exp2.default": _exp2,
    "aten.tan.default": _decompose(special.tan),
    "aten.erfc.default": _decompose(special.erfc),
    "aten.isnan.default": _isnan,
    "aten.isinf.default": _isinf,
    "aten.isfinite.default": _isfinite,
    "aten.sign.default": _sign,
    "aten.sgn.default": _sign,
    "aten.logaddexp.default": _logaddexp,
    "aten._to_copy.default": _to_copy,
    "aten.copy.default": _copy,
    "aten.clone.default": _clone,
    "aten.contiguous.default": _clone,
    "aten.alias.default": _clone,
    "aten.sinh.default": _decompose(special.sinh),
    "aten.cosh.default": _decompose(special.cosh),
    "aten.asin.default": _decompose(special.asin),
    "aten.acos.default": _decompose(special.acos),
    "aten.atan.default": _decompose(special.atan),
    "aten.asinh.default": _decompose(special.asinh),
    "aten.acosh.default": _decompose(special.acosh),
    "aten.atanh.default": _decompose(special.atanh),
    "aten.erfinv.default": _decompose(special.erfinv),
    "aten.special_ndtri.default": _decompose(special.normal_quantile),
    "aten.lgamma.default": _decompose(special.lgamma),
    "aten.digamma.default": _decompose(special.digamma),
    "aten.polygamma.default": _polygamma,
}
