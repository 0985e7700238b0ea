"""Canonicalization: one simple form for expressions that can be written in several ways.

Every rule preserves the result bit for bit, also for NaN, infinities and signed zeros (except the payload of
NaN, which IEEE 754 leaves open). So `x + 0.0` is not simplified, because -0.0 + 0.0 is 0.0, but `x + -0.0`
and `x - 0.0` are; `x * 0` and `x - x` are not. Sums are never reordered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.elementwise import BinaryOp, UnaryOp
from cgc.cirh.types import FLOATS, element_count, element_type, numpy_dtype, shape_of, tensor_of, tensor_type
from cgc.passes.channels_last import divide_before_broadcast, sink_channels_first
from cgc.passes.constant_fold import constant_splat, is_splat_of
from cgc.passes.products import (
    matmul,
    matmul_of_merged_batches,
    matmul_of_one_matrix,
    softmax_of_merged_batches,
    transpose_of_matmul,
)
from cgc.passes.rewriting import Replacement, rewrite_greedily

_INVERSE_DIRECTION = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}


_FLOAT_ELEMENTS = frozenset(element_type(name) for name in FLOATS)


def _is_float(value: SSAValue) -> bool:
    return tensor_of(value).element_type in _FLOAT_ELEMENTS


def constant_to_the_right(op: BinaryOp) -> Replacement:
    """`const + x` -> `x + const` for commutative ops; the constant may be broadcast."""
    if _is_constant(op.lhs) and not _is_constant(op.rhs):
        return type(op)(op.rhs, op.lhs)
    return None


def _is_constant(value: SSAValue) -> bool:
    return isinstance(value.owner, ops.ConstOp) or constant_splat(value) is not None


def same_operands(op: BinaryOp) -> Replacement:
    """`max(x, x)` -> `x`; also for min, and, or."""
    return op.lhs if op.lhs is op.rhs else None


def _both_orders(op: BinaryOp) -> tuple[tuple[SSAValue, SSAValue], tuple[SSAValue, SSAValue]]:
    return (op.lhs, op.rhs), (op.rhs, op.lhs)


def add(op: ops.AddOp) -> Replacement:
    """`x + -0.0` -> `x` (integers: `x + 0`); `x + -y` -> `x - y`."""
    zero = -0.0 if _is_float(op.result) else 0
    for x, other in _both_orders(op):
        if is_splat_of(other, zero):
            return x
        if isinstance(other.owner, ops.NegOp):
            return ops.SubOp(x, other.owner.x)
    return None


def sub(op: ops.SubOp) -> Replacement:
    """`x - 0` -> `x`, but not `x - -0.0`; `x - -y` -> `x + y`."""
    if is_splat_of(op.rhs, 0):
        return op.lhs
    if isinstance(op.rhs.owner, ops.NegOp):
        return ops.AddOp(op.lhs, op.rhs.owner.x)
    return None


def mul(op: ops.MulOp) -> Replacement:
    """`x * 1` -> `x`; `x * -1` -> `-x` for floats and signed integers; `x * 0` -> `0` only for integers."""
    for x, other in _both_orders(op):
        splat = constant_splat(other)
        if splat is None:
            continue
        if splat == 1:
            return x
        if splat == -1:
            return ops.NegOp(x)
        if splat == 0 and not _is_float(op.result):
            return other
    return None


def div(op: ops.DivOp) -> Replacement:
    """`x / 1` -> `x`; `x / -1` -> `-x`."""
    if is_splat_of(op.rhs, 1):
        return op.lhs
    return ops.NegOp(op.lhs) if is_splat_of(op.rhs, -1) else None


def by_one(op: BinaryOp) -> Replacement:
    """`x ** 1` -> `x`; `x // 1` -> `x` for integers, since it rounds floats."""
    rounds = isinstance(op, ops.FloorDivOp) and _is_float(op.result)
    return op.lhs if not rounds and is_splat_of(op.rhs, 1) else None


def square(op: ops.PowOp) -> Replacement:
    """`x ** 2` -> `x * x`, which has the same rounding."""
    return ops.MulOp(op.lhs, op.lhs) if is_splat_of(op.rhs, 2) else None


def bitwise_neutral(op: BinaryOp) -> Replacement:
    """`x and true`, `x or false`, `x xor false` -> `x`; also for all bits of integers."""
    for x, other in _both_orders(op):
        splat = constant_splat(other)
        if splat is not None and (np.invert(splat) if isinstance(op, ops.AndOp) else splat) == 0:
            return x
    return None


def neg(op: ops.NegOp) -> Replacement:
    """`-(-x)` -> `x`."""
    return op.x.owner.x if isinstance(op.x.owner, ops.NegOp) else None


def logical_not(op: ops.NotOp) -> Replacement:
    """`not not x` -> `x`; `not (a == b)` -> `a != b`; other comparisons only of integers, because of NaN."""
    inner = op.x.owner
    if isinstance(inner, ops.NotOp):
        return inner.x
    if isinstance(inner, ops.CompareOp):
        invertible = inner.direction in ("EQ", "NE") or not _is_float(inner.lhs)
        if invertible:
            return ops.CompareOp(inner.lhs, inner.rhs, _INVERSE_DIRECTION[inner.direction])
    return None


def idempotent(op: UnaryOp) -> Replacement:
    """`f(f(x))` -> `f(x)`."""
    return op.x if isinstance(op.x.owner, type(op)) else None


def absolute(op: ops.AbsOp) -> Replacement:
    """`abs(-x)` -> `abs(x)`."""
    return ops.AbsOp(op.x.owner.x) if isinstance(op.x.owner, ops.NegOp) else None


def select(op: ops.SelectOp) -> Replacement:
    """Simplify a select with equal branches, a constant condition or a negated condition."""
    if op.on_true is op.on_false:
        return op.on_true
    cond = constant_splat(op.cond)
    if cond is not None:
        return op.on_true if cond else op.on_false
    if isinstance(op.cond.owner, ops.NotOp):
        return ops.SelectOp(op.cond.owner.x, op.on_false, op.on_true)
    return None


def constant_branch_last(op: ops.SelectOp) -> Replacement:
    """`a == b ? 0 : x` -> `a != b ? x : 0`, if the negation is free or before a broadcast."""
    if constant_splat(op.on_true) is None or constant_splat(op.on_false) is not None:
        return None
    negated = _negate_condition(op.cond.owner)
    return None if negated is None else (*negated, ops.SelectOp(negated[-1], op.on_false, op.on_true))


def _negate_condition(op: object) -> tuple[CirhOp, ...] | None:
    """Return ops that negate a condition, the last with the result; None if they would be additional work."""
    if isinstance(op, ops.CompareOp) and (op.direction in ("EQ", "NE") or not _is_float(op.lhs)):
        return (ops.CompareOp(op.lhs, op.rhs, _INVERSE_DIRECTION[op.direction]),)
    if isinstance(op, ops.ConstOp):
        return (ops.ConstOp.from_array(np.logical_not(op.to_array())),)
    if isinstance(op, ops.BroadcastInDimOp):
        inner = ops.NotOp(op.x)
        return inner, ops.BroadcastInDimOp(inner, shape_of(op.result), op.broadcast_dimensions)
    return None


def cast(op: ops.CastOp) -> Replacement:
    """Drop a cast to the same type, and a lossless cast before another one."""
    if op.x.type == op.result.type:
        return op.x
    inner = op.x.owner
    if not isinstance(inner, ops.CastOp) or op.truncate or inner.truncate:
        return None
    source, between = (numpy_dtype(tensor_of(value).element_type) for value in (inner.x, op.x))
    if not np.can_cast(source, between, "safe"):
        return None
    return ops.CastOp(inner.x, tensor_of(op.result).element_type)


def reshape(op: ops.ReshapeOp) -> Replacement:
    """Drop a reshape to the same shape; merge a reshape of a reshape."""
    if op.x.type == op.result.type:
        return op.x
    inner = op.x.owner
    return ops.ReshapeOp(inner.x, shape_of(op.result)) if isinstance(inner, ops.ReshapeOp) else None


def transpose(op: ops.TransposeOp) -> Replacement:
    """Drop an identity transpose; merge a transpose of a transpose."""
    if op.permutation == tuple(range(len(op.permutation))):
        return op.x
    inner = op.x.owner
    if isinstance(inner, ops.TransposeOp):
        return ops.TransposeOp(inner.x, [inner.permutation[dim] for dim in op.permutation])
    return None


def transpose_of_units(op: ops.TransposeOp) -> Replacement:
    """Replace a transpose of dimensions of size 1 with a reshape; move a reshape that adds them after it."""
    before, after = shape_of(op.x), shape_of(op.result)
    moved = [dim for dim in op.permutation if before[dim] != 1]
    if moved == sorted(moved):
        return ops.ReshapeOp(op.x, after)
    inner = op.x.owner
    if not isinstance(inner, ops.ReshapeOp) or len(shape_of(inner.x)) >= len(before):
        return None
    targets = _map_dimensions(before, shape_of(inner.x))
    if targets is None:
        return None
    units = [dim for dim, size in enumerate(shape_of(inner.x)) if size == 1]
    transposed = ops.TransposeOp(inner.x, [*(targets[dim] for dim in moved), *units])
    return transposed, ops.ReshapeOp(transposed, after)


def broadcast(op: ops.BroadcastInDimOp) -> Replacement:
    """Replace a broadcast that repeats nothing with x or a reshape; merge a broadcast of a broadcast."""
    if op.x.type == op.result.type:
        return op.x
    shape, inner = shape_of(op.result), op.x.owner
    if element_count(tensor_of(op.x)) == element_count(tensor_of(op.result)):
        return ops.ReshapeOp(op.x, shape)
    if isinstance(inner, ops.BroadcastInDimOp):
        dims = [op.broadcast_dimensions[dim] for dim in inner.broadcast_dimensions]
        return ops.BroadcastInDimOp(inner.x, shape, dims)
    return None


def broadcast_of_reshape(op: ops.BroadcastInDimOp) -> Replacement:
    """Merge a reshape that only adds dimensions of size 1: `[10] -> [1, 10] -> [8, 10]`."""
    inner = op.x.owner
    if not isinstance(inner, ops.ReshapeOp):
        return None
    positions = _find_dimensions(shape_of(inner.x), shape_of(op.x), op)
    if positions is None:
        return None
    dims = [op.broadcast_dimensions[position] for position in positions]
    return ops.BroadcastInDimOp(inner.x, shape_of(op.result), dims)


def _find_dimensions(
    source: Sequence[int], between: Sequence[int], op: ops.BroadcastInDimOp
) -> list[int] | None:
    """Return the positions of the dimensions of `source` in `between`, which has more of size 1; or None.

    If there is a choice for a dimension of size 1, take one that the broadcast repeats.
    """
    result, repeated = shape_of(op.result), op.broadcast_dimensions
    positions: list[int] = []
    free = list(range(len(between)))
    for index, size in enumerate(source):
        following = [n for n in source[index + 1 :] if n != 1]
        choices = [position for position in free if between[position] == size]
        if size == 1:
            limit = next(
                (position for position in free if following and between[position] == following[0]),
                len(between),
            )
            units = [position for position in choices if position < limit]
            choices = sorted(units, key=lambda position: result[repeated[position]] == 1)
        if not choices:
            return None
        positions.append(choices[0])
        free = [position for position in free if position > choices[0]]
    return positions if all(between[i] == 1 for i in range(len(between)) if i not in positions) else None


def reshape_of_broadcast(op: ops.ReshapeOp) -> Replacement:
    """Merge a reshape that only drops dimensions of size 1: `[8, 1, 10] -> [8, 10]`."""
    inner = op.x.owner
    if not isinstance(inner, ops.BroadcastInDimOp):
        return None
    before, after = shape_of(op.x), shape_of(op.result)
    if len(after) >= len(before):
        return None
    targets = _map_dimensions(before, after)
    if targets is None:
        return None
    dims = _move_dimensions([targets.get(dim) for dim in inner.broadcast_dimensions], after)
    return None if dims is None else ops.BroadcastInDimOp(inner.x, after, dims)


def _map_dimensions(before: Sequence[int], after: Sequence[int]) -> dict[int, int] | None:
    """Map the dimensions of `before` larger than 1 to those of `after`; return None if these differ."""
    sources = [dim for dim, size in enumerate(before) if size != 1]
    targets = [dim for dim, size in enumerate(after) if size != 1]
    same = [before[dim] for dim in sources] == [after[dim] for dim in targets]
    return dict(zip(sources, targets, strict=True)) if same else None


def _move_dimensions(targets: Sequence[int | None], after: Sequence[int]) -> list[int] | None:
    """Return ascending dimensions of `after`: the targets, and one of size 1 for each None; or None."""
    dims: list[int] = []
    for index, target in enumerate(targets):
        first = dims[-1] + 1 if dims else 0
        limit = next((later for later in targets[index:] if later is not None), len(after))
        if target is None:
            target = next((dim for dim in range(first, limit) if after[dim] == 1), None)
        if target is None or target < first:
            return None
        dims.append(target)
    return dims


def reshape_of_reduce(op: ops.ReshapeOp) -> Replacement:
    """Merge a reshape into a reduction that drops or keeps its dimensions instead."""
    # If only the last dimension is left, reduce all dimensions before it, also those of size 1, and drop
    # them: statistics of channels are vectors.
    inner = op.x.owner
    if not isinstance(inner, ops.ReduceOp) or not inner.dimensions:
        return None
    *leading, last = shape_of(inner.x)
    unreduced = set(range(len(leading) + 1)).difference(inner.dimensions)
    if shape_of(op.result) == (last,) and len(leading) in unreduced:
        return ops.ReduceOp(inner.x, inner.reduce_kind, range(len(leading)))
    if reduces_all_but_last(inner):
        return None
    other = ops.ReduceOp(inner.x, inner.reduce_kind, inner.dimensions, not inner.keep_dims)
    if other.result.type == op.result.type:
        return other
    other.erase()
    return None


def concat(op: ops.ConcatOp) -> Replacement:
    """Drop a concatenation of a single operand."""
    return op.xs[0] if len(op.xs) == 1 else None


def slice_(op: ops.SliceOp) -> Replacement:
    """Drop a slice of the whole tensor; merge a slice of a slice."""
    if op.x.type == op.result.type:
        return op.x
    inner = op.x.owner
    if not isinstance(inner, ops.SliceOp):
        return None
    dims = range(len(op.strides))
    starts = [inner.start_indices[i] + op.start_indices[i] * inner.strides[i] for i in dims]
    strides = [inner.strides[i] * op.strides[i] for i in dims]
    sizes = shape_of(op.result)
    if 0 in sizes:
        return None
    limits = [starts[i] + (sizes[i] - 1) * strides[i] + 1 for i in dims]
    return ops.SliceOp(inner.x, starts, limits, strides)


def slice_of_broadcast(op: ops.SliceOp) -> Replacement:
    """Replace a slice along dimensions that a broadcast repeats with a smaller broadcast."""
    inner = op.x.owner
    if not isinstance(inner, ops.BroadcastInDimOp):
        return None
    before, after = shape_of(op.x), shape_of(op.result)
    for size, dim in zip(shape_of(inner.x), inner.broadcast_dimensions, strict=True):
        if size != 1 and before[dim] != after[dim]:
            return None
    return ops.BroadcastInDimOp(inner.x, after, inner.broadcast_dimensions)


def pad(op: ops.PadOp) -> Replacement:
    """Drop an empty padding."""
    return op.x if op.x.type == op.result.type else None


def reduce(op: ops.ReduceOp) -> Replacement:
    """Drop a reduction over no dimensions."""
    return None if op.dimensions else op.x


# Statistics of channels become vectors: `[channels]` where a program writes `[1, ..., 1, channels]`. A
# reduction over all dimensions but the last drops them, and ops on its result work on vectors, up to the
# broadcast that repeats them.
def reduces_all_but_last(op: ops.ReduceOp) -> bool:
    """Return True if a reduction is over all dimensions but the last, of two or more."""
    rank = len(shape_of(op.x))
    return rank > 1 and op.dimensions == tuple(range(rank - 1))


def reduce_to_vector(op: ops.ReduceOp) -> Replacement:
    """Drop the dimensions that a reduction of channels keeps, and add them to its result."""
    if not op.keep_dims or not reduces_all_but_last(op):
        return None
    vector = ops.ReduceOp(op.x, op.reduce_kind, op.dimensions)
    return vector, ops.ReshapeOp(vector, shape_of(op.result))


def on_vectors(op: UnaryOp | BinaryOp) -> Replacement:
    """`f([c] -> [1, ..., 1, c])` -> `f([c]) -> [1, ..., 1, c]`; other operands may be constants."""
    shape = shape_of(op.results[0])
    if len(shape) < 2 or math.prod(shape[:-1]) != 1:
        return None
    if not any(isinstance(operand.owner, ops.ReshapeOp) for operand in op.operands):
        return None
    constants: list[CirhOp] = []
    vectors = [_as_vector(operand, constants) for operand in op.operands]
    present = [vector for vector in vectors if vector is not None]
    if len(present) < len(vectors):
        return None
    result = type(op)(*present)
    return *constants, result, ops.ReshapeOp(result, shape)


def _as_vector(value: SSAValue, constants: list[CirhOp]) -> SSAValue | None:
    """Return the vector that a value is a reshape of; a splat becomes a constant, added to `constants`."""
    owner, size = value.owner, shape_of(value)[-1]
    if isinstance(owner, ops.ReshapeOp) and shape_of(owner.x) == (size,):
        return owner.x
    splat = constant_splat(value)
    if splat is None:
        return None
    constant = ops.ConstOp.splat(splat, tensor_type((size,), tensor_of(value).element_type))
    constants.append(constant)
    return constant.result


Rule: TypeAlias = Callable[[Any], Replacement]

# Rules by op class, so that their total number does not slow down the walk.
RULES: dict[type[CirhOp], tuple[Rule, ...]] = {
    ops.AddOp: (add, on_vectors),
    ops.SubOp: (sub, on_vectors),
    ops.MulOp: (mul, on_vectors),
    ops.DivOp: (div, on_vectors, divide_before_broadcast),
    ops.PowOp: (by_one, square),
    ops.FloorDivOp: (by_one,),
    ops.MaxOp: (same_operands,),
    ops.MinOp: (same_operands,),
    ops.AndOp: (same_operands, bitwise_neutral),
    ops.OrOp: (same_operands, bitwise_neutral),
    ops.XorOp: (bitwise_neutral,),
    # No `on_vectors`, since fusion moves negations out of reshapes.
    ops.NegOp: (neg,),
    ops.NotOp: (logical_not,),
    ops.AbsOp: (idempotent, absolute),
    ops.ReluOp: (idempotent,),
    ops.FloorOp: (idempotent,),
    ops.CeilOp: (idempotent,),
    ops.RoundOp: (idempotent,),
    ops.SignOp: (idempotent,),
    ops.SqrtOp: (on_vectors,),
    ops.RsqrtOp: (on_vectors,),
    ops.ReciprocalOp: (on_vectors,),
    ops.SelectOp: (select, constant_branch_last),
    ops.CastOp: (cast,),
    ops.ReshapeOp: (reshape, reshape_of_broadcast, reshape_of_reduce),
    ops.TransposeOp: (transpose, transpose_of_units, transpose_of_matmul),
    ops.BroadcastInDimOp: (broadcast, broadcast_of_reshape),
    ops.ConcatOp: (concat,),
    ops.SliceOp: (slice_, slice_of_broadcast),
    ops.PadOp: (pad,),
    ops.ReduceOp: (reduce, reduce_to_vector),
    ops.SoftmaxOp: (softmax_of_merged_batches,),
    ops.SoftmaxGradOp: (softmax_of_merged_batches,),
    ops.MatMulOp: (matmul, matmul_of_one_matrix, matmul_of_merged_batches),
}


def simplify(op: CirhOp) -> Replacement:
    """Return the replacement by the first rule that applies to an op, or None."""
    for rule in RULES.get(type(op), ()):
        replacement = rule(op)
        if replacement is not None:
            return replacement
    ordered = constant_to_the_right(op) if type(op) in _COMMUTATIVE else None  # type: ignore[arg-type]
    return sink_channels_first(op) if ordered is None else ordered


_COMMUTATIVE = frozenset(op for op in ops.COMMUTATIVE if issubclass(op, BinaryOp))


@dataclass(frozen=True)
class CanonicalizePass(ModulePass):
    """Applies `RULES` until none applies, and removes ops that become unused."""

    name = "canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place."""
        rewrite_greedily(op, simplify)
