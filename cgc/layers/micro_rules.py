"""Rules for micro-batches, op by op: the result of an op whose operands hold some samples of a batch.

A value is a `Part` of the value for the whole batch: the same in all micro-batches ("whole"), some samples
(the dimension along which they are), a share of a sum ("sum"), or the minimum or maximum of some samples
("min", "max"). A rule holds for contiguous samples, in equal pieces of one dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from cgc.cirh import ops as cirh
from cgc.cirh.base import CirhOp
from cgc.cirh.normalization import SampleNormGradOp, SampleNormOp
from cgc.cirh.optimizer import OptimizerOp
from cgc.cirh.reduction import ScanOp
from cgc.cirh.softmax import AxisOp, CrossEntropyOp
from cgc.cirh.traits import Elements, Samples
from cgc.cirh.types import FLOATS, dtype_name, shape_of, tensor_of

# An integer: samples along that dimension. "after": known when all samples have been computed.
Part = int | Literal["whole", "sum", "min", "max", "after"]


class Woven(int):
    """Rows along a dimension, of which every sample has one in each of `outer` groups.

    For example, a reshape of [words, samples, width] to [words * samples, width] weaves the rows. Ops that
    work row by row keep the rows of some samples in order until a reshape separates groups and samples.
    """

    outer: int

    def __new__(cls, axis: int, outer: int) -> Woven:
        """Create rows along a dimension, in `outer` groups."""
        woven = super().__new__(cls, axis)
        woven.outer = outer
        return woven

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Woven) and (int(self), self.outer) == (int(other), other.outer)

    def __hash__(self) -> int:
        return hash((int(self), self.outer))


Parts = tuple[Part, ...]

# Required parts of the operands ("whole" may be cut into samples), and the parts of the results.
Found = tuple[Parts, Parts] | None

# First, end and stride of ops that take a part of each dimension.
SLICED: Mapping[type[CirhOp], tuple[str, str, str]] = {
    cirh.SliceOp: ("start_indices", "limit_indices", "strides"),
    cirh.StridedSliceOp: ("begin", "end", "strides"),
    cirh.StridedSliceGradOp: ("begin", "end", "strides"),
}

_ELEMENTWISE = (Elements.POINTWISE, Elements.CONVERTED)

# Ops that work row by row, in addition to elementwise ones.
_ROW_BY_ROW: tuple[type[CirhOp], ...] = (
    cirh.MatMulOp,
    cirh.DotGeneralOp,
    cirh.TransposeOp,
    cirh.BroadcastInDimOp,
    cirh.ReduceOp,
    cirh.BiasAddGradOp,
    cirh.ReduceBiasOp,
    SampleNormOp,
    SampleNormGradOp,
    AxisOp,
    cirh.SoftmaxGradOp,
    CrossEntropyOp,
)

_GROUPS = (cirh.GroupNormOp, cirh.GroupNormGradOp)

# Ops whose result is a sum if all operands are sums.
_SUMS: tuple[type[CirhOp], ...] = (
    cirh.NegOp,
    cirh.ReshapeOp,
    cirh.TransposeOp,
    cirh.BroadcastInDimOp,
    cirh.ConcatOp,
    cirh.SplitOp,
    cirh.SliceOp,
    cirh.StridedSliceOp,
    cirh.StridedSliceGradOp,
    cirh.BiasAddGradOp,
    cirh.ReduceBiasOp,
    cirh.AddOp,
    cirh.SubOp,
)


def apply_rule(op: CirhOp, parts: Parts, count: int) -> Found:
    """Apply the rule of an op to parts of its operands; None without a rule.

    Args:
        op: of the whole step.
        parts: of its operands; at least one is samples or a share.
        count: number of micro-batches.
    """
    axes = {part for part in parts if isinstance(part, int)}
    if not axes:
        # Keep shares of a sum where a result is linear in them.
        kinds = set(parts)
        is_float = dtype_name(tensor_of(op.operands[0])) in FLOATS
        if kinds == {"sum"}:
            # A cast of floats to float32 loses no bits of a share.
            is_widening = isinstance(op, cirh.CastOp) and is_float
            is_widening = is_widening and dtype_name(tensor_of(op.results[0])) == "float32"
            if isinstance(op, _SUMS) or is_widening:
                return parts, same_part("sum", op)
            if isinstance(op, cirh.ReduceOp) and op.reduce_kind in ("ADD", "MEAN"):
                return parts, ("sum",)
        # A product of two shares is no share of the product.
        if parts.count("sum") == 1 and kinds == {"sum", "whole"}:
            if isinstance(op, cirh.MulOp | cirh.MatMulOp | cirh.DotGeneralOp):
                return parts, ("sum",)
            # Division of integers rounds, so shares do not add up.
            if isinstance(op, cirh.DivOp) and parts[0] == "sum" and is_float:
                return parts, ("sum",)
        return None
    if any(isinstance(part, Woven) for part in axes):
        return _apply_to_woven_rows(op, parts, axes, count)
    if not all(isinstance(part, int) or part == "whole" for part in parts):
        return None
    found = _apply_to_samples(op, parts, axes, count)
    return found if found is not None and _divides_samples(op, found, count) else None


def same_part(part: Part, op: CirhOp) -> Parts:
    """Return the same part for all results of an op."""
    return (part,) * len(op.results)


def pointwise(op: CirhOp, axis: int) -> Parts | None:
    """Return the parts of the operands of an elementwise op.

    Args:
        op: whose operands have the shape of the result, or are scalars and vectors for all samples.
        axis: of the samples.
    """
    shape = shape_of(op.results[0])
    sources = [shape_of(operand) for operand in op.operands]
    if axis >= len(shape) or (axis == len(shape) - 1 and any(s != shape and s for s in sources)):
        return None  # a vector along the last dimension, that of the samples
    return tuple(axis if source == shape else "whole" for source in sources)


def _divides_samples(op: CirhOp, found: tuple[Parts, Parts], count: int) -> bool:
    """Return True if every dimension of samples can be cut into equal micro-batches."""
    pairs = (*zip(op.operands, found[0], strict=True), *zip(op.results, found[1], strict=True))
    return all(not isinstance(part, int) or shape_of(value)[part] % count == 0 for value, part in pairs)


def _apply_to_samples(op: CirhOp, parts: Parts, axes: set[int], count: int) -> Found:
    """Apply the rule of an op whose operands have samples along one dimension."""
    rule = _RULES.get(type(op))
    if rule is not None:
        return rule(op, parts, count)
    if isinstance(op, OptimizerOp | cirh.FusedBatchNormOp | cirh.FusedBatchNormGradOp) or len(axes) > 1:
        return None
    (axis,) = axes
    if isinstance(op, AxisOp | ScanOp | cirh.ArgMaxOp | cirh.SoftmaxGradOp):
        # These work along another dimension than that of the samples.
        if op.axis == axis:
            return None
        drops_axis = len(shape_of(op.results[0])) < len(shape_of(op.operands[0]))
        result_axis = axis - 1 if drops_axis and op.axis < axis else axis
        return (axis,) * len(op.operands), (result_axis,) * len(op.results)
    if (required := _row_operands(op, axis)) is None and op.TRAITS.elements in _ELEMENTWISE:
        required = pointwise(op, axis)
    if required is None or not all(
        part in ("whole", needed) for part, needed in zip(parts, required, strict=True)
    ):
        return None
    others: Part = "sum" if op.TRAITS.samples is Samples.FIRST else axis
    return required, (axis, *(others,) * (len(op.results) - 1))


def _apply_to_woven_rows(op: CirhOp, parts: Parts, axes: set[int], count: int) -> Found:
    """Apply the rule of an op to woven rows: ops that work row by row keep them, a reshape separates them."""
    (woven, *others) = axes
    if others or not isinstance(woven, Woven) or {*parts} - {woven, "whole"}:
        return None
    if isinstance(op, cirh.ReshapeOp):
        part = _reshape_woven(woven, shape_of(op.operands[0]), shape_of(op.results[0]), count)
        return None if part is None else (parts, (part,))
    if not isinstance(op, _ROW_BY_ROW) and op.TRAITS.elements not in _ELEMENTWISE:
        return None
    plain: Parts = tuple(int(part) if isinstance(part, Woven) else part for part in parts)
    found = _apply_to_samples(op, plain, {int(woven)}, count)
    if found is None or found[0] != plain or not _divides_samples(op, found, count):
        return None  # a whole value would have to be cut along woven rows
    return parts, tuple(Woven(part, woven.outer) if isinstance(part, int) else part for part in found[1])


def _reshape_woven(woven: Woven, before: Sequence[int], after: Sequence[int], count: int) -> Part | None:
    """Return the part after a reshape: plain samples if groups and samples are apart, else woven rows."""
    rows = math.prod(before[: int(woven)])
    for axis, size in enumerate(after):
        if math.prod(after[:axis]) == rows * woven.outer and size % count == 0:
            return axis
    for axis, size in enumerate(after):
        if math.prod(after[:axis]) == rows and size == before[int(woven)]:
            return Woven(axis, woven.outer)
    return None


def _row_operands(op: CirhOp, axis: int) -> Parts | None:
    """Return the operand parts of an op along the last dimension, for samples along another one."""
    if axis >= len(shape_of(op.operands[0])) - 1 or (axis and isinstance(op, _GROUPS)):
        return None
    if isinstance(op, SampleNormOp):
        return axis, "whole", "whole"
    if isinstance(op, SampleNormGradOp):
        return axis, axis, "whole", axis, axis
    return (axis,) * len(op.operands) if isinstance(op, CrossEntropyOp | cirh.TopKOp) else None


def _reshape(op: CirhOp, parts: Parts, count: int) -> Found:
    """Follow the samples through a reshape: to a dimension of the same outer size, or woven with others."""
    (axis,) = parts
    assert isinstance(axis, int)
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    outer = math.prod(before[:axis])
    for new_axis, size in enumerate(after):
        if math.prod(after[:new_axis]) == outer and size % count == 0:
            return parts, (new_axis,)
    for new_axis, size in enumerate(after):
        new_outer = math.prod(after[:new_axis])
        groups = outer // new_outer if new_outer else 0
        if groups > 1 and groups * new_outer == outer and size == groups * before[axis]:
            return parts, (Woven(new_axis, groups),)
    return None


def _transpose(op: Any, parts: Parts, count: int) -> Found:
    return parts, (list(op.permutation).index(parts[0]),)


def _broadcast(op: Any, parts: Parts, count: int) -> Found:
    axis = parts[0]
    assert isinstance(axis, int)
    return parts, (op.broadcast_dimensions[axis],)


def _concat(op: Any, parts: Parts, count: int) -> Found:
    (axis, *others) = {part for part in parts if isinstance(part, int)}
    return None if others or axis == op.axis else ((axis,) * len(parts), (axis,))


def _split(op: Any, parts: Parts, count: int) -> Found:
    return None if parts[0] == op.axis else (parts, (*parts,) * len(op.results))


def _pad(op: Any, parts: Parts, count: int) -> Found:
    axis = parts[0]
    if not isinstance(axis, int) or parts[1] != "whole" or op.low[axis] or op.high[axis]:
        return None
    return parts, (axis,)


def _slice(op: Any, parts: Parts, count: int) -> Found:
    axis = parts[0]
    assert isinstance(axis, int)
    first, end, stride = (getattr(op, name)[axis] for name in SLICED[type(op)])
    size = shape_of(op.operands[0])[axis]
    is_all = (first, end, stride) == (0, size, 1) and size == shape_of(op.results[0])[axis]
    return (parts, (axis,)) if is_all else None


# Part of the result if a reduction includes the dimension of the samples.
_SHARES: Mapping[str, Part] = {
    "ADD": "sum",
    "MEAN": "sum",
    "MAX": "max",
    "MIN": "min",
    "AND": "min",
    "OR": "max",
}


def _reduce(op: Any, parts: Parts, count: int) -> Found:
    """Reduce samples to shares, or keep their dimension."""
    axis = parts[0]
    assert isinstance(axis, int)
    if axis not in op.dimensions:
        num_removed = 0 if op.keep_dims else sum(dim < axis for dim in op.dimensions)
        return parts, (axis - num_removed,)
    kind = _SHARES.get(op.reduce_kind)
    if op.reduce_kind in ("AND", "OR") and dtype_name(tensor_of(op.x)) != "bool":
        return None  # bitwise operations on numbers are neither minimum nor maximum
    return None if kind is None else (parts, (kind,))


def _bias_gradient(op: Any, parts: Parts, count: int) -> Found:
    kept = op.dim if isinstance(op, cirh.ReduceBiasOp) else len(shape_of(op.operands[0])) - 1
    return None if parts[0] == kept else (parts, ("sum",))


def _matmul(op: Any, parts: Parts, count: int) -> Found:
    rank = len(shape_of(op.a))
    row, column = rank - 2, rank - 1
    for axis in range(row):
        if _agree(parts, (axis, axis)):
            return (axis, axis), (axis,)
    contracting = (row if op.transpose_a else column, column if op.transpose_b else row)
    if parts == contracting:
        return parts, ("sum",)
    for side, result_axis in enumerate((row, column)):
        if isinstance(parts[side], int) and parts[side] != contracting[side] and parts[1 - side] == "whole":
            return parts, (result_axis,)
    return None


def _dot_general(op: Any, parts: Parts, count: int) -> Found:
    """Apply the rule of a general product: batching, contracting and remaining dimensions, in this order."""
    batching = list(zip(op.lhs_batching_dimensions, op.rhs_batching_dimensions, strict=True))
    contracting = list(zip(op.lhs_contracting_dimensions, op.rhs_contracting_dimensions, strict=True))
    for result_axis, pair in enumerate(batching):
        if _agree(parts, pair):
            return pair, (result_axis,)
    for pair in contracting:
        if _agree(parts, pair):
            return (pair, ("sum",)) if "whole" not in parts else None
    lhs, rhs = zip(*batching, *contracting, strict=True) if batching or contracting else ((), ())
    remaining = [
        (side, axis)
        for side, (operand, used) in enumerate(zip(op.operands, (lhs, rhs), strict=True))
        for axis in range(len(shape_of(operand)))
        if axis not in used
    ]
    for result_axis, (side, axis) in enumerate(remaining, len(batching)):
        if parts[side] == axis and parts[1 - side] == "whole":
            return parts, (result_axis,)
    return None


def _agree(parts: Parts, pair: tuple[int, int]) -> bool:
    return all(part in (axis, "whole") for part, axis in zip(parts, pair, strict=True))


def _attention(op: CirhOp, parts: Parts, count: int) -> Found:
    """Cut attention along leading dimensions: samples and heads are independent, queries and keys not."""
    axes = {part for part in parts if isinstance(part, int)}
    (axis, *others) = axes
    if others or axis >= len(shape_of(op.operands[0])) - 2:
        return None
    size = shape_of(op.operands[0])[axis]
    required: Parts = tuple(axis if shape_of(value)[axis] == size else "whole" for value in op.operands)
    fits = all(part == "whole" or part == needed for part, needed in zip(parts, required, strict=True))
    return (required, (axis,) * len(op.results)) if fits else None


def _gather(op: Any, parts: Parts, count: int) -> Found:
    """Cut a gather along its indices, or along another dimension of its table."""
    table, index = parts
    if table == "whole" and isinstance(index, int):
        return parts, (op.axis + index,)
    if index == "whole" and isinstance(table, int) and table != op.axis:
        num_inserted = len(shape_of(op.indices)) - 1
        return parts, (table if table < op.axis else table + num_inserted,)
    return None


def _one_hot(op: Any, parts: Parts, count: int) -> Found:
    axis = parts[0]
    if not isinstance(axis, int):
        return None
    return parts, (axis + int(op.axis <= axis),)


def _scatter_rows(op: CirhOp, parts: Parts, count: int) -> Found:
    """Sum the rows that the micro-batches add."""
    return ((0, 0), ("sum",)) if set(parts) <= {0, "whole"} else None


def _convolution(op: Any, parts: Parts, count: int) -> Found:
    """Cut the samples of a convolution; the gradient by the kernel is a sum over samples."""
    if op.conv_pass_direction == "BWD_KERNEL":
        return ((0, 0), ("sum",)) if set(parts) <= {0, "whole"} else None
    return (parts, (0,)) if parts == (0, "whole") else None


def _windows(op: CirhOp, parts: Parts, count: int) -> Found:
    return ((0,) * len(parts), (0,)) if set(parts) <= {0, "whole"} else None


_RULES: Mapping[type[CirhOp], Callable[[Any, Parts, int], Found]] = {
    cirh.ReshapeOp: _reshape,
    cirh.TransposeOp: _transpose,
    cirh.BroadcastInDimOp: _broadcast,
    cirh.ConcatOp: _concat,
    cirh.SplitOp: _split,
    cirh.PadOp: _pad,
    cirh.SliceOp: _slice,
    cirh.StridedSliceOp: _slice,
    cirh.StridedSliceGradOp: _slice,
    cirh.ReduceOp: _reduce,
    cirh.BiasAddGradOp: _bias_gradient,
    cirh.ReduceBiasOp: _bias_gradient,
    cirh.MatMulOp: _matmul,
    cirh.DotGeneralOp: _dot_general,
    cirh.AttentionOp: _attention,
    cirh.AttentionGradOp: _attention,
    cirh.GatherOp: _gather,
    cirh.OneHotOp: _one_hot,
    cirh.ScatterNdOp: _scatter_rows,
    cirh.ConvolutionOp: _convolution,
    cirh.PoolOp: _windows,
    cirh.MaxPoolGradOp: _windows,
    cirh.AvgPoolGradOp: _windows,
}
