"""Complex numbers, as pairs of real numbers: arithmetic, functions, products, views, Fourier transforms.

`TABLE` has the operations that read or make complex tensors, under the names that their real siblings have in
other files. What only moves elements, or is linear in them, is imported once for each part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.graph import COMPLEX, Tensor
from cgc.importers.aten.handlers import elementwise, indexing, reduction, shape
from cgc.importers.aten.handlers.linear import product
from cgc.importers.aten.node import Complex, Handler, NodeContext, Result, Table, Value
from cgc.importers.decompositions import special
from cgc.importers.emit import Emitter

Function: TypeAlias = Callable[[Emitter, Complex], "Complex | SSAValue"]

# Arguments that both parts read; other real arguments have no imaginary part.
_SHARED = frozenset({"mask", "condition", "index", "indices"})
# Arguments that may be numbers which are added to elements or put among them.
_NUMBERS = frozenset({"self", "other", "value", "fill_value"})


def _by_parts(handler: Handler) -> Handler:
    """Return the rule of a real operation for the real parts, and then for the imaginary parts."""

    def handle_parts(node: NodeContext) -> Result:
        real, imaginary = (_as_list(handler(_part(node, number))) for number in (0, 1))
        return [
            Complex(re, im) if tensor is not None and tensor.dtype == COMPLEX else re
            for tensor, re, im in zip(node.node.results, real, imaginary, strict=True)
        ]

    return handle_parts


def _as_list(found: Result) -> Sequence[Any]:
    return found if isinstance(found, tuple | list) else (found,)


def _part(node: NodeContext, number: int) -> NodeContext:
    """Return the same operation on the real parts of all arguments (0), or on the imaginary parts (1)."""
    given = node.node.arguments
    shared = {tensor.id for name in _SHARED & given.keys() for tensor in _tensors(given[name])}
    whole = {tensor.id: tensor for tensor in node.node.tensors()}

    def part_of(tensor: Tensor) -> Value:
        value = node.value_of(whole[tensor.id])
        if isinstance(value, Complex):
            return (value.re, value.im)[number]
        if number == 0 or tensor.id in shared:
            return value
        return node.emit.full(0, tensor.shape, tensor.dtype)

    def argument(name: str, value: Any) -> Any:
        if name in _NUMBERS and isinstance(value, int | float | complex):
            return complex(value).imag if number else complex(value).real
        return _in_reals(value)

    arguments = {name: argument(name, value) for name, value in given.items()}
    results = tuple(_in_reals(tensor) for tensor in node.node.results)
    return replace(node, node=replace(node.node, arguments=arguments, results=results), value_of=part_of)


def _tensors(argument: Any) -> list[Tensor]:
    items = argument if isinstance(argument, list | tuple) else (argument,)
    return [item for item in items if isinstance(item, Tensor)]


def _in_reals(argument: Any) -> Any:
    """Return complex tensors as tensors of one of their parts."""
    if isinstance(argument, list | tuple):
        return [_in_reals(item) for item in argument]
    if argument == COMPLEX:
        return "float32"
    is_complex = isinstance(argument, Tensor) and argument.dtype == COMPLEX
    return replace(argument, dtype="float32") if is_complex else argument


def _pair(node: NodeContext, name: str = "self") -> tuple[SSAValue, SSAValue | None]:
    """Return real and imaginary part of a tensor or number; None as imaginary part of a real one."""
    e, argument = node.emit, node.node.arguments[name]
    if not isinstance(argument, Tensor):
        number = complex(argument)
        return e.scalar(number.real, "float32"), e.scalar(number.imag, "float32") if number.imag else None
    value = node.raw(name)
    if isinstance(value, Complex):
        return value.re, value.im
    return node.value(argument, "float32"), None


def _whole(node: NodeContext, name: str = "self") -> Complex:
    """Return a tensor or number, with zeros as imaginary part of a real one."""
    re, im = _pair(node, name)
    return Complex(re, node.emit.like(0, re) if im is None else im)


def _broadcast(node: NodeContext, re: SSAValue, im: SSAValue) -> Complex:
    return Complex(node.emit.broadcast(re, node.shape), node.emit.broadcast(im, node.shape))


def _mul(node: NodeContext) -> Complex:
    e, (a, b), (c, d) = node.emit, _pair(node), _pair(node, "other")
    if b is None or d is None:
        re, im, factor = (a, b, c) if d is None else (c, d, a)
        zero = e.like(0, re)
        return _broadcast(node, e.mul(re, factor), e.mul(zero if im is None else im, factor))
    found = product_of(e, Complex(a, b), Complex(c, d))
    return _broadcast(node, found.re, found.im)


def product_of(e: Emitter, x: Complex, y: Complex) -> Complex:
    """`x * y`, broadcast."""
    re = e.sub(e.mul(x.re, y.re), e.mul(x.im, y.im))
    return Complex(re, e.add(e.mul(x.re, y.im), e.mul(x.im, y.re)))


def _div(node: NodeContext) -> Complex:
    e, (c, d) = node.emit, _pair(node, "other")
    x = _whole(node)
    if d is None:
        return _broadcast(node, e.div(x.re, c), e.div(x.im, c))
    found = quotient(e, x, Complex(c, d))
    return _broadcast(node, found.re, found.im)


def quotient(e: Emitter, x: Complex, y: Complex) -> Complex:
    """`x / y`, broadcast; y is scaled by its larger part, so that its square is no overflow."""
    larger = e.binary(ops.MaxOp, e.unary(ops.AbsOp, y.re), e.unary(ops.AbsOp, y.im))
    c, d = e.div(y.re, larger), e.div(y.im, larger)
    divisor = e.add(e.mul(y.re, c), e.mul(y.im, d))
    re = e.add(e.mul(x.re, c), e.mul(x.im, d))
    im = e.sub(e.mul(x.im, c), e.mul(x.re, d))
    return Complex(e.div(re, divisor), e.div(im, divisor))


def _pow(node: NodeContext) -> Complex:
    """Raise to a power: small whole exponents are products, others exponentials of a logarithm."""
    e, exponent = node.emit, node.arg("exponent")
    if exponent in (1, 2, 3):
        found = x = _whole(node)
        for _ in range(int(exponent) - 1):
            found = product_of(e, found, x)
        return found
    if exponent == 0.5:
        return _sqrt(e, _whole(node))
    if exponent == -1:
        return _reciprocal(e, _whole(node))
    x, power = _whole(node), _whole(node, "exponent")
    found = _exp(e, product_of(e, power, _log(e, x)))
    is_zero = e.binary(ops.AndOp, *(e.compare("EQ", part, e.like(0, part)) for part in (x.re, x.im)))
    re, im = (e.select(is_zero, e.like(0, part), part) for part in (found.re, found.im))
    return _broadcast(node, re, im)


def _exp(e: Emitter, x: Complex) -> Complex:
    size = e.unary(ops.ExpOp, x.re)
    return Complex(e.mul(size, e.unary(ops.CosOp, x.im)), e.mul(size, e.unary(ops.SinOp, x.im)))


def _abs(e: Emitter, x: Complex) -> SSAValue:
    return elementwise.hypotenuse(e, x.re, x.im)


def _angle(e: Emitter, x: Complex) -> SSAValue:
    return e.binary(ops.Atan2Op, x.im, x.re)


def _log(e: Emitter, x: Complex) -> Complex:
    return Complex(e.unary(ops.LogOp, _abs(e, x)), _angle(e, x))


def _sqrt(e: Emitter, x: Complex) -> Complex:
    """Return the root with a real part of at least 0; its larger part is computed without a difference."""
    zero = e.like(0, x.re)
    larger = e.unary(ops.SqrtOp, e.scale(e.add(e.unary(ops.AbsOp, x.re), _abs(e, x)), 0.5))
    is_zero = e.compare("EQ", larger, zero)
    smaller = e.div(e.scale(x.im, 0.5), e.select(is_zero, e.like(1, larger), larger))
    right = e.compare("GE", x.re, zero)
    upper = e.select(e.compare("LT", x.im, zero), e.unary(ops.NegOp, larger), larger)
    return Complex(
        e.select(right, larger, e.unary(ops.AbsOp, smaller)),
        e.select(right, smaller, upper),
    )


def _reciprocal(e: Emitter, x: Complex) -> Complex:
    return quotient(e, Complex(e.like(1, x.re), e.like(0, x.re)), x)


def _rsqrt(e: Emitter, x: Complex) -> Complex:
    return _reciprocal(e, _sqrt(e, x))


def _sgn(e: Emitter, x: Complex) -> Complex:
    """Return the number of size 1 with the same direction; 0 for 0."""
    size = _abs(e, x)
    divisor = e.select(e.compare("EQ", size, e.like(0, size)), e.like(1, size), size)
    return Complex(e.div(x.re, divisor), e.div(x.im, divisor))


def _conj(e: Emitter, x: Complex) -> Complex:
    return Complex(x.re, e.unary(ops.NegOp, x.im))


def _sinh(e: Emitter, x: Complex) -> Complex:
    re = e.mul(special.sinh(e, x.re), e.unary(ops.CosOp, x.im))
    return Complex(re, e.mul(special.cosh(e, x.re), e.unary(ops.SinOp, x.im)))


def _cosh(e: Emitter, x: Complex) -> Complex:
    re = e.mul(special.cosh(e, x.re), e.unary(ops.CosOp, x.im))
    return Complex(re, e.mul(special.sinh(e, x.re), e.unary(ops.SinOp, x.im)))


def _tanh(e: Emitter, x: Complex) -> Complex:
    """Return the quotient `(tanh(a) + i tan(b)) / (1 + i tanh(a) tan(b))`, without the poles of tan."""
    tanh, sin, cos = e.unary(ops.TanhOp, x.re), e.unary(ops.SinOp, x.im), e.unary(ops.CosOp, x.im)
    square = e.mul(tanh, tanh)
    divisor = e.add(e.mul(cos, cos), e.mul(square, e.mul(sin, sin)))
    im = e.mul(e.mul(sin, cos), e.sub(e.like(1, square), square))
    return Complex(e.div(tanh, divisor), e.div(im, divisor))


def _rotate(function: Callable[[Emitter, Complex], Complex]) -> Function:
    """`-i f(i x)`: sin and tan of sinh and tanh."""

    def evaluate(e: Emitter, x: Complex) -> Complex:
        found = function(e, Complex(e.unary(ops.NegOp, x.im), x.re))
        return Complex(found.im, e.unary(ops.NegOp, found.re))

    return evaluate


def _cos(e: Emitter, x: Complex) -> Complex:
    return _cosh(e, Complex(e.unary(ops.NegOp, x.im), x.re))


def _sigmoid(e: Emitter, x: Complex) -> Complex:
    power = _exp(e, Complex(e.unary(ops.NegOp, x.re), e.unary(ops.NegOp, x.im)))
    return _reciprocal(e, Complex(e.add(power.re, e.like(1, power.re)), power.im))


def _compute(function: Function) -> Handler:
    return lambda node: function(node.emit, _whole(node))


def _both(
    kind: type[ops.AndOp] | type[ops.OrOp], of_part: Callable[[Emitter, SSAValue], SSAValue]
) -> Function:
    """Return a predicate that holds if it holds for both parts, or for one of them."""
    return lambda e, x: e.binary(kind, of_part(e, x.re), of_part(e, x.im))


def _compare(direction: str) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e, x, y = node.emit, _whole(node), _whole(node, "other")
        parts = (e.compare(direction, x.re, y.re), e.compare(direction, x.im, y.im))
        found = e.binary(ops.AndOp if direction == "EQ" else ops.OrOp, *parts)
        return e.broadcast(found, node.shape)

    return handler


def _complex(node: NodeContext) -> Complex:
    return _broadcast(node, node.x("real"), node.x("imag"))


def _polar(node: NodeContext) -> Complex:
    e, size, angle = node.emit, node.x("abs"), node.x("angle")
    return _broadcast(node, e.mul(size, e.unary(ops.CosOp, angle)), e.mul(size, e.unary(ops.SinOp, angle)))


def _view_as_real(node: NodeContext) -> SSAValue:
    return _whole(node).join_parts(node.emit)


def _view_as_complex(node: NodeContext) -> Complex:
    return Complex.split(node.emit, node.x())


def _to_copy(node: NodeContext) -> Value:
    """Convert the type; a real type drops the imaginary part."""
    x = _whole(node)
    return x if node.dtype == COMPLEX else node.emit.cast(x.re, node.dtype)


def _ones(node: NodeContext) -> Complex:
    return Complex(*(node.emit.full(value, node.shape, "float32") for value in (1, 0)))


def _matrix_product(e: Emitter, x: Complex, y: Complex) -> Complex:
    re = e.sub(product(e, x.re, y.re), product(e, x.im, y.im))
    return Complex(re, e.add(product(e, x.re, y.im), product(e, x.im, y.re)))


def _mm(second: str) -> Handler:
    return lambda node: _matrix_product(node.emit, _whole(node), _whole(node, second))


def _addmm(first: str, second: str) -> Handler:
    """`beta * self + alpha * first @ second`."""

    def handler(node: NodeContext) -> Complex:
        e = node.emit
        found = _matrix_product(e, _whole(node, first), _whole(node, second))
        for name, x in (("alpha", found), ("beta", _whole(node))):
            number = complex(node.arg(name, 1))
            factor = Complex(e.scalar(number.real, "float32"), e.scalar(number.imag, "float32"))
            scaled = x if number == 1 else product_of(e, x, factor)
            found = (
                scaled if name == "alpha" else Complex(e.add(found.re, scaled.re), e.add(found.im, scaled.im))
            )
        return found

    return handler


def _mv(node: NodeContext) -> Complex:
    e, x, vector = node.emit, _whole(node), _whole(node, "vec")
    column = Complex(*(e.reshape(part, (-1, 1)) for part in (vector.re, vector.im)))
    found = _matrix_product(e, x, column)
    return Complex(e.reshape(found.re, node.shape), e.reshape(found.im, node.shape))


def _dot(conjugate: bool) -> Handler:
    def handler(node: NodeContext) -> Complex:
        e, x = node.emit, _whole(node)
        name = "other" if "other" in node.node.arguments else "tensor"
        found = product_of(e, _conj(e, x) if conjugate else x, _whole(node, name))
        return Complex(e.reduce("ADD", found.re, (0,)), e.reduce("ADD", found.im, (0,)))

    return handler


def _of_size(handler: Handler) -> Handler:
    """Return the rule of a real operation for absolute values."""

    def handle_size(node: NodeContext) -> Result:
        size = _abs(node.emit, _whole(node))
        arguments = {name: _in_reals(value) for name, value in node.node.arguments.items()}
        return handler(replace(node, node=replace(node.node, arguments=arguments), value_of=lambda _: size))

    return handle_size


def _prod(node: NodeContext) -> Complex:
    e, x = node.emit, _whole(node)
    for axis in node.axes():
        x = _product_along(e, x, axis)
    return Complex(e.reshape(x.re, node.shape), e.reshape(x.im, node.shape))


def _product_along(e: Emitter, x: Complex, axis: int) -> Complex:
    """Return the product along an axis, which stays: halves are multiplied until one element is left."""
    if not shape_of(x.re)[axis]:
        shape_left = [1 if i == axis else size for i, size in enumerate(shape_of(x.re))]
        return Complex(*(e.full(value, tuple(shape_left), "float32") for value in (1, 0)))
    while (size := shape_of(x.re)[axis]) > 1:
        half = (size + 1) // 2
        rest = _pad_ones(e, _cut(e, x, axis, half, size), axis, 0, 2 * half - size)
        x = product_of(e, _cut(e, x, axis, 0, half), rest)
    return x


def _cumprod(node: NodeContext) -> Complex:
    """Multiply each element by those before it, in steps over 1, 2, 4, ... elements."""
    e, x = node.emit, _whole(node)
    axis, step = node.axis(), 1
    while node.shape and step < node.shape[axis]:
        before = _cut(e, x, axis, 0, node.shape[axis] - step)
        x, step = product_of(e, x, _pad_ones(e, before, axis, step, 0)), 2 * step
    return x


def _cut(e: Emitter, x: Complex, axis: int, begin: int, end: int) -> Complex:
    sizes = shape_of(x.re)
    starts = [begin if i == axis else 0 for i in range(len(sizes))]
    ends = [end if i == axis else size for i, size in enumerate(sizes)]
    return Complex(*(e.slice(part, starts, ends, [1] * len(sizes)) for part in (x.re, x.im)))


def _pad_ones(e: Emitter, x: Complex, axis: int, low: int, high: int) -> Complex:
    """Pad with as many ones before and after along an axis."""
    rank = len(shape_of(x.re))
    before, after = ([number if i == axis else 0 for i in range(rank)] for number in (low, high))
    one, zero = e.scalar(1, "float32"), e.scalar(0, "float32")
    return Complex(e.pad(x.re, before, after, one), e.pad(x.im, before, after, zero))


def _variance(node: NodeContext) -> tuple[SSAValue, Complex]:
    """Return the sum of the variances of both parts, and the mean."""
    e, x, correction = node.emit, _whole(node), node.arg("correction")
    parts = [
        reduction.variance(e, part, node.axes(), 1 if correction is None else correction)
        for part in (x.re, x.im)
    ]
    total = e.reshape(e.add(parts[0][0], parts[1][0]), node.shape)
    return total, Complex(*(e.reshape(mean, node.shape) for _, mean in parts))


def _var(node: NodeContext) -> SSAValue:
    return _variance(node)[0]


def _std(node: NodeContext) -> SSAValue:
    return node.emit.unary(ops.SqrtOp, _variance(node)[0])


# ATen's numbers of `normalization`: the divisor of the sums.
_NONE, _BY_ROOT, _BY_COUNT = range(3)


def _factor(node: NodeContext, count: int, inverse: bool) -> float:
    """Return the remaining factor; inverse transforms of CIRH divide by the count."""
    wanted = {_NONE: 1.0, _BY_ROOT: 1 / math.sqrt(count), _BY_COUNT: 1 / count}[node.arg("normalization")]
    return wanted * count if inverse else wanted


def _scale(e: Emitter, x: SSAValue, factor: float) -> SSAValue:
    return x if factor == 1 else e.scale(x, factor)


def _along(
    e: Emitter, parts: Sequence[SSAValue], axis: int, transform: Callable[..., Sequence[SSAValue]]
) -> list[SSAValue]:
    """Return a transform of the last axis, of another one."""
    order = list(range(len(shape_of(parts[0]))))
    order[axis], order[-1] = order[-1], order[axis]
    return [e.transpose(x, order) for x in transform(*(e.transpose(part, order) for part in parts))]


def _complex_along(e: Emitter, x: Complex, axes: Sequence[int], inverse: bool) -> Complex:
    """Return the transform of a pair over axes, one axis after the other."""
    for axis in axes:
        re, im = _along(e, (x.re, x.im), axis, lambda re, im: e.emit_all(ops.FftOp(re, im, inverse)))
        x = Complex(re, im)
    return x


def _axes(node: NodeContext) -> list[int]:
    rank = len(node.node.arguments["self"].shape)
    return [node.positive(axis, rank) for axis in node.arg("dim")]


def _c2c(node: NodeContext) -> Complex:
    e, axes, inverse = node.emit, _axes(node), not node.arg("forward")
    x = Complex.of(e, node.raw("self"))
    factor = _factor(node, math.prod(node.shape[axis] for axis in axes), inverse)
    found = _complex_along(e, x, axes, inverse)
    return Complex(_scale(e, found.re, factor), _scale(e, found.im, factor))


def _r2c(node: NodeContext) -> Complex:
    """Transform real numbers; `onesided` leaves out the conjugate half of the last axis."""
    e, x, axes = node.emit, node.x(), _axes(node)
    factor = _factor(node, math.prod(shape_of(x)[axis] for axis in axes), inverse=False)
    x = _scale(e, x, factor)
    if not node.arg("onesided"):
        return _complex_along(e, Complex(x, e.like(0, x)), axes, inverse=False)
    *others, last = axes
    re, im = _along(e, (x,), last, lambda part: e.emit_all(ops.RfftOp(part)))
    return _complex_along(e, Complex(re, im), others, inverse=False)


def _c2r(node: NodeContext) -> SSAValue:
    """Return real numbers from the half of a transform that `onesided` leaves."""
    e, axes, length = node.emit, _axes(node), node.arg("last_dim_size")
    *others, last = axes
    x = _complex_along(e, Complex.of(e, node.raw("self")), others, inverse=True)
    half = list(shape_of(x.re))
    half[last] = length // 2 + 1
    parts = [e.slice(part, [0] * len(half), half, [1] * len(half)) for part in (x.re, x.im)]
    (found,) = _along(e, parts, last, lambda re, im: e.emit_all(ops.IrfftOp(re, im, length)))
    return _scale(e, found, _factor(node, math.prod(node.shape[axis] for axis in axes), inverse=True))


_MOVED = {
    **{
        name: rule
        for name, rule in indexing.TABLE.items()
        if not any(word in name for word in ("bucketize", "search", "reduce"))
    },
    **{name: rule for name, rule in shape.TABLE.items() if "ones" not in name and "linspace" not in name},
    **{
        f"aten.{name}": elementwise.TABLE[f"aten.{name}"]
        for name in (
            *(f"{name}.{kind}" for name in ("add", "sub", "rsub") for kind in ("Tensor", "Scalar")),
            *(f"where.{kind}" for kind in ("self", "ScalarOther", "ScalarSelf", "Scalar")),
            *(f"{name}.default" for name in ("neg", "copy", "clone", "contiguous", "alias")),
            *(f"masked_fill.{kind}" for kind in ("Scalar", "Tensor")),
        )
    },
    **{
        f"aten.{name}": reduction.TABLE[f"aten.{name}"]
        for name in ("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default")
    },
}

_FUNCTIONS: dict[str, Function] = {
    "abs": _abs,
    "angle": _angle,
    "_conj": _conj,
    "_conj_physical": _conj,
    "conj_physical": _conj,
    "cos": _cos,
    "cosh": _cosh,
    "exp": _exp,
    "isfinite": _both(ops.AndOp, lambda e, x: e.unary(ops.IsFiniteOp, x)),
    "isnan": _both(ops.OrOp, special.is_nan),
    "log": _log,
    "reciprocal": _reciprocal,
    "rsqrt": _rsqrt,
    "sgn": _sgn,
    "sigmoid": _sigmoid,
    "sin": _rotate(_sinh),
    "sinh": _sinh,
    "sqrt": _sqrt,
    "tan": _rotate(_tanh),
    "tanh": _tanh,
}


TABLE: Table = {
    **{name: _by_parts(rule) for name, rule in _MOVED.items()},
    **{f"aten.{name}.default": _compute(function) for name, function in _FUNCTIONS.items()},
    **{f"aten.{name}.default": _ones for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.mul.{kind}": _mul for kind in ("Tensor", "Scalar")},
    **{f"aten.div.{kind}": _div for kind in ("Tensor", "Scalar")},
    **{f"aten.pow.{kind}": _pow for kind in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")},
    **{f"aten.eq.{kind}": _compare("EQ") for kind in ("Tensor", "Scalar")},
    **{f"aten.ne.{kind}": _compare("NE") for kind in ("Tensor", "Scalar")},
    "aten.complex.default": _complex,
    "aten.polar.default": _polar,
    "aten.view_as_real.default": _view_as_real,
    "aten.view_as_complex.default": _view_as_complex,
    "aten._to_copy.default": _to_copy,
    "aten.prod.default": _prod,
    "aten.prod.dim_int": _prod,
    "aten.cumprod.default": _cumprod,
    "aten.var.correction": _var,
    "aten.std.correction": _std,
    "aten.var_mean.correction": _variance,
    "aten.mm.default": _mm("mat2"),
    "aten.bmm.default": _mm("mat2"),
    "aten.addmm.default": _addmm("mat1", "mat2"),
    "aten.baddbmm.default": _addmm("batch1", "batch2"),
    "aten.mv.default": _mv,
    "aten.dot.default": _dot(conjugate=False),
    "aten.vdot.default": _dot(conjugate=True),
    "aten.linalg_vector_norm.default": _of_size(reduction.TABLE["aten.linalg_vector_norm.default"]),
    "aten._fft_c2c.default": _c2c,
    "aten._fft_r2c.default": _r2c,
    "aten._fft_c2r.default": _c2r,
}
