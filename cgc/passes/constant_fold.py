"""Constant folding: ops whose operands are all constants are computed in numpy at compile time.

Floats are computed in a wider type and rounded once: float32 and float16 in float64, bfloat16 in float32. For
the basic operations the result is thereby the correctly rounded one. What numpy would answer differently from
the device (a division of integers by zero, a float out of the range of the integer it is cast to ...) is not
evaluated. Only the sign of a sum that is zero may be another than the device's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import BroadcastInDimOp, ConstOp, ReshapeOp, TransposeOp
from cgc.cirh.types import (
    AnyArray,
    Tensor,
    element_count,
    is_cb16,
    numpy_dtype,
    shape_of,
    tensor_of,
    tensor_type,
)
from cgc.passes.rewriting import current_watch, drop, replace_uses


@dataclass(frozen=True)
class ConstantFoldPass(ModulePass):
    """Replaces ops on constants by constants.

    Attributes:
        max_elements: a result of more elements than this is folded only if it is no larger than the largest
            operand, so that a module does not grow by folding.
    """

    name = "constant-fold"
    max_elements: int = 65536

    def __post_init__(self) -> None:
        if self.max_elements < 0:
            raise ValueError(f"max-elements is {self.max_elements}, expected 0 or more")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place, in one sweep: operands are folded before their users are looked at.

        Operands that become unused stay; `dce` removes them.
        """
        for block in op.walk_blocks():
            self._fold_block(block)

    def _fold_block(self, block: Block) -> None:
        for op in list(block.ops):
            if isinstance(op, CirhOp) and not isinstance(op, ConstOp):
                value = self._fold(op)
                if value is not None:
                    _replace(op, value)

    def _fold(self, op: CirhOp) -> AnyArray | None:
        constants: list[ConstOp] = []
        for operand in op.operand_values:
            if not isinstance(owner := operand.owner, ConstOp):
                return None
            constants.append(owner)
        if len(op.results) != 1 or is_cb16(op.results[0]):
            return None
        size = element_count(tensor_of(op.results[0]))
        largest = max((element_count(tensor_of(operand)) for operand in op.operands), default=0)
        if size > max(self.max_elements, largest):
            return None
        value = evaluate(op, [constant.to_array() for constant in constants])
        return None if value is None or _leaves_device_range(value) else value


def _leaves_device_range(value: AnyArray) -> bool:
    """Return whether int64 values do not fit in int32, which the device computes int64 in."""
    return value.dtype == np.int64 and not np.array_equal(value, value.astype(np.int32))


def _replace(op: CirhOp, value: AnyArray) -> None:
    constant = ConstOp.from_array(value).take_origin(op)
    watch = current_watch()
    if watch is not None:
        constants = [operand.op for operand in op.operand_values if isinstance(operand, OpResult)]
        watch.rewritten((op, *constants), (constant,))
    Rewriter.insert_op(constant, InsertPoint.before(op))
    replace_uses(op.results[0], constant.result)
    drop(op)


# Takes an op and its operands; returns the result, still unrounded, or None if numpy is not to say.
Evaluator: TypeAlias = Callable[[Any, Sequence[AnyArray]], Any]


def evaluate(op: CirhOp, operands: Sequence[AnyArray]) -> AnyArray | None:
    """Return the result of a single-result op on these operands, in its own dtype and shape, or None."""
    evaluator = EVALUATORS.get(type(op))
    if evaluator is None:
        return None
    with np.errstate(all="ignore"):
        value = evaluator(op, operands)
        if value is None:
            return None
        result = tensor_of(op.results[0])
        rounded = np.asarray(value).astype(numpy_dtype(result.element_type))
    return np.broadcast_to(rounded, result.get_shape())


def evaluate_value(value: SSAValue, limit: int) -> AnyArray | None:
    """Return the elements of a value that depends on no argument; None if that cannot be evaluated exactly.

    Args:
        value: a value of a program.
        limit: the maximum number of elements of it, and of all values that it is computed from.
    """
    op = value.owner
    if isinstance(op, ops.ConstOp):
        return op.to_array()
    if not isinstance(op, CirhOp) or len(op.results) != 1 or element_count(tensor_of(value)) > limit:
        return None
    operands = [evaluate_value(operand, limit) for operand in op.operands]
    known = [operand for operand in operands if operand is not None]
    return evaluate(op, known) if len(known) == len(operands) else None


def _wide(array: AnyArray) -> Any:
    if array.dtype in (np.float32, np.float16):
        return array.astype(np.float64)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _elementwise(function: Callable[..., Any]) -> Evaluator:
    return lambda _, arrays: function(*map(_wide, arrays))


def _moved(function: Callable[..., Any]) -> Evaluator:
    """Return the evaluator of an op that moves elements: called with the op and its operands."""
    return lambda op, arrays: function(op, *arrays)


def _integer_division(function: Callable[..., Any]) -> Evaluator:
    """Divide integers only: the device rounds quotients of floats before the floor."""

    def evaluator(_: CirhOp, arrays: Sequence[AnyArray]) -> Any:
        lhs, rhs = arrays
        return function(lhs, rhs) if lhs.dtype.kind in "iu" and bool(np.all(rhs)) else None

    return evaluator


def _power(_: ops.PowOp, arrays: Sequence[AnyArray]) -> Any:
    lhs, rhs = map(_wide, arrays)
    return None if rhs.dtype.kind == "i" and (rhs < 0).any() else np.power(lhs, rhs)


_DIRECTIONS: dict[str, Callable[..., Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _cast(op: ops.CastOp, x: AnyArray) -> Any:
    target = numpy_dtype(tensor_of(op.result).element_type)
    if op.truncate:
        return None
    if target == np.bool_:
        return x != 0
    values = _wide(x)
    if target.kind in "iu" and values.dtype.kind == "f":
        limits = np.iinfo(target.name)
        whole = np.trunc(values).astype(np.float64)
        inside = (whole >= float(limits.min)) & (whole < float(limits.max))
        return whole if inside.all() else None
    return x


def _arange(op: ops.ArangeOp) -> Any:
    target = numpy_dtype(tensor_of(op.result).element_type)
    (size,) = shape_of(op.result)
    if not size:
        return np.zeros(0, target)
    if target.kind == "f" or target.name == "bfloat16":
        # integers up to 2**p are exact in a float of p bits; bfloat16 has 8, float16 11, float32 24
        bits = {"bfloat16": 8, "float16": 11, "float32": 24}[target.name]
        if any(abs(end) > 2**bits for end in (op.start, op.start + op.step * (size - 1))):
            return None
    return np.array([op.start + op.step * index for index in range(size)], np.int64)


def _one_hot(op: ops.OneHotOp, indices: AnyArray, on: AnyArray, off: AnyArray) -> Any:
    positions: Any = np.expand_dims(indices, op.axis)
    depth_shape = [1] * positions.ndim
    depth_shape[op.axis] = op.depth
    return np.where(positions == np.arange(op.depth).reshape(depth_shape), on, off)


def _broadcast(op: ops.BroadcastInDimOp, x: AnyArray) -> Any:
    shape = shape_of(op.result)
    aligned = [1] * len(shape)
    for index, dim in enumerate(op.broadcast_dimensions):
        aligned[dim] = x.shape[index]
    return np.broadcast_to(x.reshape(aligned), shape)


def _slice(op: ops.SliceOp, x: AnyArray) -> Any:
    return x[tuple(map(slice, op.start_indices, op.limit_indices, op.strides))]


def _pad(op: ops.PadOp, x: AnyArray, value: AnyArray) -> Any:
    result = np.full(shape_of(op.result), value, x.dtype)
    inside = (slice(low, low + size) for low, size in zip(op.low, x.shape, strict=True))
    result[tuple(inside)] = x
    return result


def _gather(op: ops.GatherOp, x: AnyArray, indices: Any) -> Any:
    inside = ((indices >= 0) & (indices < x.shape[op.axis])).all()
    return np.take(x, indices.astype(np.int64), op.axis) if inside else None


def _scatter_nd(op: ops.ScatterNdOp, indices: Any, updates: AnyArray) -> Any:
    values = _wide(updates)
    result = np.zeros(shape_of(op.result), values.dtype)
    inside = (indices >= 0) & (indices < result.shape[0])
    np.add.at(result, indices[inside].astype(np.int64), values[inside])
    return result


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ADD": np.sum,
    "MUL": np.prod,
    "MAX": np.max,
    "MIN": np.min,
    "AND": np.bitwise_and.reduce,
    "OR": np.bitwise_or.reduce,
    "MEAN": np.mean,
}


def _reduce(op: ops.ReduceOp, x: AnyArray) -> Any:
    if not op.dimensions:
        return x
    if x.size == 0:
        return None
    return _REDUCTIONS[op.reduce_kind](_wide(x), axis=op.dimensions, keepdims=op.keep_dims)


def _arg_max(op: ops.ArgMaxOp, x: AnyArray) -> Any:
    values = _wide(x)
    return None if values.dtype.kind == "f" and np.isnan(values).any() else np.argmax(values, op.axis)


def _cum_sum(op: ops.CumSumOp, x: AnyArray) -> Any:
    values = np.flip(_wide(x), op.axis) if op.reverse else _wide(x)
    sums = np.cumsum(values, op.axis)
    if op.exclusive:
        sums = np.roll(sums, 1, op.axis)
        first: list[Any] = [slice(None)] * sums.ndim
        first[op.axis] = slice(0, 1)
        sums[tuple(first)] = 0
    return np.flip(sums, op.axis) if op.reverse else sums


def _cum_prod(op: ops.CumProdOp, x: AnyArray) -> Any:
    values = np.flip(_wide(x), op.axis) if op.reverse else _wide(x)
    products = np.cumprod(values, op.axis)
    if op.exclusive:
        products = np.roll(products, 1, op.axis)
        first: list[Any] = [slice(None)] * products.ndim
        first[op.axis] = slice(0, 1)
        products[tuple(first)] = 1
    return np.flip(products, op.axis) if op.reverse else products


def _band_part(op: ops.MatrixBandPartOp, x: AnyArray) -> Any:
    rows, columns = x.shape[-2:]
    below = np.arange(rows)[:, None] - np.arange(columns)
    lower = op.num_lower if op.num_lower >= 0 else rows
    upper = op.num_upper if op.num_upper >= 0 else columns
    return np.where((below <= lower) & (-below <= upper), x, np.zeros((), x.dtype))


def _places(op: ops.StridedSliceOp | ops.StridedSliceGradOp) -> Any:
    """Return the positions that a strided slice takes, as an index."""
    ranges = [np.arange(*place) for place in zip(op.begin, op.end, op.strides, strict=True)]
    return np.ix_(*ranges)


def _strided_slice_grad(op: ops.StridedSliceGradOp, grad: AnyArray) -> Any:
    result = np.zeros(shape_of(op.result), grad.dtype)
    result[_places(op)] = grad
    return result


def _unpad(op: ops.UnpadOp, x: AnyArray) -> Any:
    limits = [size - high for size, high in zip(x.shape, op.high, strict=True)]
    return x[tuple(map(slice, op.low, limits))]


def _gather_nd(_: ops.GatherNdOp, x: AnyArray, indices: Any) -> Any:
    limits = x.shape[: indices.shape[-1]]
    inside = ((indices >= 0) & (indices < limits)).all()
    return x[tuple(np.moveaxis(indices.astype(np.int64), -1, 0))] if inside else None


def _conditional_arange(op: ops.ConditionalArangeOp, condition: AnyArray) -> Any:
    return np.where(condition, np.cumsum(condition, -1) - 1 + op.start, op.fill)


def _extend(op: ops.ExtSIOp | ops.ExtUIOp, x: AnyArray) -> Any:
    if x.dtype == np.bool_:
        return -x.astype(np.int64) if isinstance(op, ops.ExtSIOp) else x
    return x.view(f"{'i' if isinstance(op, ops.ExtSIOp) else 'u'}{x.itemsize}")


def _matmul(op: ops.MatMulOp, a: AnyArray, b: AnyArray) -> Any:
    left, right = _wide(a), _wide(b)
    left = np.swapaxes(left, -1, -2) if op.transpose_a else left
    right = np.swapaxes(right, -1, -2) if op.transpose_b else right
    return np.matmul(left, right)


# Op class -> evaluator. Random ops, optimizers, losses and gradients are left to the device.
EVALUATORS: dict[type[CirhOp], Evaluator] = {
    ops.AddOp: _elementwise(np.add),
    ops.SubOp: _elementwise(np.subtract),
    ops.MulOp: _elementwise(np.multiply),
    ops.DivOp: _elementwise(np.divide),
    ops.PowOp: _power,
    ops.MaxOp: _elementwise(np.maximum),
    ops.MinOp: _elementwise(np.minimum),
    ops.FloorDivOp: _integer_division(np.floor_divide),
    ops.FloorModOp: _integer_division(np.mod),
    ops.Atan2Op: _elementwise(np.arctan2),
    ops.AndOp: _elementwise(np.bitwise_and),
    ops.OrOp: _elementwise(np.bitwise_or),
    ops.XorOp: _elementwise(np.bitwise_xor),
    ops.NegOp: _elementwise(np.negative),
    ops.AbsOp: _elementwise(np.abs),
    ops.ExpOp: _elementwise(np.exp),
    ops.Expm1Op: _elementwise(np.expm1),
    ops.LogOp: _elementwise(np.log),
    ops.Log1pOp: _elementwise(np.log1p),
    ops.SqrtOp: _elementwise(np.sqrt),
    ops.RsqrtOp: _elementwise(lambda x: 1 / np.sqrt(x)),
    ops.ReciprocalOp: _elementwise(lambda x: 1 / x),
    ops.SinOp: _elementwise(np.sin),
    ops.CosOp: _elementwise(np.cos),
    ops.TanhOp: _elementwise(np.tanh),
    ops.SigmoidOp: _elementwise(lambda x: 1 / (1 + np.exp(-x))),
    ops.SignOp: _elementwise(lambda x: np.where(x == 0, x, np.sign(x))),
    ops.FloorOp: _elementwise(np.floor),
    ops.CeilOp: _elementwise(np.ceil),
    ops.RoundOp: _elementwise(np.rint),
    ops.ErfOp: _elementwise(np.vectorize(math.erf, otypes=[np.float64])),
    ops.ReluOp: _elementwise(lambda x: np.maximum(x, 0)),
    ops.EluOp: _elementwise(lambda x: np.where(x > 0, x, np.expm1(x))),
    ops.SoftplusOp: _elementwise(lambda x: np.logaddexp(x, 0)),
    ops.NotOp: _elementwise(np.invert),
    ops.IsFiniteOp: _elementwise(np.isfinite),
    ops.CompareOp: lambda op, arrays: _DIRECTIONS[op.direction](*map(_wide, arrays)),
    ops.SelectOp: _moved(lambda _, cond, on_true, on_false: np.where(cond, on_true, on_false)),
    ops.ClampOp: _elementwise(lambda x, low, high: np.minimum(np.maximum(x, low), high)),
    ops.CastOp: _moved(_cast),
    ops.ArangeOp: _moved(_arange),
    ops.OneHotOp: _moved(_one_hot),
    ops.ReshapeOp: _moved(lambda op, x: x.reshape(shape_of(op.result))),
    ops.TransposeOp: _moved(lambda op, x: np.transpose(x, op.permutation)),
    ops.BroadcastInDimOp: _moved(_broadcast),
    ops.ConcatOp: lambda op, arrays: np.concatenate(list(arrays), op.axis),
    ops.SliceOp: _moved(_slice),
    ops.PadOp: _moved(_pad),
    ops.GatherOp: _moved(_gather),
    ops.ScatterNdOp: _moved(_scatter_nd),
    ops.ReduceOp: _moved(_reduce),
    ops.ArgMaxOp: _moved(_arg_max),
    ops.CumSumOp: _moved(_cum_sum),
    ops.MatMulOp: _moved(_matmul),
    ops.CumProdOp: _moved(_cum_prod),
    ops.MatrixBandPartOp: _moved(_band_part),
    ops.StridedSliceOp: _moved(lambda op, x: x[_places(op)]),
    ops.StridedSliceGradOp: _moved(_strided_slice_grad),
    ops.UnpadOp: _moved(_unpad),
    ops.GatherNdOp: _moved(_gather_nd),
    ops.RepeatOp: _moved(lambda op, x: np.repeat(x, op.repeats, op.axis)),
    ops.ConditionalArangeOp: _moved(_conditional_arange),
    ops.ExtSIOp: _moved(_extend),
    ops.ExtUIOp: _moved(_extend),
    ops.BiasAddOp: _elementwise(np.add),
    ops.BiasAddGradOp: lambda _, arrays: np.sum(_wide(arrays[0]), tuple(range(arrays[0].ndim - 1))),
}


def constant_splat(value: SSAValue) -> Any | None:
    """Return the numpy scalar that every element of `value` is known to be, or None.

    Looks through ops that only move or repeat elements.
    """
    owner: Any = value.owner
    while type(owner) in _MOVES:
        owner = owner.x.owner
    return owner.splat_value() if type(owner) is ConstOp else None


_MOVES = frozenset((BroadcastInDimOp, ReshapeOp, TransposeOp))


def splat_value(rewriter: PatternRewriter, number: float, like: Tensor) -> SSAValue:
    """Return a value of type `like` with one number everywhere, which takes the memory of that one number."""
    made = ConstOp.splat(number, tensor_type((), like.element_type))
    spread = BroadcastInDimOp(made, like.get_shape(), ())
    rewriter.insert(made)
    rewriter.insert(spread)
    return spread.result


def is_splat_of(value: SSAValue, number: float) -> bool:
    """Return whether every element of `value` is `number`; -0.0 and 0.0 are different numbers here."""
    splat = constant_splat(value)
    if splat is None or float(splat) != number:
        return False
    return math.copysign(1, float(splat)) == math.copysign(1, number)
