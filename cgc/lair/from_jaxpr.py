"""Loop nests from a jaxpr: what an op computes is defined by its JAX lowering only.

Primitives that treat every element by itself, or only move elements, become *expressions*: they are evaluated
in the body of the nest that needs them. Reductions, scans, products and writes of a part are nests. The table
is closed: an op whose jaxpr contains any other primitive is no loop nest (`UnsupportedPrimitiveError`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from xdsl.ir import Block
from xdsl.ir.affine import AffineExpr, AffineMap

from cgc.lair.affine import affine_map, compose, dim, identity, partial, reshape_map
from cgc.lair.build import (
    FLOAT_NAMES,
    Array,
    Builder,
    Read,
    Scalar,
    affine_index,
    constant,
    extract,
    highest,
    loop_index,
    lowest,
    missing,
)
from cgc.lair.dialect import gives_every_loop

Shape: TypeAlias = tuple[int, ...]


class UnsupportedPrimitiveError(Exception):
    """A jaxpr contains a primitive that loop nests do not express."""


def build_nests(builder: Builder, jaxpr: ClosedJaxpr, arrays: Sequence[Array]) -> list[Array]:
    """Add the loop nests of a jaxpr to a function.

    Args:
        builder: Adds to the body of the function.
        jaxpr: What to compute.
        arrays: Its inputs.

    Returns:
        Its outputs.

    Raises:
        UnsupportedPrimitiveError: Loop nests do not express one of its primitives; ops that were added before
            are dead code.
    """
    inputs = [_View(array.shape, array.dtype, array, identity(array.rank)) for array in arrays]
    outputs = _Translation(builder).run(jaxpr.jaxpr, jaxpr.consts, inputs)
    return _materialize_together(builder, outputs)


def find_unsupported(jaxpr: ClosedJaxpr) -> str | None:
    """Return the name of a primitive that loop nests do not express, or None if there is none."""
    for eqn in jaxpr.jaxpr.eqns:
        name: str = eqn.primitive.name
        if (call := _called(eqn)) is not None:
            if eqn.params.get("name", "") not in _FUNCTIONS and (found := find_unsupported(call)):
                return found
        elif name not in _POINTWISE and name not in _MOVES and name not in _NESTS:
            return name
    if any(_uniform_value(np.asarray(value)) is None for value in jaxpr.consts):
        return "constant array"
    return None


# Expressions: an element as a function of its indices


@dataclass(frozen=True, eq=False)
class _Expression:
    shape: Shape
    dtype: str

    def operands_at(self, places: AffineMap) -> Iterable[tuple[_Expression, AffineMap]]:
        """Yield the elements of other expressions that the element at `places` is computed from."""
        return ()

    def evaluate(self, body: _Body, places: AffineMap) -> Scalar:
        """Compute the element at `places` in a body."""
        raise NotImplementedError


class _Body:
    """A loop body in the making.

    Attributes:
        block: The block of the body.
        elements: The elements that it has read, by array and place.
    """

    def __init__(self, block: Block, elements: Mapping[tuple[int, AffineMap], Scalar]) -> None:
        self.block = block
        self.elements = elements
        self._known: dict[tuple[int, AffineMap], Scalar] = {}

    def element(self, expression: _Expression, places: AffineMap) -> Scalar:
        """Return the element of an expression, computed once for each place."""
        key = (id(expression), places)
        if key not in self._known:
            self._known[key] = expression.evaluate(self, places)
        return self._known[key]


@dataclass(frozen=True, eq=False)
class _View(_Expression):
    """Elements of an array, at the places that a map gives for the indices."""

    array: Array
    map: AffineMap

    def evaluate(self, body: _Body, places: AffineMap) -> Scalar:
        return body.elements[id(self.array), compose(self.map, places)]


@dataclass(frozen=True, eq=False)
class _Moved(_Expression):
    """Elements of another expression, at the places that a map gives for the indices."""

    of: _Expression
    map: AffineMap

    def operands_at(self, places: AffineMap) -> Iterable[tuple[_Expression, AffineMap]]:
        yield self.of, compose(self.map, places)

    def evaluate(self, body: _Body, places: AffineMap) -> Scalar:
        return body.element(self.of, compose(self.map, places))


@dataclass(frozen=True, eq=False)
class _Constant(_Expression):
    number: float

    def evaluate(self, body: _Body, places: AffineMap) -> Scalar:
        return constant(body.block, self.number, self.dtype)


@dataclass(frozen=True, eq=False)
class _Index(_Expression):
    """The index along one dimension."""

    dimension: int

    def evaluate(self, body: _Body, places: AffineMap) -> Scalar:
        return affine_index(body.block, places.results[self.dimension]).to(self.dtype)


@dataclass(frozen=True, eq=False)
class _Pointwise(_Expression):
    """A scalar function of the elements of its operands; operands of size 1 are read at 0."""

    function: Callable[..., Scalar]
    operands: Sequence[_Expression]

    def operands_at(self, places: AffineMap) -> Iterable[tuple[_Expression, AffineMap]]:
        return ((operand, self._places_of(operand, places)) for operand in self.operands)

    def evaluate(self, body: _Body, places: AffineMap) -> Scalar:
        return self.function(*(body.element(x, self._places_of(x, places)) for x in self.operands))

    def _places_of(self, operand: _Expression, places: AffineMap) -> AffineMap:
        if operand.shape == self.shape:
            return places
        results = [
            0 if size == 1 else places.results[d] for d, size in enumerate(operand.shape)
        ]  # rank 0 has no place
        return affine_map(places.num_dims, results)


@dataclass(frozen=True, eq=False)
class _Gathered(_Expression):
    """Elements of an array at places that data decide.

    Attributes:
        array: What is read.
        index: For each dimension of the array the index from the data, if there is one.
        offset: For each dimension of the array the place within the slice.
        last: For each dimension of the array the largest valid index.
        fill: What an index out of range gives; None clips the index instead.
    """

    array: Array
    index: Sequence[_Expression | None]
    offset: AffineMap
    last: Sequence[int]
    fill: float | None

    def operands_at(self, places: AffineMap) -> Iterable[tuple[_Expression, AffineMap]]:
        return ((index, places) for index in self.index if index is not None)

    def evaluate(self, body: _Body, places: AffineMap) -> Scalar:
        in_range: Scalar | None = None
        offsets = compose(self.offset, places).results
        is_zero = [offset == AffineExpr.constant(0) for offset in offsets]
        found = [
            affine_index(body.block, offset) if index is None or not zero else None
            for index, offset, zero in zip(self.index, offsets, is_zero, strict=True)
        ]
        for axis, (index, last) in enumerate(zip(self.index, self.last, strict=True)):
            if index is None:
                continue
            number = body.element(index, places)
            place = number.max(0).min(last).to("index")
            within = found[axis]
            found[axis] = place if within is None else place + within
            fits = number.compare("GE", 0) & number.compare("LE", last)
            in_range = fits if in_range is None else in_range & fits
        element = extract(body.block, self.array, [place for place in found if place is not None])
        if in_range is None or self.fill is None:
            return element
        return in_range.select(element, self.fill)


def _materialize(builder: Builder, expression: _Expression) -> Array:
    """Return an array with the elements of an expression, computed by a nest unless it is one."""
    if isinstance(expression, _Constant):
        return builder.fill(expression.shape, expression.dtype, expression.number)
    if isinstance(expression, _View):
        array = expression.array
        if array.shape == expression.shape and expression.map == identity(array.rank):
            return array
    return _nest(builder, [expression])[0]


def _materialize_together(builder: Builder, expressions: Sequence[_Expression]) -> list[Array]:
    """Materialize the outputs of an op: those of one shape in one nest."""
    arrays: dict[int, Array] = {}
    groups: dict[Shape, list[int]] = {}
    for number, expression in enumerate(expressions):
        if isinstance(expression, _Pointwise):
            groups.setdefault(expression.shape, []).append(number)
        else:
            arrays[number] = _materialize(builder, expression)
    for numbers in groups.values():
        made = _nest(builder, [expressions[number] for number in numbers])
        arrays.update(zip(numbers, made, strict=True))
    return [arrays[number] for number in range(len(expressions))]


def _nest(builder: Builder, expressions: Sequence[_Expression]) -> list[Array]:
    shape = expressions[0].shape
    writes = [Read(builder.empty(shape, e.dtype), identity(len(shape))) for e in expressions]
    return _loops(builder, shape, (), expressions, writes, lambda elements, _old: elements)


def _loops(
    builder: Builder,
    extents: Shape,
    carried: Sequence[int],
    expressions: Sequence[_Expression],
    writes: Sequence[Read],
    combine: Callable[[list[Scalar], list[Scalar]], Sequence[Scalar]],
    places: Sequence[AffineMap] | None = None,
) -> list[Array]:
    """Add a nest.

    Args:
        builder: Adds to the body of the function.
        extents: Of the loops.
        carried: Loops that carry a running value.
        expressions: Evaluated in every iteration.
        writes: Initial values of the results, and where an iteration writes.
        combine: Makes the results of an iteration of its elements and the old values of the results.
        places: Where each expression is evaluated; the iteration itself when None.
    """
    if places is None:
        places = [identity(len(extents))] * len(expressions)
    reads: dict[tuple[int, AffineMap], Read] = {}
    seen: set[tuple[int, AffineMap]] = set()
    pending = list(zip(expressions, places, strict=True))[::-1]
    while pending:
        expression, where = pending.pop()
        if (id(expression), where) in seen:
            continue
        seen.add((id(expression), where))
        if isinstance(expression, _View):
            mapping = compose(expression.map, where)
            read = Read(expression.array, partial(mapping, extents, expression.array.shape))
            reads.setdefault((id(expression.array), mapping), read)
        pending.extend([*expression.operands_at(where)][::-1])

    if not gives_every_loop([*(r.map for r in reads.values()), *(w.map for w in writes)], len(extents)):
        # The extent of a loop shows only where an indexing map has the loop by itself.
        arrays = [_view(_nest(builder, [expression])[0]) for expression in expressions]
        return _loops(builder, extents, carried, arrays, writes, combine, places)

    def body(*values: Scalar) -> Sequence[Scalar]:
        elements = dict(zip(reads, values, strict=False))
        made = _Body(values[-1].block, elements)
        found = [made.element(e, where) for e, where in zip(expressions, places, strict=True)]
        return combine(found, list(values[len(reads) :]))

    return builder.loops(len(extents), carried, list(reads.values()), writes, body)


# From primitives to expressions and nests

_Operands: TypeAlias = Sequence[_Expression]


class _Translation:
    """Translates one jaxpr; calls inside of it are inlined."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def run(self, jaxpr: Jaxpr, constants: Sequence[Any], inputs: _Operands) -> list[_Expression]:
        """Return the outputs of a jaxpr."""
        known: dict[Any, _Expression] = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= {v: _constant(value) for v, value in zip(jaxpr.constvars, constants, strict=True)}
        uses = Counter(v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal))
        uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))

        def read(v: Any) -> _Expression:
            return _constant(v.val, v.aval) if isinstance(v, Literal) else known[v]

        for eqn in jaxpr.eqns:
            operands = [read(v) for v in eqn.invars]
            if eqn.primitive.name in _NESTS and not isinstance(eqn.invars[0], Literal):
                # A value with further readers is computed once, not in the nest and in each of them again.
                first = eqn.invars[0]
                if uses[first] > 1 and isinstance(known[first], _Pointwise):
                    known[first] = operands[0] = _view(_materialize(self.builder, known[first]))
            known.update(zip(eqn.outvars, self._translate(eqn, operands), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _translate(self, eqn: JaxprEqn, operands: _Operands) -> Sequence[_Expression]:
        name = eqn.primitive.name
        if (call := _called(eqn)) is not None:
            function = _FUNCTIONS.get(eqn.params.get("name", ""))
            if function is not None:
                return [_pointwise(eqn, function, self._compute_once(eqn, operands))]
            return self.run(call.jaxpr, call.consts, operands)
        if name == "max" and isinstance(operands[0], _Constant) and operands[0].number == -math.inf:
            return operands[1:]  # jax.numpy.max has it, for the maximum of no elements
        if name in _POINTWISE:
            return [_pointwise(eqn, _POINTWISE[name], self._compute_once(eqn, operands))]
        if name in _MOVES:
            return _MOVES[name](eqn, *self._compute_once(eqn, operands))
        if name in _NESTS:
            return [_view(_NESTS[name](self.builder, eqn, *operands))]
        raise UnsupportedPrimitiveError(name)

    def _compute_once(self, eqn: JaxprEqn, operands: _Operands) -> list[_Expression]:
        """Materialize operands that are read for several elements of the result, such as sums of rows.

        Scalars are not: a body computes them again, which needs no further nest.
        """
        elements = math.prod(_result(eqn)[0])
        return [
            _view(_materialize(self.builder, x))
            if x.shape and math.prod(x.shape) < elements and isinstance(x, _Pointwise | _Moved)
            else x
            for x in operands
        ]


def _called(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return the function that an equation calls, if it is a call."""
    if eqn.primitive.name not in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"):
        return None
    found: Any = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr") or eqn.params.get("fun_jaxpr")
    return found if isinstance(found, ClosedJaxpr) else ClosedJaxpr(found, ())


def _constant(value: Any, aval: Any = None) -> _Expression:
    array = np.asarray(value) if aval is None else np.asarray(value, aval.dtype)
    number = _uniform_value(array)
    if number is None:
        raise UnsupportedPrimitiveError("constant array")
    return _Constant(array.shape, array.dtype.name, number)


def _uniform_value(array: np.ndarray) -> float | None:
    """Return the value of all elements of an array, if they are equal."""
    if not array.size:
        return None
    number: float = array.flat[0].item()
    same = array == array.flat[0] if number == number else array != array  # NaN differs from itself
    return number if bool(np.all(same)) else None


def _view(array: Array) -> _View:
    return _View(array.shape, array.dtype, array, identity(array.rank))


def _pointwise(eqn: JaxprEqn, function: Callable[..., Scalar], operands: _Operands) -> _Expression:
    shape, dtype = _result(eqn)
    return _Pointwise(shape, dtype, lambda *elements: function(eqn, *elements), operands)


def _result(eqn: JaxprEqn, index: int = 0) -> tuple[Shape, str]:
    aval: Any = eqn.outvars[index].aval
    return tuple(aval.shape), np.dtype(aval.dtype).name


def _function(name: str) -> Callable[..., Scalar]:
    return lambda _eqn, x, *others: x.apply(name, *others)


def _comparison(direction: str) -> Callable[..., Scalar]:
    return lambda _eqn, x, y: x.compare(direction, y)


def _integer_power(eqn: JaxprEqn, x: Scalar) -> Scalar:
    exponent, result, square = abs(eqn.params["y"]), None, x
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        square = square * square if exponent else square
    assert result is not None, "JAX simplifies x ** 0"
    return x.constant(1) / result if eqn.params["y"] < 0 else result


def _power(_eqn: JaxprEqn, x: Scalar, y: Scalar) -> Scalar:
    return x.apply("powf", y.to(x.dtype))


def _sign(_eqn: JaxprEqn, x: Scalar) -> Scalar:
    sign = x.compare("GT", 0).select(1, x.compare("LT", 0).select(-1, x.constant(0)))
    return x.is_nan().select(x, sign) if x.is_float else sign


def _reinterpret(eqn: JaxprEqn, x: Scalar) -> Scalar:
    dtype = _result(eqn)[1]
    both_integers = not x.is_float and dtype not in FLOAT_NAMES
    return Scalar(x.block, x.value, dtype) if both_integers else x.bits_as(dtype)


def _floor_mod(_eqn: JaxprEqn, x: Scalar, y: Scalar) -> Scalar:
    rest = x.remainder(y)
    if x.is_unsigned:
        return rest
    wrong_sign = rest.compare("LT", 0) ^ y.compare("LT", 0)
    return (rest.compare("NE", 0) & wrong_sign).select(rest + y, rest)


# Functions of jax.numpy that LAIR has an op for, or a shorter form.
_FUNCTIONS: dict[str, Callable[..., Scalar]] = {
    "floor_divide": lambda _eqn, x, y: x / y,
    "remainder": _floor_mod,
}

_POINTWISE: dict[str, Callable[..., Scalar]] = {
    "add": lambda _eqn, x, y: x + y,
    "add_any": lambda _eqn, x, y: x + y,
    "sub": lambda _eqn, x, y: x - y,
    "mul": lambda _eqn, x, y: x * y,
    "div": lambda _eqn, x, y: x.truncating_divide(y),
    "rem": lambda _eqn, x, y: x.remainder(y),
    "max": lambda _eqn, x, y: x.max(y),
    "min": lambda _eqn, x, y: x.min(y),
    "and": lambda _eqn, x, y: x & y,
    "or": lambda _eqn, x, y: x | y,
    "xor": lambda _eqn, x, y: x ^ y,
    "not": lambda _eqn, x: x ^ (1 if x.dtype == "bool" else -1),
    "shift_left": lambda _eqn, x, y: x.shift("left", y),
    "shift_right_arithmetic": lambda _eqn, x, y: x.shift("right_arithmetic", y),
    "shift_right_logical": lambda _eqn, x, y: x.shift("right_logical", y),
    "neg": lambda _eqn, x: -x,
    "abs": lambda _eqn, x: x.abs(),
    "sign": _sign,
    "square": lambda _eqn, x: x * x,
    "integer_pow": _integer_power,
    "pow": _power,
    "clamp": lambda _eqn, low, x, high: x.max(low).min(high),
    "select_n": lambda _eqn, which, no, yes: which.select(yes, no),
    "is_finite": lambda _eqn, x: x.abs().compare("LT", math.inf),
    "logistic": lambda _eqn, x: x.constant(1) / ((-x).apply("exp") + 1),
    "convert_element_type": lambda eqn, x: x.to(_result(eqn)[1]),
    "bitcast_convert_type": _reinterpret,
    "copy": lambda _eqn, x: x,
    "stop_gradient": lambda _eqn, x: x,
    **{
        name: _function(name)
        for name in (
            *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil"),
            *("round", "atan2"),
        )
    },
    **{name.lower(): _comparison(name) for name in ("EQ", "NE", "LT", "LE", "GT", "GE")},
}


def _move(eqn: JaxprEqn, x: _Expression, places: Sequence[Any], index: int = 0) -> _Expression:
    """Return the result whose element is that of `x` at places that depend on its indices."""
    shape, _ = _result(eqn, index)
    return _moved(x, shape, affine_map(len(shape), places))


def _moved(x: _Expression, shape: Shape, mapping: AffineMap) -> _Expression:
    if isinstance(x, _Constant):
        return _Constant(shape, x.dtype, x.number)
    if isinstance(x, _View):
        return _View(shape, x.dtype, x.array, compose(x.map, partial(mapping, shape, x.shape)))
    return _Moved(shape, x.dtype, x, mapping)


def _broadcast(eqn: JaxprEqn, x: _Expression) -> Sequence[_Expression]:
    dimensions = eqn.params["broadcast_dimensions"]
    return [_move(eqn, x, [0 if n == 1 else dim(d) for n, d in zip(x.shape, dimensions, strict=True)])]


def _reshape(eqn: JaxprEqn, x: _Expression) -> Sequence[_Expression]:
    return [_move(eqn, x, reshape_map(x.shape, _result(eqn)[0]).results)]


def _transpose(eqn: JaxprEqn, x: _Expression) -> Sequence[_Expression]:
    permutation = list(eqn.params["permutation"])
    return [_move(eqn, x, [dim(permutation.index(d)) for d in range(len(permutation))])]


def _reverse(eqn: JaxprEqn, x: _Expression) -> Sequence[_Expression]:
    turned = eqn.params["dimensions"]
    return [_move(eqn, x, [dim(d) * -1 + (n - 1) if d in turned else dim(d) for d, n in enumerate(x.shape)])]


def _slice(eqn: JaxprEqn, x: _Expression) -> Sequence[_Expression]:
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    return [_move(eqn, x, [dim(d) * s + b for d, (b, s) in enumerate(zip(starts, strides, strict=True))])]


def _split(eqn: JaxprEqn, x: _Expression) -> Sequence[_Expression]:
    pieces, begin, axis = [], 0, eqn.params["axis"]
    for number, size in enumerate(eqn.params["sizes"]):
        places = [dim(d) + begin if d == axis else dim(d) for d in range(len(x.shape))]
        pieces.append(_move(eqn, x, places, number))
        begin += size
    return pieces


def _iota(eqn: JaxprEqn) -> Sequence[_Expression]:
    return [_Index(*_result(eqn), eqn.params["dimension"])]


_MOVES: dict[str, Callable[..., Sequence[_Expression]]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "rev": _reverse,
    "slice": _slice,
    "split": _split,
    "iota": _iota,
}

_Combine: TypeAlias = Callable[[Scalar, Scalar], Scalar]
# How a reduction combines an element with the running value, and the value that it starts from.
_REDUCTIONS: dict[str, tuple[_Combine, Callable[[str], float]]] = {
    "sum": (lambda x, total: total + x, lambda _: 0),
    "prod": (lambda x, total: total * x, lambda _: 1),
    "max": (lambda x, total: total.max(x), lowest),
    "min": (lambda x, total: total.min(x), highest),
    "and": (lambda x, total: total & x, lambda dtype: 1 if dtype == "bool" else -1),
    "or": (lambda x, total: total | x, lambda _: 0),
}


def _reduce(kind: str) -> Callable[..., Array]:
    combine, start = _REDUCTIONS[kind]

    def build(builder: Builder, eqn: JaxprEqn, x: _Expression) -> Array:
        axes, (shape, dtype) = eqn.params["axes"], _result(eqn)
        # XLA accumulates sums and products of 16-bit floats in float32; the primitive does not show it.
        wide = "float32" if kind in ("sum", "prod") and dtype in FLOAT_NAMES else dtype
        kept = affine_map(len(x.shape), [dim(d) for d in range(len(x.shape)) if d not in axes])
        write = Read(builder.fill(shape, wide, start(wide)), kept)
        total = _loops(
            builder, x.shape, axes, [x], [write], lambda new, old: [combine(new[0].to(wide), old[0])]
        )[0]
        return _convert(builder, total, dtype)

    return build


def _convert(builder: Builder, array: Array, dtype: str) -> Array:
    if array.dtype == dtype:
        return array
    return _nest(builder, [_Pointwise(array.shape, dtype, lambda x: x.to(dtype), [_view(array)])])[0]


def _scan(kind: str) -> Callable[..., Array]:
    combine, start = _REDUCTIONS[kind]

    def build(builder: Builder, eqn: JaxprEqn, x: _Expression) -> Array:
        axis, (shape, dtype) = eqn.params["axis"], _result(eqn)
        kept = affine_map(len(shape), [dim(d) for d in range(len(shape)) if d != axis])
        running = builder.fill([n for d, n in enumerate(shape) if d != axis], dtype, start(dtype))
        # From the end: the loop runs forward over x in reverse order, and its result is reversed.
        turned = affine_map(
            len(shape), [dim(d) * -1 + (n - 1) if d == axis else dim(d) for d, n in enumerate(shape)]
        )
        places = turned if eqn.params["reverse"] else identity(len(shape))
        writes = [Read(builder.empty(shape, dtype), identity(len(shape))), Read(running, kept)]

        def step(new: list[Scalar], old: list[Scalar]) -> Sequence[Scalar]:
            total = combine(new[0], old[1])
            return total, total

        scanned = _loops(builder, shape, [axis], [x], writes, step, [places])[0]
        return _materialize(builder, _moved(_view(scanned), shape, places))

    return build


def _arg_extreme(kind: str, direction: str) -> Callable[..., Array]:
    combine, start = _REDUCTIONS[kind]

    def build(builder: Builder, eqn: JaxprEqn, x: _Expression) -> Array:
        (axis,), (shape, dtype) = eqn.params["axes"], _result(eqn)
        array = _materialize(builder, x)
        kept = affine_map(array.rank, [dim(d) for d in range(array.rank) if d != axis])
        first = Read(builder.fill(shape, array.dtype, start(array.dtype)), kept)
        extreme = _loops(
            builder, x.shape, [axis], [_view(array)], [first], lambda new, old: [combine(new[0], old[0])]
        )[0]
        initial = builder.fill(shape, dtype, highest(dtype))

        def body(element: Scalar, best: Scalar, first: Scalar) -> Scalar:
            hit = element.compare(direction, best)
            if element.is_float:
                hit = hit | element.is_nan()  # NaN is the extreme, as in NumPy
            place = loop_index(element.block, axis).to(dtype)
            return first.min(hit.select(place, first))

        reads = [Read(array, identity(array.rank)), Read(extreme, kept)]
        return builder.loops(array.rank, [axis], reads, [Read(initial, kept)], body)[0]

    return build


def _dot_general(builder: Builder, eqn: JaxprEqn, lhs: _Expression, rhs: _Expression) -> Array:
    """Loops over the batch, the free dimensions of both sides, and what is summed over."""
    contracting, batching = eqn.params["dimension_numbers"]
    shape, dtype = _result(eqn)
    next_free = iter(range(len(batching[0]), len(shape)))
    loops = len(shape) + len(contracting[0])
    extents = [*shape, *(lhs.shape[d] for d in contracting[0])]
    arrays, maps = [], []
    for x, batch, contracted in ((lhs, batching[0], contracting[0]), (rhs, batching[1], contracting[1])):
        positions = {d: number for number, d in enumerate(batch)}
        positions |= {d: len(shape) + number for number, d in enumerate(contracted)}
        arrays.append(_view(_materialize(builder, x)))
        places = [dim(positions[d] if d in positions else next(next_free)) for d in range(len(x.shape))]
        maps.append(affine_map(loops, places))
    wide = "float32" if dtype in FLOAT_NAMES else dtype  # products of 16-bit floats are summed in float32
    write = Read(builder.fill(shape, wide, 0), affine_map(loops, [dim(d) for d in range(len(shape))]))
    total = _loops(
        builder,
        tuple(extents),
        range(len(shape), loops),
        arrays,
        [write],
        lambda new, old: [old[0] + new[0].to(wide) * new[1].to(wide)],
        maps,
    )[0]
    return _convert(builder, total, dtype)


def _pad(builder: Builder, eqn: JaxprEqn, x: _Expression, value: _Expression) -> Array:
    shape, _ = _result(eqn)
    config = eqn.params["padding_config"]
    if not any(map(any, config)):
        return _materialize(builder, x)
    # Negative padding removes elements.
    starts, sizes = [], []
    for n, (low, high, interior) in zip(x.shape, config, strict=True):
        if (low < 0 or high < 0) and interior:
            raise UnsupportedPrimitiveError("pad with negative and interior padding")
        starts.append(max(0, -low))
        sizes.append(n - max(0, -low) - max(0, -high))
    part = (
        _moved(x, tuple(sizes), affine_map(len(sizes), [dim(d) + s for d, s in enumerate(starts)]))
        if tuple(sizes) != x.shape
        else x
    )
    whole = _materialize(builder, _moved(value, shape, affine_map(len(shape), [])))
    targets = [dim(d) * (interior + 1) + max(0, low) for d, (low, _, interior) in enumerate(config)]
    return _write(builder, part, whole, targets)


def _concatenate(builder: Builder, eqn: JaxprEqn, *parts: _Expression) -> Array:
    (shape, dtype), axis = _result(eqn), eqn.params["dimension"]
    whole, begin = builder.empty(shape, dtype), 0
    for part in parts:
        places = [dim(d) + begin if d == axis else dim(d) for d in range(len(shape))]
        whole = _write(builder, part, whole, places)
        begin += part.shape[axis]
    return whole


def _write(builder: Builder, part: _Expression, whole: Array, places: Sequence[Any]) -> Array:
    """Return `whole` with the elements of `part` at places that depend on their indices."""
    targets = partial(affine_map(len(part.shape), places), part.shape, whole.shape)
    if 0 in part.shape:
        return whole
    return _loops(builder, part.shape, (), [part], [Read(whole, targets)], lambda new, _old: new)[0]


def _gather(builder: Builder, eqn: JaxprEqn, x: _Expression, indices: _Expression) -> Array:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape, dtype = _result(eqn)
    array = _materialize(builder, x)
    batch = [d for d in range(len(shape)) if d not in numbers.offset_dims]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    offsets = iter(numbers.offset_dims)
    index: list[_Expression | None] = []
    offset: list[Any] = []
    for d in range(array.rank):
        inside: Any = 0 if d in dropped else dim(next(offsets))
        found = None
        if d in numbers.start_index_map:
            number = numbers.start_index_map.index(d)
            places = affine_map(len(shape), [*(dim(b) for b in batch), number])
            found = _moved(indices, shape, places)
        elif d in numbers.operand_batching_dims:
            where = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(d)]
            inside = dim(batch[where])
        index.append(found)
        offset.append(inside)
    mode = eqn.params["mode"]
    fill = eqn.params.get("fill_value")
    gathered = _Gathered(
        shape,
        dtype,
        array,
        index,
        affine_map(len(shape), offset),
        [n - size for n, size in zip(array.shape, sizes, strict=True)],
        (missing(dtype) if fill is None else fill) if mode == lax.GatherScatterMode.FILL_OR_DROP else None,
    )
    return _nest(builder, [gathered])[0]


_NESTS: dict[str, Callable[..., Array]] = {
    **{f"reduce_{kind}": _reduce(kind) for kind in _REDUCTIONS},
    "argmax": _arg_extreme("max", "EQ"),
    "argmin": _arg_extreme("min", "EQ"),
    "cumsum": _scan("sum"),
    "cumprod": _scan("prod"),
    "cummax": _scan("max"),
    "cummin": _scan("min"),
    "dot_general": _dot_general,
    "pad": _pad,
    "concatenate": _concatenate,
    "gather": _gather,
}
