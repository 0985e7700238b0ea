"""Statistics of channels as vectors: `[channels]` where a program writes `[1, ..., 1, channels]`.

Rules of canonicalization: a reduction over all dimensions but the last drops them, and what is computed from
its result is computed on vectors, up to the broadcast that repeats them.
"""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.elementwise import BinaryOp, UnaryOp
from cgc.cirh.types import shape_of, tensor_of, tensor_type
from cgc.passes.rewriting import Replacement
from cgc.passes.values import constant_splat


def over_all_but_the_last(op: ops.ReduceOp) -> bool:
    """Whether a reduction leaves the last dimension alone, of two or more."""
    rank = len(shape_of(op.x))
    return rank > 1 and op.dimensions == tuple(range(rank - 1))


def reduce_to_vector(op: ops.ReduceOp) -> Replacement:
    """Dimensions that a reduction of channels keeps are added to its result."""
    if not op.keep_dims or not over_all_but_the_last(op):
        return None
    vector = ops.ReduceOp(op.x, op.reduce_kind, op.dimensions)
    return vector, ops.ReshapeOp(vector, shape_of(op.result))


def on_vectors(op: UnaryOp | BinaryOp) -> Replacement:
    """`f([c] -> [1, ..., 1, c])` -> `f([c]) -> [1, ..., 1, c]`, of constants and such vectors."""
    shape = shape_of(op.results[0])
    if len(shape) < 2 or math.prod(shape[:-1]) != 1:
        return None
    if not any(isinstance(operand.owner, ops.ReshapeOp) for operand in op.operands):
        return None
    made: list[CirhOp] = []
    vectors = [_vector(operand, made) for operand in op.operands]
    found = [vector for vector in vectors if vector is not None]
    if len(found) < len(vectors):
        return None
    result = type(op)(*found)
    return *made, result, ops.ReshapeOp(result, shape)


def _vector(value: SSAValue, made: list[CirhOp]) -> SSAValue | None:
    """The vector that a value is a reshape of; for a number everywhere a constant, which joins `made`."""
    owner, size = value.owner, shape_of(value)[-1]
    if isinstance(owner, ops.ReshapeOp) and shape_of(owner.x) == (size,):
        return owner.x
    splat = constant_splat(value)
    if splat is None:
        return None
    constant = ops.ConstOp.splat(splat, tensor_type((size,), tensor_of(value).element_type))
    made.append(constant)
    return constant.result
