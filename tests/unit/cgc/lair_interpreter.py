"""An interpreter of LAIR in numpy: the meaning that every pass must preserve.

The loops of a nest that carry values run one iteration after the other, in lexicographic order, all others
at once. Calls of functions that represent an op of CIRH run that op's own lowering.
"""

from __future__ import annotations

import itertools
import math as python_math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, tensor
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IndexType, IntegerAttr, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.dialects.linalg.ops import FillOp, IndexOp, YieldOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from cgc.cirh.dense import dense_array
from cgc.cirh.types import numpy_dtype, require_tensor, tensor_of
from cgc.errors import LoweringError
from cgc.lair.build import dtype_of
from cgc.lair.dialect import PARALLEL, GenericOp, loop_extents, represented_op
from cgc.lowering.jax_table import lower

Values: TypeAlias = NDArray[Any]
_Environment: TypeAlias = dict[SSAValue, Values]


def run(module: ModuleOp, arguments: Sequence[Values]) -> tuple[Values, ...]:
    """Run the first function of a module, and return its results.

    Args:
        module: a function of LAIR, with the declarations that it needs.
        arguments: in the types of LAIR; unsigned integers may come as such.

    Raises:
        LoweringError: an op that is not of LAIR.
    """
    functions = {op.sym_name.data: op for op in module.ops if isinstance(op, FuncOp)}
    block = next(iter(functions.values())).body.block
    values: _Environment = {}
    for parameter, argument in zip(block.args, arguments, strict=True):
        tensor_type = tensor_of(parameter)
        values[parameter] = _as_bits(np.asarray(argument), numpy_dtype(tensor_type.element_type))
    with np.errstate(all="ignore"):
        for op in block.ops:
            if isinstance(op, ReturnOp):
                return tuple(values[operand] for operand in op.operands)
            _run_op(op, values, functions)
    raise LoweringError("the function does not end in func.return")


def _as_bits(array: Values, dtype: np.dtype[np.generic]) -> Values:
    """An array in a type of the same width."""
    return array.view(dtype) if array.dtype.itemsize == dtype.itemsize else array.astype(dtype)


def _run_op(op: Operation, values: _Environment, functions: Mapping[str, FuncOp]) -> None:
    if isinstance(op, GenericOp):
        results: Sequence[Values] = _run_nest(op, values)
    elif isinstance(op, FillOp):
        results = [np.full_like(values[op.outputs[0]], values[op.inputs[0]])]
    elif isinstance(op, tensor.EmptyOp):
        # a value that no loop may depend on
        kind = tensor_of(op.tensor)
        results = [np.full(kind.get_shape(), 77, numpy_dtype(kind.element_type))]
    elif isinstance(op, CallOp):
        function = functions[op.callee.root_reference.data]
        results = _run_extern(function, [values[operand] for operand in op.operands])
    else:
        results = [_scalar(op, [values[operand] for operand in op.operands])]
    values.update(zip(op.results, results, strict=True))


def _run_extern(function: FuncOp, operands: Sequence[Values]) -> list[Values]:
    op = represented_op(function)
    typed: list[Any] = [
        _as_bits(value, np.dtype(dtype_of(tensor_of(operand))))
        for value, operand in zip(operands, op.operands, strict=True)
    ]
    types = [numpy_dtype(require_tensor(kind).element_type) for kind in function.function_type.outputs]
    return [_as_bits(np.asarray(value), dtype) for value, dtype in zip(lower(op, *typed), types, strict=True)]


def _run_nest(op: GenericOp, values: _Environment) -> list[Values]:
    """The outputs of a loop nest."""
    extents = loop_extents(op)
    kinds = [kind == PARALLEL for kind in op.iterator_types]
    parallel = [extent for extent, free in zip(extents, kinds, strict=True) if free]
    carried = [range(extent) for extent, free in zip(extents, kinds, strict=True) if not free]
    grid = iter(np.indices(parallel)) if parallel else iter(())
    places: list[Values] = [next(grid) if free else np.zeros(parallel, np.int64) for free in kinds]
    inputs = [values[operand] for operand in op.inputs]
    outputs = [values[operand].copy() for operand in op.outputs]
    for point in itertools.product(*carried):
        steps = iter(point)
        here = [
            place if free else np.full(parallel, next(steps))
            for place, free in zip(places, kinds, strict=True)
        ]
        arrays = [*inputs, *outputs]
        where = [_elements(mapping, here, parallel) for mapping in op.maps]
        read = [array[index] for array, index in zip(arrays, where, strict=True)]
        for output, index, value in zip(
            outputs, where[len(inputs) :], _run_body(op, read, here, values), strict=True
        ):
            output[index] = value
    return outputs


def _elements(mapping: AffineMap, places: Sequence[Values], shape: Sequence[int]) -> tuple[Values, ...]:
    """Indices of the elements that a map names, for all parallel iterations at once."""
    evaluated = (expr.eval(places, ()) for expr in mapping.results)  # type: ignore[arg-type]  # of arrays
    return tuple(np.broadcast_to(place, shape) for place in evaluated)


def _run_body(
    op: GenericOp, read: Sequence[Values], places: Sequence[Values], outer: Mapping[SSAValue, Values]
) -> list[Values]:
    values: _Environment = dict(outer)
    values.update(zip(op.body.block.args, read, strict=True))
    for inner in op.body.block.ops:
        if isinstance(inner, YieldOp):
            return [values[operand] for operand in inner.operands]
        if isinstance(inner, IndexOp):
            values[inner.result] = places[inner.dim.value.data]
        elif isinstance(inner, tensor.ExtractOp):
            values[inner.result] = values[inner.tensor][tuple(values[index] for index in inner.indices)]
        else:
            values[inner.results[0]] = _scalar(inner, [values[operand] for operand in inner.operands])
    raise LoweringError("the body of a linalg.generic does not end in linalg.yield")


def _scalar(op: Operation, operands: Sequence[Values]) -> Values:
    if isinstance(op, arith.ConstantOp):
        return _constant(op)
    if isinstance(op, arith.CmpfOp):
        return _FLOAT_PREDICATES[op.predicate.value.data](*operands)
    if isinstance(op, arith.CmpiOp):
        return _compared(op.predicate.value.data, *operands)
    if isinstance(op, arith.BitcastOp):
        return np.asarray(operands[0]).view(_dtype(op.result.type))
    if isinstance(op, _CONVERSIONS):
        source = _unsigned(operands[0]) if isinstance(op, arith.UIToFPOp | arith.ExtUIOp) else operands[0]
        return np.asarray(source).astype(_dtype(op.results[0].type))
    if isinstance(op, CallOp):
        return np.fmod(*operands)
    function = _FUNCTIONS.get(op.name)
    if function is None:
        raise LoweringError(f"op {op.name} has no meaning in a function of LAIR")
    return np.asarray(function(*operands)).astype(_dtype(op.results[0].type), copy=False)


def _dtype(element: Attribute) -> np.dtype[np.generic]:
    if isinstance(element, IndexType):
        return np.dtype(np.int64)
    return np.dtype(np.int16) if str(element) == "i16" else numpy_dtype(element)


def _constant(op: arith.ConstantOp) -> Values:
    value = op.value
    if isinstance(value, DenseIntOrFPElementsAttr):
        return dense_array(value)
    assert isinstance(value, FloatAttr | IntegerAttr)
    return np.asarray(value.value.data).astype(_dtype(op.result.type))


def _unsigned(array: Values) -> Values:
    array = np.asarray(array)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "i" else array


def _on_unsigned(function: Callable[..., Values]) -> Callable[..., Values]:
    return lambda *operands: np.asarray(function(*map(_unsigned, operands)))


def _rem(x: Values, y: Values) -> Values:
    return np.asarray(np.fmod(x, y))


def _compared(predicate: int, left: Values, right: Values) -> Values:
    if predicate >= _FIRST_UNSIGNED:
        return _INTEGER_PREDICATES[predicate - 4](_unsigned(left), _unsigned(right))
    return _INTEGER_PREDICATES[predicate](left, right)


_FIRST_UNSIGNED = 6
_INTEGER_PREDICATES: tuple[Callable[..., Values], ...] = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
)
_FLOAT_PREDICATES: dict[int, Callable[..., Values]] = {
    1: np.equal,
    2: np.greater,
    3: np.greater_equal,
    4: np.less,
    5: np.less_equal,
    13: np.not_equal,
    14: lambda left, right: np.isnan(left) | np.isnan(right),
}
"""oeq ogt oge olt ole une uno, by their numbers in `arith.cmpf`."""

_CONVERSIONS = (
    arith.ExtFOp,
    arith.TruncFOp,
    arith.FPToSIOp,
    arith.FPToUIOp,
    arith.SIToFPOp,
    arith.UIToFPOp,
    arith.ExtSIOp,
    arith.ExtUIOp,
    arith.TruncIOp,
    arith.IndexCastOp,
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    arith.AddfOp.name: np.add,
    arith.AddiOp.name: np.add,
    arith.SubfOp.name: np.subtract,
    arith.SubiOp.name: np.subtract,
    arith.MulfOp.name: np.multiply,
    arith.MuliOp.name: np.multiply,
    arith.DivfOp.name: np.divide,
    arith.FloorDivSIOp.name: np.floor_divide,
    arith.DivSIOp.name: lambda x, y: np.trunc(np.divide(x, y, dtype=np.float64)),
    arith.ShLIOp.name: np.left_shift,
    arith.ShRSIOp.name: np.right_shift,
    arith.ShRUIOp.name: _on_unsigned(np.right_shift),
    arith.DivUIOp.name: _on_unsigned(np.floor_divide),
    arith.RemSIOp.name: _rem,
    arith.RemUIOp.name: _on_unsigned(np.remainder),
    arith.MaximumfOp.name: np.maximum,
    arith.MaxSIOp.name: np.maximum,
    arith.MaxUIOp.name: _on_unsigned(np.maximum),
    arith.MinimumfOp.name: np.minimum,
    arith.MinSIOp.name: np.minimum,
    arith.MinUIOp.name: _on_unsigned(np.minimum),
    arith.AndIOp.name: np.bitwise_and,
    arith.OrIOp.name: np.bitwise_or,
    arith.XOrIOp.name: np.bitwise_xor,
    arith.NegfOp.name: np.negative,
    arith.SelectOp.name: np.where,
    math_dialect.AbsFOp.name: np.abs,
    math_dialect.AbsIOp.name: np.abs,
    math_dialect.ExpOp.name: np.exp,
    math_dialect.ExpM1Op.name: np.expm1,
    math_dialect.LogOp.name: np.log,
    math_dialect.Log1pOp.name: np.log1p,
    math_dialect.SqrtOp.name: np.sqrt,
    math_dialect.RsqrtOp.name: lambda x: 1 / np.sqrt(x),
    math_dialect.SinOp.name: np.sin,
    math_dialect.CosOp.name: np.cos,
    math_dialect.TanhOp.name: np.tanh,
    math_dialect.ErfOp.name: np.vectorize(python_math.erf, otypes=[np.float64]),
    math_dialect.FloorOp.name: np.floor,
    math_dialect.CeilOp.name: np.ceil,
    math_dialect.RoundEvenOp.name: np.rint,
    math_dialect.Atan2Op.name: np.arctan2,
    math_dialect.PowFOp.name: np.power,
    math_dialect.IPowIOp.name: np.power,
}
