"""Native constraints and rewrites of the patterns of `fuse`: conditions that PDL alone cannot express.

A constraint returns a truth value, or its result, None for no match. The first argument of a rewrite is a
rewriter, with which it makes ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.pattern_rewriter import PatternRewriter

from cgc.cirh import ops
from cgc.cirh.base import CirhOp, float_attr, int_attr
from cgc.cirh.types import dtype_name, shape_of, tensor_of, tensor_type
from cgc.passes.channels_last import brings_channels_first
from cgc.passes.constant_fold import constant_splat, evaluate_value, splat_value
from cgc.passes.matching import Constraint
from cgc.passes.sums import SUM_CONSTRAINTS, SUM_REWRITES

_LARGEST_MASK = 2**26  # elements of a mask that is looked at: 8192 queries of as many keys

_ROUNDING = 1e-6  # relative difference of numbers that differ by rounding to float32 only


def is_float32(value: SSAValue) -> bool:
    """Return whether a value is of float32; patterns are for programs before the choice of precision."""
    return dtype_name(tensor_of(value)) == "float32"


def number(value: SSAValue) -> FloatAttr | None:
    """Return the number that every element is known to be."""
    splat = constant_splat(value)
    return None if splat is None else float_attr(float(splat))


def is_number(value: SSAValue, expected: FloatAttr) -> bool:
    """Return whether every element is known to be this number, but for rounding."""
    splat = constant_splat(value)
    return splat is not None and math.isclose(float(splat), expected.value.data, rel_tol=_ROUNDING)


def is_constant(value: SSAValue) -> bool:
    """Return whether every element is known to be one number."""
    return constant_splat(value) is not None


def is_taken_in(op: ops.NegOp) -> bool:
    """Return whether an op that has a rule for negations reads this one: a sum, or an odd function."""
    return any(isinstance(use.operation, ops.AddOp | ops.SubOp | ops.ErfOp) for use in op.result.uses)


def is_other_than_zero(value: SSAValue) -> bool:
    """Return whether every element is known to be one number, which can be divided by."""
    return bool(constant_splat(value) or 0)


def is_positive(value: SSAValue) -> bool:
    """Return whether every element is known to be one number above 0."""
    splat = constant_splat(value)
    return splat is not None and bool(splat > 0)


def is_scalar(value: SSAValue) -> bool:
    """Return whether every element is one number: a constant, a rank-0 value or one that is repeated."""
    owner = value.owner
    repeated = isinstance(owner, ops.BroadcastInDimOp) and not shape_of(owner.x)
    return repeated or not shape_of(value) or is_constant(value)


def reduces_last(op: ops.ReduceOp) -> bool:
    """Return whether a reduction is over the last dimension, which stays with size 1."""
    return op.keep_dims and op.dimensions == (len(shape_of(op.x)) - 1,)


def drops_last(op: ops.ReduceOp) -> bool:
    """Return whether a reduction is over the last dimension, which goes."""
    return not op.keep_dims and op.dimensions == (len(shape_of(op.x)) - 1,)


def reduces_leading(op: ops.ReduceOp) -> bool:
    """Return whether a reduction is over all dimensions but the last, of two or more."""
    rank = len(shape_of(op.x))
    return not op.keep_dims and rank > 1 and op.dimensions == tuple(range(rank - 1))


def reduces_batch(op: ops.ReduceOp) -> bool:
    """Return whether a reduction is over all dimensions but the last two, of three or more."""
    rank = len(shape_of(op.x))
    return not op.keep_dims and rank > 2 and op.dimensions == tuple(range(rank - 2))


def repeats_rows(op: ops.BroadcastInDimOp) -> bool:
    """Return whether a broadcast repeats `[..., 1]` along the last dimension and does nothing else."""
    source, result = shape_of(op.x), shape_of(op.result)
    return len(source) == len(result) and source[-1:] == (1,) and source[:-1] == result[:-1]


def is_same_along_rows(value: SSAValue) -> bool:
    """Return whether all elements along the last dimension are equal: a constant, or repeated numbers."""
    owner, last = value.owner, len(shape_of(value)) - 1
    if not isinstance(owner, ops.BroadcastInDimOp):
        return is_constant(value)
    return last not in owner.broadcast_dimensions or shape_of(owner.x)[-1] == 1


def repeats_vector(op: ops.BroadcastInDimOp) -> bool:
    """Return whether a broadcast repeats a vector along all dimensions but the last."""
    shape = shape_of(op.result)
    return op.broadcast_dimensions == (len(shape) - 1,) and shape_of(op.x) == shape[-1:]


def makes_rows_channels(op: ops.TransposeOp) -> bool:
    """Return whether an op makes `[1, N, 1, rows]` of the reshaped `[1, rows, N, 1]` of `[..., N]`."""
    source = op.x.owner
    if op.permutation != (0, 2, 3, 1) or not isinstance(source, ops.ReshapeOp):
        return False
    one, _, size, last = shape_of(op.x)
    return one == last == 1 and shape_of(source.x)[-1:] == (size,)


def makes_channels_rows(op: ops.TransposeOp) -> bool:
    """Return whether a transpose undoes that of `makes_rows_channels`."""
    return op.permutation == (0, 3, 1, 2)


def counts_up(places: SSAValue, table: SSAValue) -> bool:
    """Return whether constant places are consecutive rows of a table, in order."""
    owner = places.owner
    if not isinstance(owner, ops.ConstOp):
        return False
    rows = owner.to_array().ravel()
    wanted = range(int(rows[0]), int(rows[0]) + rows.size) if rows.size else range(0)
    return wanted.start >= 0 and 0 < wanted.stop <= shape_of(table)[0] and list(wanted) == rows.tolist()


def has_epsilon_hat(op: ops.AdamOp) -> bool:
    """Return whether an Adam adds epsilon to the root of the uncorrected v."""
    return not op.corrected_epsilon


def repeats_scalar(op: ops.BroadcastInDimOp) -> bool:
    """Return whether a broadcast repeats a single number."""
    return not shape_of(op.x)


def on_last_axis(op: ops.SoftmaxOp | ops.LogSoftmaxOp | ops.SoftmaxGradOp) -> bool:
    """Return whether an op with an axis works along the last dimension."""
    return op.axis == len(shape_of(op.results[0])) - 1


def last_axis(value: SSAValue) -> Attribute:
    """Return the number of the last dimension, as an attribute."""
    return int_attr(len(shape_of(value)) - 1)


def hides(value: SSAValue) -> bool:
    """Return whether a constant in the place of a score, or added to it, leaves nothing of the probability.

    It is so large that scores vanish in its rounding: in a row where all are hidden they are equal both ways.
    """
    splat = constant_splat(value)
    return splat is not None and float(splat) <= -1e8


def shows_something(mask: SSAValue) -> bool:
    """Return whether a mask is known to hold somewhere in every row of its last dimension."""
    while isinstance(mask.owner, ops.BroadcastInDimOp) and _keeps_rows(mask.owner):
        mask = mask.owner.x
    rows = evaluate_value(mask, _LARGEST_MASK)
    return rows is not None and bool(rows.any(axis=-1).all())


def _keeps_rows(op: ops.BroadcastInDimOp) -> bool:
    """Return whether a broadcast leaves the last dimension as it is."""
    last = len(shape_of(op.result)) - 1
    return op.broadcast_dimensions[-1:] == (last,) and shape_of(op.x)[-1] == shape_of(op.result)[-1]


def is_cast_back(widening: ops.CastOp, narrowing: ops.CastOp) -> bool:
    """Return whether a cast undoes an earlier one of 16-bit numbers, whose result nothing else reads."""
    narrow = tensor_of(widening.x).element_type
    same = narrow == tensor_of(narrowing.result).element_type
    half = dtype_name(tensor_of(widening.x)) in ("float16", "bfloat16")
    return same and half and is_float32(narrowing.x) and narrowing.x.has_one_use()


def used_twice(value: SSAValue) -> bool:
    """Return whether a value has two readers."""
    return len(set(value.uses)) == 2


def used_once(value: SSAValue) -> bool:
    """Return whether a value has one reader."""
    return value.has_one_use()


def has_rank_3(value: SSAValue) -> bool:
    """Return whether a value has a rank of 3 or more."""
    return len(shape_of(value)) >= 3


def is_probability(value: SSAValue) -> bool:
    """Return whether a value is the result of a softmax."""
    owner = value.owner
    if isinstance(owner, ops.AttentionOp):
        return value is owner.probabilities
    return isinstance(owner, ops.SoftmaxOp)


def complement(value: SSAValue, other: SSAValue) -> bool:
    """Return whether two constants add up to 1, but for rounding."""
    first, second = constant_splat(value), constant_splat(other)
    if first is None or second is None:
        return False
    return math.isclose(float(first) + float(second), 1.0, rel_tol=_ROUNDING)


def narrowest(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the operand of a broadcast that keeps the rank, else the value itself."""
    owner = value.owner
    if isinstance(owner, ops.BroadcastInDimOp) and len(shape_of(owner.x)) == len(shape_of(value)):
        return owner.x
    return value


def _number_of(value: SSAValue) -> float:
    splat = constant_splat(value)
    assert splat is not None, "patterns ask before whether it is a constant"
    return float(splat)


def scalar(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the rank-0 number that every element of a constant or a broadcast is."""
    owner = value.owner
    if isinstance(owner, ops.BroadcastInDimOp) and not shape_of(owner.x):
        return owner.x
    return value if not shape_of(value) else _constant(rewriter, _number_of(value), value)


def one_less(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the rank-0 constant `1 - value`."""
    return _constant(rewriter, 1.0 - _number_of(value), value)


def along_rows(rewriter: PatternRewriter, value: SSAValue, x: SSAValue) -> SSAValue:
    """Return the number that every element of a value is, as a vector along the last dimension of x."""
    vector = tensor_type(shape_of(x)[-1:], tensor_of(value).element_type)
    return splat_value(rewriter, _number_of(value), vector)


def rows_from(rewriter: PatternRewriter, table: SSAValue, lookup: ops.GatherOp) -> SSAValue:
    """Return the rows of a lookup whose places count up, as a slice."""
    first, count = _places(lookup.indices)
    _, *row = shape_of(table)
    rows = ops.SliceOp(table, [first, *[0] * len(row)], [first + count, *row], [1] * (1 + len(row)))
    return _insert(rewriter, ops.ReshapeOp(_insert(rewriter, rows), shape_of(lookup.result)))


def rows_at(rewriter: PatternRewriter, scatter: ops.ScatterNdOp) -> SSAValue:
    """Return a scatter to consecutive places as padding."""
    first, count = _places(scatter.indices)
    rows, *row = shape_of(scatter.result)
    nothing = _constant(rewriter, 0.0, scatter.result)
    inside = [0] * len(row)
    padded = ops.PadOp(scatter.updates, nothing, [first, *inside], [rows - first - count, *inside])
    return _insert(rewriter, padded)


def _places(places: SSAValue) -> tuple[int, int]:
    """Return (first, count) of places that count up."""
    assert isinstance(places.owner, ops.ConstOp), "patterns ask before whether they do"
    rows = places.owner.to_array().ravel()
    return int(rows[0]), rows.size


def all_rows(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the matrix of all rows of a batch of matrices."""
    *leading, columns = shape_of(value)
    return _insert(rewriter, ops.ReshapeOp(value, (math.prod(leading), columns)))


def negated_constant(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the constant of the same type with the other sign."""
    return splat_value(rewriter, -_number_of(value), tensor_of(value))


def ratio(rewriter: PatternRewriter, value: SSAValue, divisor: SSAValue) -> SSAValue:
    """Return the rank-0 quotient of two constants."""
    return _constant(rewriter, _number_of(value) / _number_of(divisor), value)


def zero(rewriter: PatternRewriter, like: SSAValue) -> SSAValue:
    """Return the rank-0 constant 0."""
    return _constant(rewriter, 0.0, like)


def _constant(rewriter: PatternRewriter, value: float, like: SSAValue) -> SSAValue:
    made = ops.ConstOp.splat(value, tensor_type((), tensor_of(like).element_type))
    return _insert(rewriter, made)


def selected(rewriter: PatternRewriter, mask: SSAValue, on_true: SSAValue, on_false: SSAValue) -> SSAValue:
    """Return one value where the mask holds, else another."""
    return _insert(rewriter, ops.SelectOp(mask, on_true, on_false))


def rows_shown(rewriter: PatternRewriter, visible: SSAValue, query: SSAValue) -> SSAValue:
    """Return whether a mask of scores `[..., L, S]` shows any key, in the shape of queries `[..., L, D]`."""
    dims = tuple(range(len(shape_of(visible))))
    if isinstance(visible.owner, ops.BroadcastInDimOp) and _keeps_rows(visible.owner):
        dims, visible = visible.owner.broadcast_dimensions, visible.owner.x
    any_key = ops.ReduceOp(visible, "OR", (len(shape_of(visible)) - 1,), keep_dims=True)
    return _insert(rewriter, ops.BroadcastInDimOp(_insert(rewriter, any_key), shape_of(query), dims))


def zeros(rewriter: PatternRewriter, like: SSAValue) -> SSAValue:
    """Return the constant 0 of the same type."""
    return splat_value(rewriter, 0.0, tensor_of(like))


def ones(rewriter: PatternRewriter, like: SSAValue) -> SSAValue:
    """Return the constant 1 of the same type."""
    return splat_value(rewriter, 1.0, tensor_of(like))


def _insert(rewriter: PatternRewriter, op: CirhOp) -> SSAValue:
    rewriter.insert(op)
    return op.results[0]


# By the name in patterns.
CONSTRAINTS: Mapping[str, Constraint] = {
    function.__name__: function
    for function in (
        is_float32,
        number,
        is_number,
        is_constant,
        is_other_than_zero,
        is_positive,
        is_scalar,
        is_taken_in,
        brings_channels_first,
        reduces_last,
        drops_last,
        reduces_leading,
        reduces_batch,
        repeats_rows,
        is_same_along_rows,
        repeats_vector,
        has_epsilon_hat,
        repeats_scalar,
        makes_rows_channels,
        makes_channels_rows,
        counts_up,
        on_last_axis,
        last_axis,
        used_once,
        used_twice,
        hides,
        shows_something,
        has_rank_3,
        is_probability,
        complement,
        is_cast_back,
        *SUM_CONSTRAINTS,
    )
}

# By the name in patterns.
REWRITES: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        narrowest,
        scalar,
        all_rows,
        along_rows,
        rows_from,
        rows_at,
        negated_constant,
        one_less,
        ratio,
        zero,
        selected,
        rows_shown,
        zeros,
        ones,
        *SUM_REWRITES,
    )
}
