"""Values of ops on constants: the jaxpr of an op's lowering, evaluated in NumPy.

A closed table has a NumPy function for every JAX primitive. Every equation is rounded to the type that the
jaxpr gives its result, as on the device. Before that, floats are computed in a wider type (float32 and
float16 in float64, bfloat16 in float32): basic operations are thereby correctly rounded, and values do not
depend on the vector instructions of the machine that compiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from cgc.cirh.base import CirhOp
from cgc.cirh.types import AnyArray, numpy_dtype, tensor_of
from cgc.errors import LoweringError
from cgc.lowering.base import narrow_to_device
from cgc.lowering.jax_table import called_jaxpr, trace


class _NotEvaluatedError(Exception):
    """The table lacks a primitive, or the result of the device is uncertain."""


def evaluate_lowering(op: CirhOp, operands: Sequence[AnyArray]) -> AnyArray | None:
    """Return the result of a single-result op on these operands, in its own dtype and shape.

    None if the table lacks a primitive, or if the result of the device is uncertain: for integers divided by
    zero, floats out of the range of the integers that they become, indices out of range, and 64-bit integers
    that do not fit into the 32 bits of the device.
    """
    result = tensor_of(op.results[0])
    dtype = numpy_dtype(result.element_type)
    # In the 32 bits of the jaxpr, integers that have 64 bits in the program would overflow unnoticed.
    has_wide = any(given == np.int64 for given in (dtype, *(operand.dtype for operand in operands)))
    widened = {"int32": "int64"} if has_wide else {}
    try:
        for operand in operands:
            narrow_to_device(operand, "a constant")
        with np.errstate(all="ignore"):
            (value,) = _run(trace(op), operands, widened)
        narrow_to_device(value, "the result")
    except (LoweringError, _NotEvaluatedError):
        return None
    return np.broadcast_to(value.astype(dtype), result.get_shape())


def _run(jaxpr: ClosedJaxpr, operands: Sequence[AnyArray], widened: dict[str, str]) -> list[AnyArray]:
    known: dict[Any, AnyArray] = dict(zip(jaxpr.jaxpr.invars, operands, strict=True))
    known.update(zip(jaxpr.jaxpr.constvars, map(np.asarray, jaxpr.consts), strict=True))

    def read(v: Any) -> AnyArray:
        return np.asarray(v.val) if isinstance(v, Literal) else known[v]

    for eqn in jaxpr.jaxpr.eqns:
        inputs = [read(v) for v in eqn.invars]
        called = called_jaxpr(eqn)
        if called is not None:
            known.update(zip(eqn.outvars, _run(called, inputs, widened), strict=True))
            continue
        function = PRIMITIVES.get(eqn.primitive.name)
        if function is None:
            raise _NotEvaluatedError
        found = function(eqn, *map(_widen, inputs))
        for v, value in zip(eqn.outvars, found if isinstance(found, list) else [found], strict=True):
            aval: Any = v.aval
            known[v] = np.asarray(value).astype(widened.get(aval.dtype.name, aval.dtype))
    return [read(v) for v in jaxpr.jaxpr.outvars]


def _widen(array: AnyArray) -> AnyArray:
    if array.dtype in (np.float32, np.float16):
        return array.astype(np.float64)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


# (equation, its operands) -> its result before rounding, or a list if it has several.
Primitive: TypeAlias = Callable[..., Any]


def _plain(function: Callable[..., Any]) -> Primitive:
    """Return the evaluation of a primitive that has no parameters."""
    return lambda _eqn, *arrays: function(*arrays)


def _shape(eqn: JaxprEqn) -> tuple[int, ...]:
    aval: Any = eqn.outvars[0].aval
    return tuple(aval.shape)


def _remainder(_eqn: JaxprEqn, x: AnyArray, y: AnyArray) -> Any:
    if y.dtype.kind in "iu" and not y.all():
        raise _NotEvaluatedError
    return np.fmod(x, y)


def _divide(eqn: JaxprEqn, x: AnyArray, y: AnyArray) -> Any:
    # Quotients of integers are rounded towards zero.
    return (x - _remainder(eqn, x, y)) // y if x.dtype.kind in "iu" else np.true_divide(x, y)


def _round(eqn: JaxprEqn, x: AnyArray) -> Any:
    if eqn.params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN:
        raise _NotEvaluatedError
    return np.rint(x)


def _select(_eqn: JaxprEqn, which: AnyArray, *cases: AnyArray) -> Any:
    if which.dtype != np.bool_:
        raise _NotEvaluatedError
    return np.where(which, cases[1], cases[0])


def _convert(eqn: JaxprEqn, x: AnyArray) -> Any:
    target = np.dtype(eqn.params["new_dtype"])
    if target == np.bool_:
        return x != 0
    if target.kind in "iu" and x.dtype.kind == "f":
        limits, whole = np.iinfo(target.name), np.trunc(x).astype(np.float64)
        if not ((whole >= float(limits.min)) & (whole < float(limits.max))).all():
            raise _NotEvaluatedError
        return whole
    return x


def _reinterpret(eqn: JaxprEqn, x: AnyArray) -> Any:
    source, target = np.dtype(eqn.invars[0].aval.dtype), np.dtype(eqn.params["new_dtype"])  # type: ignore[attr-defined]
    if source.kind in "iu" and target.kind in "iu" and source.itemsize == target.itemsize:
        return x  # wraps where it is converted to the target
    if source.itemsize != target.itemsize:
        raise _NotEvaluatedError
    return x.astype(source).view(target)


def _shift_right_logical(_eqn: JaxprEqn, x: AnyArray, y: AnyArray) -> Any:
    bits = f"u{x.itemsize}"
    return (x.view(bits) >> y.view(bits)).view(x.dtype)


def _broadcast(eqn: JaxprEqn, x: AnyArray) -> Any:
    aligned = [1] * len(_shape(eqn))
    for size, dim in zip(x.shape, eqn.params["broadcast_dimensions"], strict=True):
        aligned[dim] = size
    return np.broadcast_to(x.reshape(aligned), _shape(eqn))


def _iota(eqn: JaxprEqn) -> Any:
    shape, dim = _shape(eqn), eqn.params["dimension"]
    return np.broadcast_to(np.arange(shape[dim]).reshape([-1] + [1] * (len(shape) - dim - 1)), shape)


def _slice(eqn: JaxprEqn, x: AnyArray) -> Any:
    strides = eqn.params["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, eqn.params["start_indices"], eqn.params["limit_indices"], strides))]


def _split(eqn: JaxprEqn, x: AnyArray) -> list[Any]:
    return np.split(x, np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"])


def _pad(eqn: JaxprEqn, x: AnyArray, value: AnyArray) -> Any:
    for axis, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        part = np.moveaxis(x, axis, 0)
        spread = len(part) + max(len(part) - 1, 0) * interior
        whole = np.full((max(low, 0) + spread + max(high, 0), *part.shape[1:]), value, x.dtype)
        whole[max(low, 0) : max(low, 0) + spread : interior + 1] = part
        # Negative padding removes elements at the ends.
        x = np.moveaxis(whole[max(-low, 0) : len(whole) - max(-high, 0)], 0, axis)
    return x


def _reduce(function: Callable[..., Any]) -> Primitive:
    def evaluate_reduction(eqn: JaxprEqn, x: AnyArray) -> Any:
        if not x.size:
            raise _NotEvaluatedError
        return function(x, axis=tuple(eqn.params["axes"]))

    return evaluate_reduction


def _scan(function: np.ufunc) -> Primitive:
    def evaluate_scan(eqn: JaxprEqn, x: AnyArray) -> Any:
        axis = eqn.params["axis"]
        scanned = function.accumulate(np.flip(x, axis) if eqn.params["reverse"] else x, axis)
        return np.flip(scanned, axis) if eqn.params["reverse"] else scanned

    return evaluate_scan


def _arg_extreme(function: Callable[..., Any]) -> Primitive:
    def evaluate_arg_extreme(eqn: JaxprEqn, x: AnyArray) -> Any:
        (axis,) = eqn.params["axes"]
        return function(x, axis)

    return evaluate_arg_extreme


def _dot_general(eqn: JaxprEqn, lhs: AnyArray, rhs: AnyArray) -> Any:
    (contract_lhs, contract_rhs), (batch_lhs, batch_rhs) = eqn.params["dimension_numbers"]
    rows = _matrices(lhs, batch_lhs, contract_lhs)
    columns = _matrices(rhs, batch_rhs, contract_rhs)
    return np.matmul(rows, np.swapaxes(columns, 1, 2)).reshape(_shape(eqn))


def _matrices(x: AnyArray, batch: Sequence[int], contracted: Sequence[int]) -> AnyArray:
    """Return x as `[batch, free, contracted]`."""
    free = [d for d in range(x.ndim) if d not in (*batch, *contracted)]
    sizes = [math.prod(x.shape[d] for d in dims) for dims in (batch, free, contracted)]
    return x.transpose(*batch, *free, *contracted).reshape(sizes)


def _gather(eqn: JaxprEqn, x: AnyArray, indices: AnyArray) -> Any:
    numbers, shape = eqn.params["dimension_numbers"], _shape(eqn)
    grid = np.indices(shape, sparse=True)
    batch = [d for d in range(len(shape)) if d not in numbers.offset_dims]
    offsets = iter(numbers.offset_dims)
    index_arrays: list[Any] = []
    for d, (size, part) in enumerate(zip(x.shape, eqn.params["slice_sizes"], strict=True)):
        index_array: Any = 0
        if d in numbers.operand_batching_dims:
            number = numbers.operand_batching_dims.index(d)
            index_array = grid[batch[numbers.start_indices_batching_dims[number]]]
        elif d not in numbers.collapsed_slice_dims:
            index_array = grid[next(offsets)]
        if d in numbers.start_index_map:
            starts = indices[..., numbers.start_index_map.index(d)].astype(np.int64)
            if ((starts < 0) | (starts > size - part)).any():
                raise _NotEvaluatedError
            index_array = index_array + np.expand_dims(starts, tuple(numbers.offset_dims))
        index_arrays.append(index_array)
    return np.broadcast_to(x[tuple(index_arrays)], shape)


def _scatter_add(eqn: JaxprEqn, x: AnyArray, indices: AnyArray, updates: AnyArray) -> Any:
    numbers = eqn.params["dimension_numbers"]
    of_rows = numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
    rows = indices[..., 0].astype(np.int64)
    if not of_rows or numbers.operand_batching_dims or rows.ndim != updates.ndim - x.ndim + 1:
        raise _NotEvaluatedError
    inside = (rows >= 0) & (rows < len(x))
    total = x.copy()
    np.add.at(total, rows[inside], updates[inside])
    return total


# The primitives that loop nests can express (`cgc.lair.from_jaxpr`), and sums of rows.
PRIMITIVES: dict[str, Primitive] = {
    "exp": _plain(np.exp),
    "expm1": _plain(np.expm1),
    "log": _plain(np.log),
    "log1p": _plain(np.log1p),
    "sqrt": _plain(np.sqrt),
    "rsqrt": _plain(lambda x: 1 / np.sqrt(x)),
    "sin": _plain(np.sin),
    "cos": _plain(np.cos),
    "tanh": _plain(np.tanh),
    "atan2": _plain(np.arctan2),
    "logistic": _plain(lambda x: 1 / (1 + np.exp(-x))),
    "erf": _plain(np.vectorize(math.erf, otypes=[np.float64])),
    "pow": _plain(np.power),
    "integer_pow": lambda eqn, x: np.power(x, eqn.params["y"]),
    "square": _plain(np.square),
    "abs": _plain(np.abs),
    "neg": _plain(np.negative),
    "sign": _plain(lambda x: np.where(x == 0, x, np.sign(x))),  # -0.0 stays
    "floor": _plain(np.floor),
    "ceil": _plain(np.ceil),
    "round": _round,
    "add": _plain(np.add),
    "add_any": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "div": _divide,
    "rem": _remainder,
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "not": _plain(np.invert),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "is_finite": _plain(np.isfinite),
    "clamp": _plain(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "select_n": _select,
    "convert_element_type": _convert,
    "bitcast_convert_type": _reinterpret,
    "copy": _plain(np.asarray),
    "stop_gradient": _plain(np.asarray),
    "shift_left": _plain(np.left_shift),
    "shift_right_arithmetic": _plain(np.right_shift),
    "shift_right_logical": _shift_right_logical,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda eqn, x: x.reshape(_shape(eqn)),
    "squeeze": lambda eqn, x: x.reshape(_shape(eqn)),
    "expand_dims": lambda eqn, x: x.reshape(_shape(eqn)),
    "transpose": lambda eqn, x: x.transpose(eqn.params["permutation"]),
    "rev": lambda eqn, x: np.flip(x, eqn.params["dimensions"]),
    "slice": _slice,
    "split": _split,
    "iota": _iota,
    "pad": _pad,
    "concatenate": lambda eqn, *parts: np.concatenate(parts, eqn.params["dimension"]),
    "gather": _gather,
    "scatter-add": _scatter_add,
    "reduce_sum": _reduce(np.sum),
    "reduce_prod": _reduce(np.prod),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reduce_and": _reduce(np.bitwise_and.reduce),
    "reduce_or": _reduce(np.bitwise_or.reduce),
    "argmax": _arg_extreme(np.argmax),
    "argmin": _arg_extreme(np.argmin),
    "cumsum": _scan(np.add),
    "cumprod": _scan(np.multiply),
    "cummax": _scan(np.maximum),
    "cummin": _scan(np.minimum),
    "dot_general": _dot_general,
}
