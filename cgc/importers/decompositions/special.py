"""Elementwise functions: trigonometric and hyperbolic ones and their inverses, erf, gamma, bit shifts."""

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


def is_nan(e: Emitter, x: SSAValue) -> SSAValue:
    """Return whether elements are NaN."""
    return e.compare("NE", x, x)


def is_inf(e: Emitter, x: SSAValue) -> SSAValue:
    """Return whether elements are infinite, of either sign."""
    return e.compare("EQ", e.unary(ops.AbsOp, x), e.scalar(math.inf, dtype_of(x)))


def shift_left(e: Emitter, x: SSAValue, bits: SSAValue) -> SSAValue:
    """Multiply integers by a power of two."""
    return e.mul(x, e.binary(ops.PowOp, e.scalar(2, dtype_of(bits)), bits))


def shift_right(e: Emitter, x: SSAValue, bits: SSAValue) -> SSAValue:
    """Divide integers by a power of two, rounded down."""
    return e.binary(ops.FloorDivOp, x, e.binary(ops.PowOp, e.scalar(2, dtype_of(bits)), bits))


def tan(e: Emitter, x: SSAValue) -> SSAValue:
    """Tangent."""
    return e.div(e.unary(ops.SinOp, x), e.unary(ops.CosOp, x))


def erfc(e: Emitter, x: SSAValue) -> SSAValue:
    """Complementary error function, 1 - erf(x)."""
    return e.sub(e.scalar(1, dtype_of(x)), e.unary(ops.ErfOp, x))


def _exponentials(e: Emitter, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Return half of exp(x) - 1 and half of exp(-x) - 1."""
    return e.scale(e.unary(ops.Expm1Op, x), 0.5), e.scale(e.unary(ops.Expm1Op, e.unary(ops.NegOp, x)), 0.5)


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
    return e.scale(e.sub(e.unary(ops.Log1pOp, x), minus), 0.5)


def _polynomial(e: Emitter, x: SSAValue, coefficients: Sequence[float]) -> SSAValue:
    result = e.like(coefficients[0], x)
    for coefficient in coefficients[1:]:
        result = e.add(e.mul(result, x), e.scalar(coefficient, dtype_of(x)))
    return result


def erfinv(e: Emitter, x: SSAValue) -> SSAValue:
    """Return the inverse of erf; infinite at -1 and 1."""
    dtype = dtype_of(x)
    one = e.scalar(1, dtype)
    w = e.unary(ops.NegOp, e.unary(ops.LogOp, e.mul(e.sub(one, x), e.add(one, x))))
    central = _polynomial(e, e.sub(w, e.scalar(2.5, dtype)), _CENTRAL)
    # At -1 and 1 w is infinite, and so is the root; an infinite polynomial of mixed signs would be NaN.
    root = e.unary(ops.SqrtOp, e.binary(ops.MinOp, w, e.scalar(100, dtype)))
    tail = _polynomial(e, e.sub(root, e.scalar(3, dtype)), _TAIL)
    result = e.mul(e.select(e.compare("LT", w, e.scalar(5, dtype)), central, tail), x)
    infinite = e.scale(x, math.inf)
    return e.select(e.compare("EQ", e.unary(ops.AbsOp, x), one), infinite, result)


def normal_quantile(e: Emitter, p: SSAValue) -> SSAValue:
    """Return the x below which a part p of the standard normal distribution lies."""
    centered = e.sub(e.scale(p, 2.0), e.scalar(1, dtype_of(p)))
    return e.scale(erfinv(e, centered), math.sqrt(2.0))


# Lanczos 1964, "A precision approximation of the gamma function", with g = 7 and the coefficients of Godfrey:
# gamma(z + 1) = sqrt(2 pi) * t**(z + 1/2) * exp(-t) * (c0 + sum ck / (z + k)) with t = z + g + 1/2.
_G = 7.0
_COEFFICIENTS = (
    0.99999999999980993227684700473478,
    676.520368121885098567009190444019,
    -1259.13921672240287047156078755283,
    771.3234287776530788486528258894,
    -176.61502916214059906584551354,
    12.507343278686904814458936853,
    -0.13857109526572011689554707,
    9.984369578019570859563e-6,
    1.50563273514931155834e-7,
)

# Trigamma is computed this far to the right, where its series in 1/x has all digits of float32.
_SHIFT = 6

# Abramowitz and Stegun 6.4.12: trigamma(x) ~ 1/x + 1/(2 x**2) + sum of B_2k / x**(2k + 1).
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30)


def _reflect(e: Emitter, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Return whether x < 1/2, and the z >= -1/2 whose function at z + 1 gives the function at x."""
    dtype = dtype_of(x)
    is_left = e.compare("LT", x, e.scalar(0.5, dtype))
    return is_left, e.select(is_left, e.unary(ops.NegOp, x), e.sub(x, e.scalar(1, dtype)))


def _series(e: Emitter, z: SSAValue) -> tuple[SSAValue, SSAValue]:
    """`c0 + sum ck / (z + k)` and its derivative."""
    dtype = dtype_of(z)
    total, slope = e.like(_COEFFICIENTS[0], z), e.like(0, z)
    for k, coefficient in enumerate(_COEFFICIENTS[1:], 1):
        place = e.add(z, e.scalar(k, dtype))
        term = e.div(e.scalar(coefficient, dtype), place)
        total, slope = e.add(total, term), e.sub(slope, e.div(term, place))
    return total, slope


def _log_place(e: Emitter, z: SSAValue) -> tuple[SSAValue, SSAValue]:
    """`t = z + g + 1/2` and its logarithm, which keeps its digits where z is near 0."""
    dtype = dtype_of(z)
    half = _G + 0.5
    ratio = e.unary(ops.Log1pOp, e.div(z, e.scalar(half, dtype)))
    return e.add(z, e.scalar(half, dtype)), e.add(ratio, e.scalar(math.log(half), dtype))


def _rest(e: Emitter, x: SSAValue) -> SSAValue:
    """Return the distance of x from the nearest integer; tan(pi x) is tan of pi times it, sin up to sign."""
    return e.sub(x, e.unary(ops.RoundOp, x))


def lgamma(e: Emitter, x: SSAValue) -> SSAValue:
    """Log |gamma(x)|; infinite at 0 and the negative integers."""
    dtype = dtype_of(x)
    is_left, z = _reflect(e, x)
    t, log_t = _log_place(e, z)
    # (z + 1/2) log t - t, as a product: of large numbers the two would cancel
    power = e.mul(e.sub(e.add(z, e.scalar(0.5, dtype)), e.div(t, log_t)), log_t)
    series = e.unary(ops.LogOp, _series(e, z)[0])
    right = e.add(e.add(power, series), e.scalar(0.5 * math.log(2 * math.pi), dtype))
    # gamma(x) gamma(1 - x) = pi / sin(pi x)
    sine = e.unary(ops.AbsOp, e.unary(ops.SinOp, e.scale(_rest(e, x), math.pi)))
    log_sine = e.unary(ops.LogOp, sine)
    is_pole = e.compare("EQ", sine, e.scalar(0, dtype))
    left = e.sub(e.scalar(math.log(math.pi), dtype), e.add(log_sine, right))
    left = e.select(is_pole, e.unary(ops.NegOp, log_sine), left)
    infinite = e.compare("EQ", e.unary(ops.AbsOp, x), e.scalar(math.inf, dtype))
    return e.select(infinite, e.like(math.inf, x), e.select(is_left, left, right))


def digamma(e: Emitter, x: SSAValue) -> SSAValue:
    """Return the derivative of log gamma; NaN at the negative integers, where it has poles."""
    dtype = dtype_of(x)
    is_left, z = _reflect(e, x)
    t, log_t = _log_place(e, z)
    total, slope = _series(e, z)
    right = e.sub(e.add(log_t, e.div(slope, total)), e.div(e.scalar(_G, dtype), t))
    # digamma(1 - x) - digamma(x) = pi / tan(pi x)
    angle = e.scale(_rest(e, x), math.pi)
    cotangent = e.div(e.unary(ops.CosOp, angle), e.unary(ops.SinOp, angle))
    left = e.sub(right, e.scale(cotangent, math.pi))
    is_integer = e.compare("EQ", x, e.unary(ops.RoundOp, x))
    is_pole = e.binary(ops.AndOp, is_integer, e.compare("LT", x, e.scalar(0, dtype)))
    return e.select(is_pole, e.like(math.nan, x), e.select(is_left, left, right))


def trigamma(e: Emitter, x: SSAValue) -> SSAValue:
    """Return the second derivative of log gamma."""
    dtype = dtype_of(x)
    one = e.scalar(1, dtype)
    is_left = e.compare("LT", x, e.scalar(0.5, dtype))
    y = e.select(is_left, e.sub(one, x), x)
    # trigamma(y) = 1/y**2 + trigamma(y + 1)
    total = e.like(0, x)
    for k in range(_SHIFT):
        place = e.add(y, e.scalar(k, dtype))
        total = e.add(total, e.div(one, e.mul(place, place)))
    inverse = e.div(one, e.add(y, e.scalar(_SHIFT, dtype)))
    square = e.mul(inverse, inverse)
    series = e.like(0, x)
    for number in reversed(_BERNOULLI):
        series = e.mul(e.add(series, e.scalar(number, dtype)), square)
    tail = e.add(e.mul(inverse, e.add(series, one)), e.scale(square, 0.5))
    right = e.add(total, tail)
    # trigamma(1 - x) + trigamma(x) = (pi / sin(pi x))**2
    wave = e.div(e.scalar(math.pi, dtype), e.unary(ops.SinOp, e.scale(_rest(e, x), math.pi)))
    return e.select(is_left, e.sub(e.mul(wave, wave), right), right)
