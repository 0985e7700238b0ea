"""Functions of one variable."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.emit import Emitter, dtype_of

# Giles 2010, "Approximating the erfinv function", single precision: the polynomial in w - 2.5 for w < 5, and
# the one in sqrt(w) - 3 beyond, with w = -log(1 - x**2). Highest power first.
_CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def _exponentials(e: Emitter, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Half of exp(x) - 1 and half of exp(-x) - 1."""
    return e.scaled(e.unary(ops.Expm1Op, x), 0.5), e.scaled(e.unary(ops.Expm1Op, e.unary(ops.NegOp, x)), 0.5)


def sinh(e: Emitter, x: SSAValue) -> SSAValue:
    """Hyperbolic sine."""
    return e.sub(*_exponentials(e, x))


def cosh(e: Emitter, x: SSAValue) -> SSAValue:
    """Hyperbolic cosine."""
    return e.add(e.add(*_exponentials(e, x)), e.scalar(1, dtype_of(x)))


def _cathetus(e: Emitter, x: SSAValue) -> SSAValue:
    """sqrt(1 - x**2), as a product that keeps its digits where x is near 1."""
    one = e.scalar(1, dtype_of(x))
    return e.unary(ops.SqrtOp, e.mul(e.sub(one, x), e.add(one, x)))


def asin(e: Emitter, x: SSAValue) -> SSAValue:
    """Arc sine."""
    return e.binary(ops.Atan2Op, x, _cathetus(e, x))


def acos(e: Emitter, x: SSAValue) -> SSAValue:
    """Arc cosine."""
    return e.binary(ops.Atan2Op, _cathetus(e, x), x)


def atan(e: Emitter, x: SSAValue) -> SSAValue:
    """Arc tangent."""
    return e.binary(ops.Atan2Op, x, e.scalar(1, dtype_of(x)))


def asinh(e: Emitter, x: SSAValue) -> SSAValue:
    """`sign(x) * log1p(a + a**2 / (1 + sqrt(a**2 + 1)))` with a = |x|."""
    a, one = e.unary(ops.AbsOp, x), e.scalar(1, dtype_of(x))
    square = e.mul(a, a)
    root = e.unary(ops.SqrtOp, e.add(square, one))
    return e.mul(e.unary(ops.SignOp, x), e.unary(ops.Log1pOp, e.add(a, e.div(square, e.add(one, root)))))


def acosh(e: Emitter, x: SSAValue) -> SSAValue:
    """log(x + sqrt(x - 1) * sqrt(x + 1))."""
    one = e.scalar(1, dtype_of(x))
    roots = e.mul(e.unary(ops.SqrtOp, e.sub(x, one)), e.unary(ops.SqrtOp, e.add(x, one)))
    return e.unary(ops.LogOp, e.add(x, roots))


def atanh(e: Emitter, x: SSAValue) -> SSAValue:
    """(log1p(x) - log1p(-x)) / 2."""
    minus = e.unary(ops.Log1pOp, e.unary(ops.NegOp, x))
    return e.scaled(e.sub(e.unary(ops.Log1pOp, x), minus), 0.5)


def _polynomial(e: Emitter, x: SSAValue, coefficients: Sequence[float]) -> SSAValue:
    result = e.like(coefficients[0], x)
    for coefficient in coefficients[1:]:
        result = e.add(e.mul(result, x), e.scalar(coefficient, dtype_of(x)))
    return result


def erfinv(e: Emitter, x: SSAValue) -> SSAValue:
    """The inverse of erf; infinite at -1 and 1."""
    dtype = dtype_of(x)
    one = e.scalar(1, dtype)
    w = e.unary(ops.NegOp, e.unary(ops.LogOp, e.mul(e.sub(one, x), e.add(one, x))))
    central = _polynomial(e, e.sub(w, e.scalar(2.5, dtype)), _CENTRAL)
    # At -1 and 1 w is infinite, and so is the root; an infinite polynomial of mixed signs would be NaN.
    root = e.unary(ops.SqrtOp, e.binary(ops.MinOp, w, e.scalar(100, dtype)))
    tail = _polynomial(e, e.sub(root, e.scalar(3, dtype)), _TAIL)
    result = e.mul(e.select(e.compare("LT", w, e.scalar(5, dtype)), central, tail), x)
    infinite = e.scaled(x, math.inf)
    return e.select(e.compare("EQ", e.unary(ops.AbsOp, x), one), infinite, result)


def normal_quantile(e: Emitter, p: SSAValue) -> SSAValue:
    """The x below which a part p of the standard normal distribution lies."""
    centred = e.sub(e.scaled(p, 2.0), e.scalar(1, dtype_of(p)))
    return e.scaled(erfinv(e, centred), math.sqrt(2.0))
