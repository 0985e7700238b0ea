"""Native constraints and rewrites of the patterns of `fuse`: conditions that PDL alone cannot express.

A constraint returns a bool, or its result, or None for no match. The first argument of a rewrite is a
rewriter, which inserts its ops.
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

_MAX_MASK_ELEMENTS = 2**26  # of a mask that is evaluated: 8192 queries and keys

_ROUNDING_TOLERANCE = 1e-6  # relative difference of numbers that differ by rounding to float32 only


def is_float32(value: SSAValue) -> bool:
    """Return True if a value is of float32, as all values are before the precision pass."""
    return dtype_name(tensor_of(value)) == "float32"


def number(value: SSAValue) -> FloatAttr | None:
    """Return the constant that all elements are; None for other values."""
    splat = constant_splat(value)
    return None if splat is None else float_attr(float(splat))


def is_number(value: SSAValue, expected: FloatAttr) -> bool:
    """Return True if all elements are a constant that equals a number, up to rounding."""
    splat = constant_splat(value)
    return splat is not None and math.isclose(float(splat), expected.value.data, rel_tol=_ROUNDING_TOLERANCE)


def is_constant(value: SSAValue) -> bool:
    """Return True if all elements are one constant."""
    return constant_splat(value) is not None


def has_negation_rule(op: ops.NegOp) -> bool:
    """Return True if a user of a negation has a rule for it: a sum, or an odd function."""
    return any(isinstance(use.operation, ops.AddOp | ops.SubOp | ops.ErfOp) for use in op.result.uses)


def is_nonzero(value: SSAValue) -> bool:
    """Return True if all elements are one constant other than 0."""
    return bool(constant_splat(value) or 0)


def is_positive(value: SSAValue) -> bool:
    """Return True if all elements are one constant above 0."""
    splat = constant_splat(value)
    return splat is not None and bool(splat > 0)


def is_scalar(value: SSAValue) -> bool:
    """Return True if all elements are equal: a constant, a rank-0 value or a broadcast of one."""
    owner = value.owner
    is_broadcast = isinstance(owner, ops.BroadcastInDimOp) and not shape_of(owner.x)
    return is_broadcast or not shape_of(value) or is_constant(value)


def reduces_last(op: ops.ReduceOp) -> bool:
    """Return True if a reduction is over the last dimension, which it keeps with size 1."""
    return op.keep_dims and op.dimensions == (len(shape_of(op.x)) - 1,)


def drops_last(op: ops.ReduceOp) -> bool:
    """Return True if a reduction is over the last dimension, which it drops."""
    return not op.keep_dims and op.dimensions == (len(shape_of(op.x)) - 1,)


def reduces_leading(op: ops.ReduceOp) -> bool:
    """Return True if a reduction is over all dimensions but the last, of two or more."""
    rank = len(shape_of(op.x))
    return not op.keep_dims and rank > 1 and op.dimensions == tuple(range(rank - 1))


def reduces_batch(op: ops.ReduceOp) -> bool:
    """Return True if a reduction is over all dimensions but the last two, of three or more."""
    rank = len(shape_of(op.x))
    return not op.keep_dims and rank > 2 and op.dimensions == tuple(range(rank - 2))


def repeats_rows(op: ops.BroadcastInDimOp) -> bool:
    """Return True if a broadcast repeats `[..., 1]` along the last dimension and does nothing else."""
    source, result = shape_of(op.x), shape_of(op.result)
    return len(source) == len(result) and source[-1:] == (1,) and source[:-1] == result[:-1]


def is_same_along_rows(value: SSAValue) -> bool:
    """Return True if all elements along the last dimension are equal: of a constant or a broadcast."""
    owner, last = value.owner, len(shape_of(value)) - 1
    if not isinstance(owner, ops.BroadcastInDimOp):
        return is_constant(value)
    return last not in owner.broadcast_dimensions or shape_of(owner.x)[-1] == 1


def repeats_vector(op: ops.BroadcastInDimOp) -> bool:
    """Return True if a broadcast repeats a vector along all dimensions but the last."""
    shape = shape_of(op.result)
    return op.broadcast_dimensions == (len(shape) - 1,) and shape_of(op.x) == shape[-1:]


def makes_rows_channels(op: ops.TransposeOp) -> bool:
    """Return True if an op transposes `[1, rows, N, 1]`, a reshape of `[..., N]`, to `[1, N, 1, rows]`."""
    source = op.x.owner
    if op.permutation != (0, 2, 3, 1) or not isinstance(source, ops.ReshapeOp):
        return False
    one, _, size, last = shape_of(op.x)
    return one == last == 1 and shape_of(source.x)[-1:] == (size,)


def makes_channels_rows(op: ops.TransposeOp) -> bool:
    """Return True if a transpose undoes that of `makes_rows_channels`."""
    return op.permutation == (0, 3, 1, 2)


def are_consecutive(indices: SSAValue, table: SSAValue) -> bool:
    """Return True if constant indices are consecutive rows of a table, in order."""
    owner = indices.owner
    if not isinstance(owner, ops.ConstOp):
        return False
    rows = owner.to_array().ravel()
    expected = range(int(rows[0]), int(rows[0]) + rows.size) if rows.size else range(0)
    return expected.start >= 0 and 0 < expected.stop <= shape_of(table)[0] and list(expected) == rows.tolist()


def has_epsilon_hat(op: ops.AdamOp) -> bool:
    """Return True if an Adam adds epsilon to the root of the uncorrected v."""
    return not op.corrected_epsilon


def repeats_scalar(op: ops.BroadcastInDimOp) -> bool:
    """Return True if a broadcast repeats a single number."""
    return not shape_of(op.x)


def on_last_axis(op: ops.SoftmaxOp | ops.LogSoftmaxOp | ops.SoftmaxGradOp) -> bool:
    """Return True if the axis of an op is the last dimension."""
    return op.axis == len(shape_of(op.results[0])) - 1


def last_axis(value: SSAValue) -> Attribute:
    """Return the number of the last dimension, as an attribute."""
    return int_attr(len(shape_of(value)) - 1)


def is_masking(value: SSAValue) -> bool:
    """Return True if a constant that replaces a score, or is added to it, makes the probability 0."""
    # Scores vanish in the rounding of such a constant, so in a row where all keys are hidden, both ways have
    # equal scores.
    splat = constant_splat(value)
    return splat is not None and float(splat) <= -1e8


def shows_key_in_every_row(mask: SSAValue) -> bool:
    """Return True if a mask is known to be true for some key of every row."""
    while isinstance(mask.owner, ops.BroadcastInDimOp) and _keeps_rows(mask.owner):
        mask = mask.owner.x
    rows = evaluate_value(mask, _MAX_MASK_ELEMENTS)
    return rows is not None and bool(rows.any(axis=-1).all())


def _keeps_rows(op: ops.BroadcastInDimOp) -> bool:
    """Return True if a broadcast does not change the last dimension."""
    last = len(shape_of(op.result)) - 1
    return op.broadcast_dimensions[-1:] == (last,) and shape_of(op.x)[-1] == shape_of(op.result)[-1]


def is_cast_back(widening: ops.CastOp, narrowing: ops.CastOp) -> bool:
    """Return True if a cast undoes a cast from 16 bits whose result has no other use."""
    narrow = tensor_of(widening.x).element_type
    same = narrow == tensor_of(narrowing.result).element_type
    half = dtype_name(tensor_of(widening.x)) in ("float16", "bfloat16")
    return same and half and is_float32(narrowing.x) and narrowing.x.has_one_use()


def used_twice(value: SSAValue) -> bool:
    """Return True if a value has two readers."""
    return len(set(value.uses)) == 2


def used_once(value: SSAValue) -> bool:
    """Return True if a value has one reader."""
    return value.has_one_use()


def has_rank_3(value: SSAValue) -> bool:
    """Return True if a value has a rank of 3 or more."""
    return len(shape_of(value)) >= 3


def is_probability(value: SSAValue) -> bool:
    """Return True if a value is the result of a softmax."""
    owner = value.owner
    if isinstance(owner, ops.AttentionOp):
        return value is owner.probabilities
    return isinstance(owner, ops.SoftmaxOp)


def is_complement(value: SSAValue, other: SSAValue) -> bool:
    """Return True if two constants add up to 1, up to rounding."""
    first, second = constant_splat(value), constant_splat(other)
    if first is None or second is None:
        return False
    return math.isclose(float(first) + float(second), 1.0, rel_tol=_ROUNDING_TOLERANCE)


def unbroadcast(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the operand of a broadcast that keeps the rank, else the value itself."""
    owner = value.owner
    if isinstance(owner, ops.BroadcastInDimOp) and len(shape_of(owner.x)) == len(shape_of(value)):
        return owner.x
    return value


def _number_of(value: SSAValue) -> float:
    splat = constant_splat(value)
    assert splat is not None, "patterns check this first"
    return float(splat)


def scalar(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the rank-0 value that all elements of a constant or a broadcast equal."""
    owner = value.owner
    if isinstance(owner, ops.BroadcastInDimOp) and not shape_of(owner.x):
        return owner.x
    return value if not shape_of(value) else _constant(rewriter, _number_of(value), value)


def one_minus(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the rank-0 constant `1 - value`."""
    return _constant(rewriter, 1.0 - _number_of(value), value)


def as_row_vector(rewriter: PatternRewriter, value: SSAValue, x: SSAValue) -> SSAValue:
    """Return the constant that all elements of a value equal, as a vector along the last dimension of x."""
    vector = tensor_type(shape_of(x)[-1:], tensor_of(value).element_type)
    return splat_value(rewriter, _number_of(value), vector)


def lookup_as_slice(rewriter: PatternRewriter, table: SSAValue, lookup: ops.GatherOp) -> SSAValue:
    """Return the rows of a lookup of consecutive indices, as a slice."""
    first, count = _first_and_count(lookup.indices)
    _, *row = shape_of(table)
    rows = ops.SliceOp(table, [first, *[0] * len(row)], [first + count, *row], [1] * (1 + len(row)))
    return _insert(rewriter, ops.ReshapeOp(_insert(rewriter, rows), shape_of(lookup.result)))


def scatter_as_padding(rewriter: PatternRewriter, scatter: ops.ScatterNdOp) -> SSAValue:
    """Return a scatter to consecutive indices as padding of the updates."""
    first, count = _first_and_count(scatter.indices)
    rows, *row = shape_of(scatter.result)
    padding = _constant(rewriter, 0.0, scatter.result)
    unpadded = [0] * len(row)
    padded = ops.PadOp(scatter.updates, padding, [first, *unpadded], [rows - first - count, *unpadded])
    return _insert(rewriter, padded)


def _first_and_count(indices: SSAValue) -> tuple[int, int]:
    """Return (first, count) of consecutive indices."""
    assert isinstance(indices.owner, ops.ConstOp), "patterns check this first"
    rows = indices.owner.to_array().ravel()
    return int(rows[0]), rows.size


def all_rows(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the matrix of all rows of a batch of matrices."""
    *leading, columns = shape_of(value)
    return _insert(rewriter, ops.ReshapeOp(value, (math.prod(leading), columns)))


def negated_constant(rewriter: PatternRewriter, value: SSAValue) -> SSAValue:
    """Return the negative of a constant."""
    return splat_value(rewriter, -_number_of(value), tensor_of(value))


def ratio(rewriter: PatternRewriter, value: SSAValue, divisor: SSAValue) -> SSAValue:
    """Return the rank-0 quotient of two constants."""
    return _constant(rewriter, _number_of(value) / _number_of(divisor), value)


def zero(rewriter: PatternRewriter, like: SSAValue) -> SSAValue:
    """Return the rank-0 constant 0."""
    return _constant(rewriter, 0.0, like)


def _constant(rewriter: PatternRewriter, value: float, like: SSAValue) -> SSAValue:
    constant = ops.ConstOp.splat(value, tensor_type((), tensor_of(like).element_type))
    return _insert(rewriter, constant)


def select_where(
    rewriter: PatternRewriter, mask: SSAValue, on_true: SSAValue, on_false: SSAValue
) -> SSAValue:
    """Return one value where the mask is true, and another one elsewhere."""
    return _insert(rewriter, ops.SelectOp(mask, on_true, on_false))


def has_visible_key(rewriter: PatternRewriter, visible: SSAValue, query: SSAValue) -> SSAValue:
    """Return the mask of queries `[..., L, D]` for which a mask of scores `[..., L, S]` shows any key."""
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
        is_nonzero,
        is_positive,
        is_scalar,
        has_negation_rule,
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
        are_consecutive,
        on_last_axis,
        last_axis,
        used_once,
        used_twice,
        is_masking,
        shows_key_in_every_row,
        has_rank_3,
        is_probability,
        is_complement,
        is_cast_back,
        *SUM_CONSTRAINTS,
    )
}

# By the name in patterns.
REWRITES: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        unbroadcast,
        scalar,
        all_rows,
        as_row_vector,
        lookup_as_slice,
        scatter_as_padding,
        negated_constant,
        one_minus,
        ratio,
        zero,
        select_where,
        has_visible_key,
        zeros,
        ones,
        *SUM_REWRITES,
    )
}
