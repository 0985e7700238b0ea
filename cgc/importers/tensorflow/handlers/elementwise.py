"""Elementwise arithmetic, comparisons, logic and special functions, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, shape_of
from cgc.importers.decompositions import special
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Array, Emitter, Maker, dtype_of
from cgc.importers.tensorflow.node import FloatBits, Handler, NodeContext, Table, Value

_BINARY: dict[str, Maker] = {
    "Add": ops.AddOp,
    "AddV2": ops.AddOp,
    "Sub": ops.SubOp,
    "Mul": ops.MulOp,
    "RealDiv": ops.DivOp,
    "Pow": ops.PowOp,
    "Maximum": ops.MaxOp,
    "Minimum": ops.MinOp,
    "FloorDiv": ops.FloorDivOp,
    "FloorMod": ops.FloorModOp,
    "Atan2": ops.Atan2Op,
    "BitwiseAnd": ops.AndOp,
    "BitwiseOr": ops.OrOp,
    "BitwiseXor": ops.XorOp,
}
_UNARY: dict[str, Maker] = {
    "Neg": ops.NegOp,
    "Abs": ops.AbsOp,
    "Exp": ops.ExpOp,
    "Expm1": ops.Expm1Op,
    "Log": ops.LogOp,
    "Log1p": ops.Log1pOp,
    "Sqrt": ops.SqrtOp,
    "Rsqrt": ops.RsqrtOp,
    "Reciprocal": ops.ReciprocalOp,
    "Inv": ops.ReciprocalOp,
    "Sin": ops.SinOp,
    "Cos": ops.CosOp,
    "Tanh": ops.TanhOp,
    "Sigmoid": ops.SigmoidOp,
    "Sign": ops.SignOp,
    "Floor": ops.FloorOp,
    "Ceil": ops.CeilOp,
    # TensorFlow's Round and Rint and CIRH's Round take ties to the even number.
    "Round": ops.RoundOp,
    "Rint": ops.RoundOp,
    "Erf": ops.ErfOp,
    "LogicalNot": ops.NotOp,
    "Invert": ops.NotOp,
    "IsFinite": ops.IsFiniteOp,
}
_ROUNDING = frozenset({"Floor", "Ceil", "Round", "Rint"})
_COMPARISONS = {
    "Equal": "EQ",
    "NotEqual": "NE",
    "Less": "LT",
    "LessEqual": "LE",
    "Greater": "GT",
    "GreaterEqual": "GE",
}


def _binary(op_type: Maker) -> Handler:
    return lambda node: node.emit.binary(op_type, node.x(0), node.x(1))


def unary(op_type: Maker) -> Handler:
    """Return the handler of an operation with one operand that is an op of CIRH."""
    return lambda node: node.emit.unary(op_type, node.x(0))


def _rounding(op_type: Maker) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.x(0)
        return node.emit.unary(op_type, x) if dtype_of(x) in FLOATS else x

    return handler


def _comparison(direction: str) -> Handler:
    return lambda node: node.emit.compare(direction, node.x(0), node.x(1))


def _logical(op_type: Maker, decides: bool) -> Handler:
    """Import And and Or, where a known scalar decides or leaves the other operand, as in loops."""

    def handler(node: NodeContext) -> SSAValue | Array:
        for position in (0, 1):
            known = node.known(position)
            if known is not None and known.shape == node.shape(1 - position) == ():
                return known if known.item() is decides else node.x(1 - position)
        return node.emit.binary(op_type, node.x(0), node.x(1))

    return handler


def _add_n(node: NodeContext) -> SSAValue:
    """Add the inputs; equal terms become one with a factor, as fusion expects it.

    The gradient of `x * x` is two equal products, that of `square(x)` one with the factor 2. The sum has no
    order.
    """
    e = node.emit
    equal: dict[object, list[SSAValue]] = {}
    for term in node.all():
        owner = term.owner
        product = frozenset(owner.operands) if isinstance(owner, ops.MulOp) else term
        equal.setdefault(product, []).append(term)
    terms = [
        terms[0] if len(terms) == 1 else e.mul(terms[0], e.scalar(len(terms), dtype_of(terms[0])))
        for terms in equal.values()
    ]
    return reduce(e.add, terms)


def _div(node: NodeContext) -> SSAValue:
    if node.out_dtype() not in FLOATS:
        raise RefusedError(Kind.USAGE, "Div of integers truncates to zero; use tf.math.floordiv or floats")
    return node.emit.div(node.x(0), node.x(1))


def _squared_difference(node: NodeContext) -> SSAValue:
    difference = node.emit.sub(node.x(0), node.x(1))
    return node.emit.mul(difference, difference)


def _square(node: NodeContext) -> SSAValue:
    x = node.x(0)
    return node.emit.mul(x, x)


def _div_no_nan(node: NodeContext) -> SSAValue:
    """Return 0 where the divisor is 0; nothing is divided by it, so that no infinity arises."""
    e, x, y = node.emit, node.x(0), node.x(1)
    is_zero = e.compare("EQ", y, e.scalar(0, dtype_of(y)))
    quotient = e.div(x, e.select(is_zero, e.scalar(1, dtype_of(y)), y))
    return e.select(is_zero, e.scalar(0, dtype_of(x)), quotient)


def _zero_where(node: NodeContext, position: int, value: SSAValue) -> SSAValue:
    e, x = node.emit, node.x(position)
    zero = e.scalar(0, dtype_of(x))
    return e.select(e.compare("EQ", x, zero), zero, value)


def _mul_no_nan(node: NodeContext) -> SSAValue:
    return _zero_where(node, 1, node.emit.mul(node.x(0), node.x(1)))


def _xdivy(node: NodeContext) -> SSAValue:
    return _zero_where(node, 0, node.emit.div(node.x(0), node.x(1)))


def _x_log(op_type: Maker) -> Handler:
    return lambda node: _zero_where(node, 0, node.emit.mul(node.x(0), node.emit.unary(op_type, node.x(1))))


def _clip(node: NodeContext) -> SSAValue:
    raised = node.emit.binary(ops.MaxOp, node.x(0), node.x(1))
    return node.emit.binary(ops.MinOp, raised, node.x(2))


def _select(node: NodeContext) -> SSAValue:
    """tf.compat.v1.where: a condition of rank 1 chooses rows of operands of a higher rank."""
    condition, on_true, on_false = node.all()
    rank = len(shape_of(on_true))
    if len(shape_of(condition)) == 1 and rank > 1:
        condition = node.emit.reshape(condition, (*shape_of(condition), *(1,) * (rank - 1)))
    return node.emit.select(condition, on_true, on_false)


def _select_v2(node: NodeContext) -> SSAValue:
    return node.emit.select(*node.all())


def _cast(node: NodeContext) -> SSAValue:
    return node.emit.cast(node.x(0), node.out_dtype())


def _sqrt_grad(node: NodeContext) -> SSAValue:
    """`dy * 0.5 / y` with `y = sqrt(x)`."""
    y, dy = node.all()
    return node.emit.div(node.emit.scale(dy, 0.5), y)


def _rsqrt_grad(node: NodeContext) -> SSAValue:
    """`dy * -0.5 * y**3` with `y = 1/sqrt(x)`."""
    y, dy = node.all()
    e = node.emit
    return e.mul(e.scale(dy, -0.5), e.mul(e.mul(y, y), y))


def _reciprocal_grad(node: NodeContext) -> SSAValue:
    """`-dy * y**2` with `y = 1/x`."""
    y, dy = node.all()
    e = node.emit
    return e.mul(e.unary(ops.NegOp, dy), e.mul(y, y))


def _approximate_equal(node: NodeContext) -> SSAValue:
    e, difference = node.emit, node.emit.sub(node.x(0), node.x(1))
    return e.compare("LT", e.unary(ops.AbsOp, difference), e.like(node.attr("tolerance"), difference))


def _fill_like(value: float) -> Handler:
    """Import ZerosLike and OnesLike: only the shape of the input matters."""

    def handler(node: NodeContext) -> SSAValue:
        return node.emit.full(value, node.shape(0), node.out_dtype())

    return handler


def _decompose(function: Callable[[Emitter, SSAValue], SSAValue]) -> Handler:
    return lambda node: function(node.emit, node.x(0))


def _decompose_two(function: Callable[[Emitter, SSAValue, SSAValue], SSAValue]) -> Handler:
    return lambda node: function(node.emit, node.x(0), node.x(1))


def _polygamma(node: NodeContext) -> SSAValue:
    """Inputs: the order, x. Order 1 is the one that the gradient of digamma needs."""
    orders = node.static(0, "order")
    if not (orders == 1).all():
        raise RefusedError(Kind.USAGE, f"its order is {orders.max():g}, expected 1")
    return node.emit.broadcast(special.trigamma(node.emit, node.x(1)), node.op.outputs[0].shape.as_list())


_INTEGERS_32 = frozenset({"int32", "uint32"})
_SIGN_BIT = np.int64(1) << 31


# The device has no access to the bits of a float. Programs such as Keras' argmax only read the sign, which
# also distinguishes -0 from 0; it is computed.
def _bitcast(node: NodeContext) -> Value:
    x, dtype = node.x(0), node.out_dtype()
    if dtype_of(x) == "float32" and dtype in _INTEGERS_32:
        return FloatBits(x, dtype)
    if {dtype_of(x), dtype} <= _INTEGERS_32:
        return node.emit.cast(x, dtype)
    raise RefusedError(Kind.USAGE, f"it reinterprets the bits of {dtype_of(x)} as {dtype}")


def _and(node: NodeContext) -> SSAValue:
    """Mask the bits of a float: only the sign bit can be read."""
    bits, mask = node.inputs if isinstance(node.inputs[0], FloatBits) else reversed(node.inputs)
    if not isinstance(bits, FloatBits) or not isinstance(mask, np.ndarray):
        raise _no_bits()
    if not (mask.astype(np.int64) % 2**32 == _SIGN_BIT).all():
        raise _no_bits()
    e = node.emit
    sign = e.constant(_SIGN_BIT.astype(np.uint32).astype(bits.dtype))
    return e.select(_is_negative(node, bits.value), e.broadcast(sign, mask.shape), e.scalar(0, bits.dtype))


def _is_negative(node: NodeContext, x: SSAValue) -> SSAValue:
    """Return whether the sign is minus: x < 0, or x is the zero whose reciprocal is minus infinity."""
    e = node.emit
    zero = e.scalar(0, dtype_of(x))
    minus_zero = e.compare("LT", e.unary(ops.ReciprocalOp, x), zero)
    return e.binary(
        ops.OrOp, e.compare("LT", x, zero), e.binary(ops.AndOp, e.compare("EQ", x, zero), minus_zero)
    )


def _no_bits() -> RefusedError:
    return RefusedError(Kind.USAGE, "only the sign bit of a float can be read")


ON_BITS: Table = {"BitwiseAnd": _and}  # operations on integers that also accept the bits of floats


TABLE: Table = {
    "LeftShift": _decompose_two(special.shift_left),
    "RightShift": _decompose_two(special.shift_right),
    **{name: _binary(op_type) for name, op_type in _BINARY.items()},
    **{name: unary(op_type) for name, op_type in _UNARY.items() if name not in _ROUNDING},
    **{name: _rounding(op_type) for name, op_type in _UNARY.items() if name in _ROUNDING},
    **{name: _comparison(direction) for name, direction in _COMPARISONS.items()},
    "LogicalAnd": _logical(ops.AndOp, decides=False),
    "LogicalOr": _logical(ops.OrOp, decides=True),
    "AddN": _add_n,
    "AccumulateNV2": _add_n,
    "Div": _div,
    "SquaredDifference": _squared_difference,
    "Square": _square,
    "DivNoNan": _div_no_nan,
    "MulNoNan": _mul_no_nan,
    "Xdivy": _xdivy,
    "Xlogy": _x_log(ops.LogOp),
    "Xlog1py": _x_log(ops.Log1pOp),
    "ApproximateEqual": _approximate_equal,
    "Erfc": _decompose(special.erfc),
    "Tan": _decompose(special.tan),
    "IsNan": _decompose(special.is_nan),
    "IsInf": _decompose(special.is_inf),
    "ClipByValue": _clip,
    "Select": _select,
    "SelectV2": _select_v2,
    "Cast": _cast,
    "SqrtGrad": _sqrt_grad,
    "RsqrtGrad": _rsqrt_grad,
    "ReciprocalGrad": _reciprocal_grad,
    "InvGrad": _reciprocal_grad,
    "ZerosLike": _fill_like(0),
    "OnesLike": _fill_like(1),
    "Sinh": _decompose(special.sinh),
    "Cosh": _decompose(special.cosh),
    "Asin": _decompose(special.asin),
    "Acos": _decompose(special.acos),
    "Atan": _decompose(special.atan),
    "Asinh": _decompose(special.asinh),
    "Acosh": _decompose(special.acosh),
    "Atanh": _decompose(special.atanh),
    "Erfinv": _decompose(special.erfinv),
    "Ndtri": _decompose(special.normal_quantile),
    "Lgamma": _decompose(special.lgamma),
    "Digamma": _decompose(special.digamma),
    "Polygamma": _polygamma,
    "Bitcast": _bitcast,
}
