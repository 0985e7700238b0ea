"""Canonicalization of matrix products, and of the softmax between two of them in an attention.

As in `cgc.passes.canonicalize`, every rule preserves the result bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.types import shape_of
from cgc.passes.rewriting import Replacement


def matmul(op: ops.MatMulOp) -> Replacement:
    """Replace a transpose of the last two dimensions of an operand with a flag of the product."""
    sides = [_with_ascending_rows(op.a, op.transpose_a), _with_ascending_rows(op.b, op.transpose_b)]
    if all(side is None for side in sides):
        return None
    new: list[CirhOp] = []
    operands: list[SSAValue] = []
    flags = [op.transpose_a, op.transpose_b]
    for index, side in enumerate(sides):
        if isinstance(side, CirhOp):
            new.append(side)
        operands.append(op.operands[index] if side is None else SSAValue.get(side))
        flags[index] ^= side is not None
    return *new, ops.MatMulOp(operands[0], operands[1], flags[0], flags[1])


def _with_ascending_rows(value: SSAValue, flag: bool) -> SSAValue | ops.TransposeOp | None:
    """Return the operand for the opposite transpose flag; None if the flag need not change.

    Afterwards, the last two dimensions of the operand are in the order of the source of its transpose.
    """
    inner = value.owner
    if not isinstance(inner, ops.TransposeOp):
        return None
    *batch, rows, columns = inner.permutation
    if rows < columns:
        return None
    if [*batch, columns, rows] == list(range(len(inner.permutation))):
        return inner.x
    return ops.TransposeOp(inner.x, [*batch, columns, rows])


def transpose_of_matmul(op: ops.TransposeOp) -> Replacement:
    """`(a b)^T` -> `b^T a^T` if a transpose moves the columns of a product before its rows."""
    inner = op.x.owner
    if not isinstance(inner, ops.MatMulOp) or not op.x.has_one_use():
        return None
    rank = len(op.permutation)
    if op.permutation.index(rank - 1) > op.permutation.index(rank - 2):
        return None
    other = ops.MatMulOp(inner.b, inner.a, not inner.transpose_b, not inner.transpose_a)
    swapped = {rank - 1: rank - 2, rank - 2: rank - 1}
    return other, ops.TransposeOp(other, [swapped.get(dim, dim) for dim in op.permutation])


def matmul_of_one_matrix(op: ops.MatMulOp) -> Replacement:
    """Replace a product of a batch and a broadcast matrix with a product of all rows and the matrix."""
    inner = op.b.owner
    if not isinstance(inner, ops.BroadcastInDimOp) or op.transpose_a:
        return None
    shape = shape_of(op.b)
    rank = len(shape)
    if inner.broadcast_dimensions != (rank - 2, rank - 1) or shape_of(inner.x) != shape[-2:] or rank < 3:
        return None
    rows = ops.ReshapeOp(op.a, (math.prod(shape_of(op.a)[:-1]), shape_of(op.a)[-1]))
    product = ops.MatMulOp(rows, inner.x, transpose_b=op.transpose_b)
    return rows, product, ops.ReshapeOp(product, shape_of(op.result))


def matmul_of_merged_batches(op: ops.MatMulOp) -> Replacement:
    """Multiply operands before their batch dimensions are merged, `[b, h, ...]` instead of `[b * h, ...]`.

    Products whose operands or results other ops use keep their shape, as do these ops.
    """
    values = (op.a, op.b, op.result)
    if any(map(_is_used_elsewhere, values)):
        return None
    split = [
        shape_of(reshaped)[:-2]
        for value in values
        for reshaped in _other_shape(value)
        if _merges_batches(shape_of(reshaped), shape_of(value))
    ]
    # A part of a split has [1, b, h] where the other operand has [b, h]: take the shorter one.
    return _matmul_of_batches(op, min(split, key=len)) if split else None


def _is_used_elsewhere(value: SSAValue) -> bool:
    """Return True if an op other than a product or a move computes or reads a value."""
    if isinstance(value.owner, ops.MatMulOp):
        return any(not isinstance(use.operation, _MOVES) for use in value.uses)
    return isinstance(value.owner, CirhOp) and not isinstance(value.owner, _MOVES)


_MOVES = (ops.MatMulOp, ops.ReshapeOp, ops.TransposeOp, ops.BroadcastInDimOp, ops.SliceOp, ops.SplitOp)


def _other_shape(value: SSAValue) -> list[SSAValue]:
    """Return the value that a value is a reshape of, or the reshape that is its only user; at most one."""
    if isinstance(value.owner, ops.ReshapeOp):
        return [value.owner.x]
    users = [use.operation for use in value.uses] if isinstance(value.owner, ops.MatMulOp) else []
    return [user.result for user in users if isinstance(user, ops.ReshapeOp)] if len(users) == 1 else []


def _merges_batches(split: Sequence[int], merged: Sequence[int]) -> bool:
    """Return True if a shape has several batch dimensions that another one merges into one."""
    return len(split) > len(merged) == 3 and tuple(split[-2:]) == tuple(merged[-2:])


def _matmul_of_batches(op: ops.MatMulOp, batches: Sequence[int]) -> tuple[CirhOp, ...]:
    """Multiply matrices in other leading dimensions, and reshape the result to the original shape."""
    a, b = (ops.ReshapeOp(value, (*batches, *shape_of(value)[-2:])) for value in (op.a, op.b))
    product = ops.MatMulOp(a, b, op.transpose_a, op.transpose_b)
    return a, b, product, ops.ReshapeOp(product, shape_of(op.result))


def softmax_of_merged_batches(op: ops.SoftmaxOp | ops.SoftmaxGradOp) -> Replacement:
    """Compute a softmax, or its gradient, before the batch dimensions are merged."""
    inner = op.operands[-1].owner
    merged = shape_of(op.results[0])
    if not isinstance(inner, ops.ReshapeOp) or op.axis != 2 or not _merges_batches(shape_of(inner.x), merged):
        return None
    operands = [ops.ReshapeOp(value, shape_of(inner.x)) for value in op.operands]
    softmax = (
        ops.SoftmaxOp(operands[0])
        if isinstance(op, ops.SoftmaxOp)
        else ops.SoftmaxGradOp(operands[0], operands[1])
    )
    return *operands, softmax, ops.ReshapeOp(softmax, merged)
