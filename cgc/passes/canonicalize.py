"""Canonicalization: one simple form for what can be written in several ways.

Every rule keeps the result bit for bit, for NaN, infinities and signed zeros too (only which NaN comes out of
an operation on NaN is left open, as it is by IEEE 754). Hence `x + 0.0` stays, because -0.0 + 0.0 is 0.0, but
`x + -0.0` and `x - 0.0` are x; `x * 0` and `x - x` stay. Sums are never reordered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern
from xdsl.traits import Commutative

from cgc.cirh import ops
from cgc.cirh.base import DEBUG_ATTRIBUTES, CirhOp
from cgc.cirh.elementwise import BinaryOp, UnaryOp
from cgc.cirh.types import FLOATS, element_count, element_type, numpy_dtype, shape_of, tensor_of
from cgc.passes.values import constant_splat, is_splat_of

Replacement: TypeAlias = SSAValue | CirhOp | None
"""What a rule returns: a value or a new op that computes the same, or None where the rule does not apply."""

_INVERSE_DIRECTION = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}


_FLOAT_ELEMENTS = frozenset(element_type(name) for name in FLOATS)


def _is_float(value: SSAValue) -> bool:
    return tensor_of(value).element_type in _FLOAT_ELEMENTS


def constant_to_the_right(op: BinaryOp) -> Replacement:
    """`const + x` -> `x + const`, for commutative ops."""
    if isinstance(op.lhs.owner, ops.ConstOp) and not isinstance(op.rhs.owner, ops.ConstOp):
        return type(op)(op.rhs, op.lhs)
    return None


def same_operands(op: BinaryOp) -> Replacement:
    """`max(x, x)` -> `x`; likewise min, and, or."""
    return op.lhs if op.lhs is op.rhs else None


def _both_ways(op: BinaryOp) -> tuple[tuple[SSAValue, SSAValue], tuple[SSAValue, SSAValue]]:
    return (op.lhs, op.rhs), (op.rhs, op.lhs)


def add(op: ops.AddOp) -> Replacement:
    """`x + -0.0` -> `x` (integers: `x + 0`); `x + -y` -> `x - y`."""
    zero = -0.0 if _is_float(op.result) else 0
    for x, other in _both_ways(op):
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
    """`x * 1` -> `x`; `x * -1` -> `-x` for floats and signed integers; `x * 0` -> `0` for integers alone."""
    for x, other in _both_ways(op):
        if is_splat_of(other, 1):
            return x
        if is_splat_of(other, -1):
            return ops.NegOp(x)
        if not _is_float(op.result) and is_splat_of(other, 0):
            return other
    return None


def div(op: ops.DivOp) -> Replacement:
    """`x / 1` -> `x`; `x / -1` -> `-x`."""
    if is_splat_of(op.rhs, 1):
        return op.lhs
    return ops.NegOp(op.lhs) if is_splat_of(op.rhs, -1) else None


def by_one(op: BinaryOp) -> Replacement:
    """`x ** 1` -> `x`; `x // 1` -> `x` for integers (floats are rounded by it)."""
    rounds = isinstance(op, ops.FloorDivOp) and _is_float(op.result)
    return op.lhs if not rounds and is_splat_of(op.rhs, 1) else None


def bitwise_neutral(op: BinaryOp) -> Replacement:
    """`x and true`, `x or false`, `x xor false` -> `x`, and the same with all bits of integers."""
    for x, other in _both_ways(op):
        splat = constant_splat(other)
        if splat is not None and (np.invert(splat) if isinstance(op, ops.AndOp) else splat) == 0:
            return x
    return None


def neg(op: ops.NegOp) -> Replacement:
    """`-(-x)` -> `x`."""
    return op.x.owner.x if isinstance(op.x.owner, ops.NegOp) else None


def logical_not(op: ops.NotOp) -> Replacement:
    """`not not x` -> `x`; `not (a == b)` -> `a != b`. The orderings are inverted for integers only (NaN)."""
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
    """Equal branches; a constant condition; a negated condition."""
    if op.on_true is op.on_false:
        return op.on_true
    cond = constant_splat(op.cond)
    if cond is not None:
        return op.on_true if cond else op.on_false
    if isinstance(op.cond.owner, ops.NotOp):
        return ops.SelectOp(op.cond.owner.x, op.on_false, op.on_true)
    return None


def cast(op: ops.CastOp) -> Replacement:
    """A cast to the same type; a cast after a cast that lost nothing."""
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
    """A reshape to the same shape; a reshape of a reshape."""
    if op.x.type == op.result.type:
        return op.x
    inner = op.x.owner
    return ops.ReshapeOp(inner.x, shape_of(op.result)) if isinstance(inner, ops.ReshapeOp) else None


def transpose(op: ops.TransposeOp) -> Replacement:
    """The identity; a transpose of a transpose."""
    if op.permutation == tuple(range(len(op.permutation))):
        return op.x
    inner = op.x.owner
    if isinstance(inner, ops.TransposeOp):
        return ops.TransposeOp(inner.x, [inner.permutation[dim] for dim in op.permutation])
    return None


def broadcast(op: ops.BroadcastInDimOp) -> Replacement:
    """A broadcast that repeats nothing is x or a reshape; a broadcast of a broadcast."""
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
    """A reshape that only adds dimensions of size 1 goes into the broadcast: `[10] -> [1, 10] -> [8, 10]`."""
    inner = op.x.owner
    if not isinstance(inner, ops.ReshapeOp):
        return None
    source, between = shape_of(inner.x), shape_of(inner.result)
    kept = [dim for dim, size in enumerate(between) if size != 1]
    if tuple(between[dim] for dim in kept) != source:
        return None
    dims = [op.broadcast_dimensions[dim] for dim in kept]
    return ops.BroadcastInDimOp(inner.x, shape_of(op.result), dims)


def concat(op: ops.ConcatOp) -> Replacement:
    """A single operand."""
    return op.xs[0] if len(op.xs) == 1 else None


def slice_(op: ops.SliceOp) -> Replacement:
    """A slice of everything; a slice of a slice."""
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


def pad(op: ops.PadOp) -> Replacement:
    """No padding."""
    return op.x if op.x.type == op.result.type else None


def reduce(op: ops.ReduceOp) -> Replacement:
    """A reduction over no dimensions."""
    return None if op.dimensions else op.x


def matmul(op: ops.MatMulOp) -> Replacement:
    """A transpose of the last two dimensions of an operand becomes the flag of the product."""
    a, transpose_a = _through_transpose(op.a, op.transpose_a)
    b, transpose_b = _through_transpose(op.b, op.transpose_b)
    if a is op.a and b is op.b:
        return None
    return ops.MatMulOp(a, b, transpose_a, transpose_b)


def _through_transpose(value: SSAValue, flag: bool) -> tuple[SSAValue, bool]:
    inner = value.owner
    if isinstance(inner, ops.TransposeOp):
        rank = len(inner.permutation)
        if inner.permutation == (*range(rank - 2), rank - 1, rank - 2):
            return inner.x, not flag
    return value, flag


Rule: TypeAlias = Callable[[Any], Replacement]

RULES: dict[type[CirhOp], tuple[Rule, ...]] = {
    ops.AddOp: (add,),
    ops.SubOp: (sub,),
    ops.MulOp: (mul,),
    ops.DivOp: (div,),
    ops.PowOp: (by_one,),
    ops.FloorDivOp: (by_one,),
    ops.MaxOp: (same_operands,),
    ops.MinOp: (same_operands,),
    ops.AndOp: (same_operands, bitwise_neutral),
    ops.OrOp: (same_operands, bitwise_neutral),
    ops.XorOp: (bitwise_neutral,),
    ops.NegOp: (neg,),
    ops.NotOp: (logical_not,),
    ops.AbsOp: (idempotent, absolute),
    ops.ReluOp: (idempotent,),
    ops.FloorOp: (idempotent,),
    ops.CeilOp: (idempotent,),
    ops.RoundOp: (idempotent,),
    ops.SignOp: (idempotent,),
    ops.SelectOp: (select,),
    ops.CastOp: (cast,),
    ops.ReshapeOp: (reshape,),
    ops.TransposeOp: (transpose,),
    ops.BroadcastInDimOp: (broadcast, broadcast_of_reshape),
    ops.ConcatOp: (concat,),
    ops.SliceOp: (slice_,),
    ops.PadOp: (pad,),
    ops.ReduceOp: (reduce,),
    ops.MatMulOp: (matmul,),
}
"""Op class -> its rules. They are looked up by class, so their number does not slow down the walk."""


class _ApplyRules(RewritePattern):
    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if not isinstance(op, CirhOp):
            return
        replacement = _first_replacement(op)
        if isinstance(replacement, CirhOp):
            _copy_debug_attributes(op, replacement)
            rewriter.replace(op, replacement)
        elif replacement is not None:
            rewriter.replace(op, [], [replacement])


def _first_replacement(op: CirhOp) -> Replacement:
    for rule in RULES.get(type(op), ()):
        replacement = rule(op)
        if replacement is not None:
            return replacement
    if isinstance(op, BinaryOp) and op.has_trait(Commutative):
        return constant_to_the_right(op)
    return None


def _copy_debug_attributes(source: CirhOp, target: CirhOp) -> None:
    for name in DEBUG_ATTRIBUTES & source.attributes.keys():
        target.attributes[name] = source.attributes[name]


@dataclass(frozen=True)
class CanonicalizePass(ModulePass):
    """Applies `RULES` until none applies. Ops that become unused stay; `dce` removes them."""

    name = "canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites the module in place."""
        PatternRewriteWalker(_ApplyRules()).rewrite_module(op)
