"""Loop nests from the jaxpr of an op, by a closed table of JAX primitives.

Elementwise primitives, and those that only move elements, become expressions (`cgc.lair.expressions`).
Reductions, scans, products, and writes of a part of a tensor become nests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from cgc.lair.affine import affine_map, dim, identity, mark_partial_dims, reshape_map
from cgc.lair.build import (
    FLOAT_NAMES,
    Array,
    Builder,
    IndexedArray,
    Scalar,
    highest,
    loop_index,
    lowest,
    out_of_range_value,
)
from cgc.lair.expressions import (
    Constant,
    Expression,
    Gathered,
    Index,
    Moved,
    Pointwise,
    Shape,
    View,
    build_loops,
    build_nest,
    convert,
    materialize,
    materialize_together,
    move,
    view,
)
from cgc.lowering.jax_table import called_jaxpr

_DTYPES = frozenset(
    {
        "bool",
        "float16",
        "bfloat16",
        "float32",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32)),
    }
)
# Per operand. A longer jaxpr is an unrolled algorithm, whose nests would tell a reader nothing.
MAX_EQUATIONS = 500


def build_nests(builder: Builder, jaxpr: ClosedJaxpr, arrays: Sequence[Array]) -> list[Array]:
    """Add the loop nests of a jaxpr that loop nests can express (`is_expressible`) to a function.

    Args:
        builder: Adds to the body of the function.
        jaxpr: The computation.
        arrays: Its inputs.

    Returns:
        Its outputs.
    """
    inputs = [View(array.shape, array.dtype, array, identity(array.rank)) for array in arrays]
    outputs = _Translation(builder).run(jaxpr.jaxpr, inputs)
    return materialize_together(builder, outputs)


def is_expressible(jaxpr: ClosedJaxpr) -> bool:
    """Return True if loop nests express all equations of a jaxpr."""
    eqns = list(_flatten(jaxpr))
    is_short = len(eqns) <= MAX_EQUATIONS * max(1, len(jaxpr.jaxpr.invars))
    # The constants of a jaxpr are tensors of distinct elements, which a nest cannot contain.
    return is_short and not jaxpr.consts and all(map(_is_expressible, eqns))


def _flatten(jaxpr: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Yield the equations of a jaxpr and of the functions that it calls."""
    for eqn in jaxpr.jaxpr.eqns:
        called = called_jaxpr(eqn)
        if called is None or called.consts or eqn.params.get("name", "") in _FUNCTIONS:
            yield eqn
        else:
            yield from _flatten(called)


def _is_expressible(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    is_function = called_jaxpr(eqn) is not None and eqn.params.get("name", "") in _FUNCTIONS
    is_known = is_function or name in _POINTWISE or name in _MOVES or name in _NESTS
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    # Empty tensors have no loop extents, and bodies compute no complex numbers.
    if not is_known or any(0 in aval.shape or aval.dtype.name not in _DTYPES for aval in avals):
        return False
    if name == "select_n":
        return len(avals) == 4 and avals[0].dtype == np.bool_
    if name == "pad":
        return not any(
            interior and min(low, high) < 0 for low, high, interior in eqn.params["padding_config"]
        )
    return True


_Expressions: TypeAlias = Sequence[Expression]


class _Translation:
    """Translates a jaxpr and inlines its calls."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def run(self, jaxpr: Jaxpr, inputs: _Expressions) -> list[Expression]:
        """Return the outputs of a jaxpr."""
        known: dict[Any, Expression] = dict(zip(jaxpr.invars, inputs, strict=True))
        uses = Counter(v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal))
        uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))

        def read(v: Any) -> Expression:
            return _constant(v.val, v.aval) if isinstance(v, Literal) else known[v]

        for eqn in jaxpr.eqns:
            operands = [read(v) for v in eqn.invars]
            if eqn.primitive.name in _NESTS and not isinstance(eqn.invars[0], Literal):
                # A value with other readers is computed once instead of in the nest and in each of them.
                first = eqn.invars[0]
                if uses[first] > 1 and isinstance(known[first], Pointwise):
                    known[first] = operands[0] = view(materialize(self.builder, known[first]))
            known.update(zip(eqn.outvars, self._translate(eqn, operands), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _translate(self, eqn: JaxprEqn, operands: _Expressions) -> Sequence[Expression]:
        name = eqn.primitive.name
        if (call := called_jaxpr(eqn)) is not None:
            function = _FUNCTIONS.get(eqn.params.get("name", ""))
            if function is not None:
                return [_pointwise(eqn, function, self._compute_once(eqn, operands))]
            return self.run(call.jaxpr, operands)
        if name == "max" and isinstance(operands[0], Constant) and operands[0].number == -math.inf:
            return operands[1:]  # added by jax.numpy.max for empty inputs
        if name in _POINTWISE:
            return [_pointwise(eqn, _POINTWISE[name], self._compute_once(eqn, operands))]
        if name in _MOVES:
            return _MOVES[name](eqn, *self._compute_once(eqn, operands))
        return [view(_NESTS[name](self.builder, eqn, *operands))]

    def _compute_once(self, eqn: JaxprEqn, operands: _Expressions) -> list[Expression]:
        """Materialize operands that several elements of the result read, such as sums of rows."""
        # A body recomputes scalars, which is cheaper than another nest.
        elements = math.prod(_result(eqn)[0])
        return [
            view(materialize(self.builder, x))
            if x.shape and math.prod(x.shape) < elements and isinstance(x, Pointwise | Moved)
            else x
            for x in operands
        ]


def _constant(value: Any, aval: Any) -> Expression:
    return Constant(tuple(aval.shape), np.dtype(aval.dtype).name, np.asarray(value).item())


def _pointwise(eqn: JaxprEqn, function: Callable[..., Scalar], operands: _Expressions) -> Expression:
    shape, dtype = _result(eqn)
    return Pointwise(shape, dtype, lambda *elements: function(eqn, *elements), operands)


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


# Functions of jax.numpy for which LAIR has an op or a shorter form.
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


def _move(eqn: JaxprEqn, x: Expression, indices: Sequence[Any], index: int = 0) -> Expression:
    """Return a result of an equation: the elements of `x` at indices that are functions of its own."""
    shape, _ = _result(eqn, index)
    return move(x, shape, affine_map(len(shape), indices))


def _broadcast(eqn: JaxprEqn, x: Expression) -> Sequence[Expression]:
    dimensions = eqn.params["broadcast_dimensions"]
    return [_move(eqn, x, [0 if n == 1 else dim(d) for n, d in zip(x.shape, dimensions, strict=True)])]


def _reshape(eqn: JaxprEqn, x: Expression) -> Sequence[Expression]:
    return [_move(eqn, x, reshape_map(x.shape, _result(eqn)[0]).results)]


def _transpose(eqn: JaxprEqn, x: Expression) -> Sequence[Expression]:
    permutation = list(eqn.params["permutation"])
    return [_move(eqn, x, [dim(permutation.index(d)) for d in range(len(permutation))])]


def _reverse(eqn: JaxprEqn, x: Expression) -> Sequence[Expression]:
    reversed_dims = eqn.params["dimensions"]
    indices = [dim(d) * -1 + (n - 1) if d in reversed_dims else dim(d) for d, n in enumerate(x.shape)]
    return [_move(eqn, x, indices)]


def _slice(eqn: JaxprEqn, x: Expression) -> Sequence[Expression]:
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    return [_move(eqn, x, [dim(d) * s + b for d, (b, s) in enumerate(zip(starts, strides, strict=True))])]


def _split(eqn: JaxprEqn, x: Expression) -> Sequence[Expression]:
    pieces, begin, axis = [], 0, eqn.params["axis"]
    for number, size in enumerate(eqn.params["sizes"]):
        indices = [dim(d) + begin if d == axis else dim(d) for d in range(len(x.shape))]
        pieces.append(_move(eqn, x, indices, number))
        begin += size
    return pieces


def _iota(eqn: JaxprEqn) -> Sequence[Expression]:
    return [Index(*_result(eqn), eqn.params["dimension"])]


_MOVES: dict[str, Callable[..., Sequence[Expression]]] = {
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

    def build(builder: Builder, eqn: JaxprEqn, x: Expression) -> Array:
        axes, (shape, dtype) = eqn.params["axes"], _result(eqn)
        # XLA accumulates sums and products of 16-bit floats in float32; the primitive does not show it.
        sum_dtype = "float32" if kind in ("sum", "prod") and dtype in FLOAT_NAMES else dtype
        result_map = affine_map(len(x.shape), [dim(d) for d in range(len(x.shape)) if d not in axes])
        write = IndexedArray(builder.fill(shape, sum_dtype, start(sum_dtype)), result_map)
        total = build_loops(
            builder, x.shape, axes, [x], [write], lambda new, old: [combine(new[0].to(sum_dtype), old[0])]
        )[0]
        return convert(builder, total, dtype)

    return build


def _scan(kind: str) -> Callable[..., Array]:
    combine, start = _REDUCTIONS[kind]

    def build(builder: Builder, eqn: JaxprEqn, x: Expression) -> Array:
        axis, (shape, dtype) = eqn.params["axis"], _result(eqn)
        result_map = affine_map(len(shape), [dim(d) for d in range(len(shape)) if d != axis])
        running = builder.fill([n for d, n in enumerate(shape) if d != axis], dtype, start(dtype))
        # A loop always runs forward: for a scan from the end, it reads x in reverse and its result is
        # reversed.
        reversed_map = affine_map(
            len(shape), [dim(d) * -1 + (n - 1) if d == axis else dim(d) for d, n in enumerate(shape)]
        )
        order = reversed_map if eqn.params["reverse"] else identity(len(shape))
        writes = [
            IndexedArray(builder.empty(shape, dtype), identity(len(shape))),
            IndexedArray(running, result_map),
        ]

        def step(new: list[Scalar], old: list[Scalar]) -> Sequence[Scalar]:
            total = combine(new[0], old[1])
            return total, total

        scanned = build_loops(builder, shape, [axis], [x], writes, step, [order])[0]
        return materialize(builder, move(view(scanned), shape, order))

    return build


def _arg_extreme(kind: str, direction: str) -> Callable[..., Array]:
    combine, start = _REDUCTIONS[kind]

    def build(builder: Builder, eqn: JaxprEqn, x: Expression) -> Array:
        (axis,), (shape, dtype) = eqn.params["axes"], _result(eqn)
        array = materialize(builder, x)
        result_map = affine_map(array.rank, [dim(d) for d in range(array.rank) if d != axis])
        first = IndexedArray(builder.fill(shape, array.dtype, start(array.dtype)), result_map)
        extreme = build_loops(
            builder, x.shape, [axis], [view(array)], [first], lambda new, old: [combine(new[0], old[0])]
        )[0]
        initial = builder.fill(shape, dtype, highest(dtype))

        def body(element: Scalar, best: Scalar, first: Scalar) -> Scalar:
            is_extreme = element.compare(direction, best)
            if element.is_float:
                is_extreme = is_extreme | element.is_nan()  # NaN is the extreme, as in NumPy
            position = loop_index(element.block, axis).to(dtype)
            return first.min(is_extreme.select(position, first))

        reads = [IndexedArray(array, identity(array.rank)), IndexedArray(extreme, result_map)]
        return builder.loops(array.rank, [axis], reads, [IndexedArray(initial, result_map)], body)[0]

    return build


def _dot_general(builder: Builder, eqn: JaxprEqn, lhs: Expression, rhs: Expression) -> Array:
    # Loops: batch dimensions, free dimensions of both sides, then contracted dimensions.
    contracting, batching = eqn.params["dimension_numbers"]
    shape, dtype = _result(eqn)
    next_free = iter(range(len(batching[0]), len(shape)))
    loops = len(shape) + len(contracting[0])
    extents = [*shape, *(lhs.shape[d] for d in contracting[0])]
    arrays, maps = [], []
    for x, batch, contracted in ((lhs, batching[0], contracting[0]), (rhs, batching[1], contracting[1])):
        positions = {d: number for number, d in enumerate(batch)}
        positions |= {d: len(shape) + number for number, d in enumerate(contracted)}
        arrays.append(view(materialize(builder, x)))
        index_exprs = [dim(positions[d] if d in positions else next(next_free)) for d in range(len(x.shape))]
        maps.append(affine_map(loops, index_exprs))
    # Products of 16-bit floats are summed in float32.
    sum_dtype = "float32" if dtype in FLOAT_NAMES else dtype
    result_map = affine_map(loops, [dim(d) for d in range(len(shape))])
    write = IndexedArray(builder.fill(shape, sum_dtype, 0), result_map)
    total = build_loops(
        builder,
        tuple(extents),
        range(len(shape), loops),
        arrays,
        [write],
        lambda new, old: [old[0] + new[0].to(sum_dtype) * new[1].to(sum_dtype)],
        maps,
    )[0]
    return convert(builder, total, dtype)


def _pad(builder: Builder, eqn: JaxprEqn, x: Expression, value: Expression) -> Array:
    shape, _ = _result(eqn)
    config = eqn.params["padding_config"]
    if not any(map(any, config)):
        return materialize(builder, x)
    # Negative padding removes elements.
    starts, sizes = [], []
    for n, (low, high, _) in zip(x.shape, config, strict=True):
        starts.append(max(0, -low))
        sizes.append(n - max(0, -low) - max(0, -high))
    part = (
        move(x, tuple(sizes), affine_map(len(sizes), [dim(d) + s for d, s in enumerate(starts)]))
        if tuple(sizes) != x.shape
        else x
    )
    whole = materialize(builder, move(value, shape, affine_map(len(shape), [])))
    targets = [dim(d) * (interior + 1) + max(0, low) for d, (low, _, interior) in enumerate(config)]
    return _write(builder, part, whole, targets)


def _concatenate(builder: Builder, eqn: JaxprEqn, *parts: Expression) -> Array:
    (shape, dtype), axis = _result(eqn), eqn.params["dimension"]
    whole, begin = builder.empty(shape, dtype), 0
    for part in parts:
        indices = [dim(d) + begin if d == axis else dim(d) for d in range(len(shape))]
        whole = _write(builder, part, whole, indices)
        begin += part.shape[axis]
    return whole


def _write(builder: Builder, part: Expression, whole: Array, indices: Sequence[Any]) -> Array:
    """Write the elements of `part` into `whole`, at indices that are functions of their own."""
    targets = mark_partial_dims(affine_map(len(part.shape), indices), part.shape, whole.shape)
    if 0 in part.shape:
        return whole
    write = IndexedArray(whole, targets)
    return build_loops(builder, part.shape, (), [part], [write], lambda new, _old: new)[0]


def _gather(builder: Builder, eqn: JaxprEqn, x: Expression, indices: Expression) -> Array:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape, dtype = _result(eqn)
    array = materialize(builder, x)
    batch = [d for d in range(len(shape)) if d not in numbers.offset_dims]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    offsets = iter(numbers.offset_dims)
    index: list[Expression | None] = []
    offset: list[Any] = []
    for d in range(array.rank):
        within_slice: Any = 0 if d in dropped else dim(next(offsets))
        start_index = None
        if d in numbers.start_index_map:
            number = numbers.start_index_map.index(d)
            start_index = move(indices, shape, affine_map(len(shape), [*(dim(b) for b in batch), number]))
        elif d in numbers.operand_batching_dims:
            batch_dim = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(d)]
            within_slice = dim(batch[batch_dim])
        index.append(start_index)
        offset.append(within_slice)
    mode = eqn.params["mode"]
    fill = eqn.params.get("fill_value")
    gathered = Gathered(
        shape,
        dtype,
        array,
        index,
        affine_map(len(shape), offset),
        [n - size for n, size in zip(array.shape, sizes, strict=True)],
        (out_of_range_value(dtype) if fill is None else fill)
        if mode == lax.GatherScatterMode.FILL_OR_DROP
        else None,
    )
    return build_nest(builder, [gathered])[0]


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
