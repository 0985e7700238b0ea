"""Linear systems, inverses and determinants, by the factors of a matrix."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import gather
from cgc.importers.emit import Emitter, broadcast_shape


def adjoint(e: Emitter, x: SSAValue) -> SSAValue:
    """Return matrices in the last two axes, transposed."""
    rank = len(shape_of(x))
    return e.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def eye(e: Emitter, like: SSAValue) -> SSAValue:
    """Return the identity in the shape of square matrices."""
    shape = shape_of(like)
    return e.broadcast(e.constant(np.eye(shape[-1], dtype=np.float32)), shape)


def diagonal(e: Emitter, x: SSAValue) -> SSAValue:
    """Return the diagonal of square matrices."""
    shape = shape_of(x)
    inside = e.broadcast(e.constant(np.eye(shape[-1], dtype=bool)), shape)
    return e.reduce("ADD", e.select(inside, x, e.like(0, x)), (len(shape) - 1,))


def solve_factored(
    e: Emitter, factors: SSAValue, permutation: SSAValue, b: SSAValue, transposed: bool = False
) -> SSAValue:
    """Solve `x @ result == b` by the factors of x, or `x^T @ result == b` with `transposed`."""
    axis = len(shape_of(b)) - 2
    if not transposed:
        exchanged = gather(e, b, permutation, axis, axis)
        found = e.emit(ops.TriangularSolveOp(factors, exchanged, lower=True, unit_diagonal=True))
        return e.emit(ops.TriangularSolveOp(factors, found, lower=False))
    found = e.emit(ops.TriangularSolveOp(factors, b, lower=False, transpose_a=True))
    found = e.emit(ops.TriangularSolveOp(factors, found, lower=True, transpose_a=True, unit_diagonal=True))
    # The places of the numbers 0, 1, ... in a permutation are the reverse permutation.
    negative = e.unary(ops.NegOp, permutation)
    _, reverse = e.emit_all(ops.TopKOp(negative, shape_of(permutation)[-1]))
    return gather(e, found, reverse, axis, axis)


def inverse(e: Emitter, x: SSAValue) -> SSAValue:
    """Return the inverse of square matrices."""
    lu = factorize(e, x)
    return solve_factored(e, lu.factors, lu.permutation, eye(e, x))


def pseudoinverse(e: Emitter, x: SSAValue, least: SSAValue) -> SSAValue:
    """`V S^-1 U^T`, without the singular values up to `least` (a number for each matrix)."""
    u, s, vt = e.emit_all(ops.SvdOp(x))
    kept = e.compare("GT", s, e.reshape(least, (*shape_of(least), 1)))
    reciprocal = e.select(kept, e.div(e.like(1, s), e.select(kept, s, e.like(1, s))), e.like(0, s))
    scale = e.mul(u, e.reshape(reciprocal, (*shape_of(s)[:-1], 1, shape_of(s)[-1])))
    return e.emit(ops.MatMulOp(vt, scale, transpose_a=True, transpose_b=True))


_TERMS, _SQUARINGS = 8, 8


def exponential(e: Emitter, x: SSAValue) -> SSAValue:
    """Return the exponential of square matrices: Taylor's polynomial of `x / 2^n`, squared n times.

    The polynomial is exact to float32 for a norm of 1/2, and 8 squarings reach a norm of 128, where float32
    ends.
    """
    rank = len(shape_of(x))
    norm = e.reduce("MAX", e.reduce("ADD", e.unary(ops.AbsOp, x), (rank - 2,)), (rank - 2,))
    norm = e.reshape(norm, (*shape_of(norm), 1, 1))
    one = eye(e, x)
    steps = [e.compare("GT", norm, e.scalar(0.5 * 2**i, "float32")) for i in range(_SQUARINGS)]
    scale = e.like(1, norm)
    for step in steps:
        scale = e.mul(scale, e.select(step, e.like(0.5, norm), e.like(1, norm)))
    small = e.mul(x, scale)
    found = one
    for term in range(_TERMS, 0, -1):
        found = e.add(one, e.scale(e.emit(ops.MatMulOp(small, found)), 1 / term))
    for step in steps:
        found = e.select(step, e.emit(ops.MatMulOp(found, found)), found)
    return found


def broadcast_batch(e: Emitter, *matrices: SSAValue) -> list[SSAValue]:
    """Return matrices with their leading axes broadcast to one shape."""
    batch = broadcast_shape(*(shape_of(x)[:-2] for x in matrices))
    return [e.broadcast(x, (*batch, *shape_of(x)[-2:])) for x in matrices]


def factorize(e: Emitter, x: SSAValue) -> ops.LuOp:
    """Return the factors of square matrices."""
    lu = ops.LuOp(x)
    e.emit_all(lu)
    return lu


def sign_and_log_determinant(e: Emitter, lu: ops.LuOp) -> tuple[SSAValue, SSAValue]:
    """Return the sign of the determinant, and the logarithm of its absolute value."""
    values = diagonal(e, lu.factors)
    axes = (len(shape_of(values)) - 1,)
    size = e.reduce("ADD", e.unary(ops.LogOp, e.unary(ops.AbsOp, values)), axes)
    return e.mul(_parity(e, lu), e.reduce("MUL", e.unary(ops.SignOp, values), axes)), size


def determinant(e: Emitter, lu: ops.LuOp) -> SSAValue:
    """Return the determinant of square matrices."""
    values = diagonal(e, lu.factors)
    return e.mul(_parity(e, lu), e.reduce("MUL", values, (len(shape_of(values)) - 1,)))


def _parity(e: Emitter, lu: ops.LuOp) -> SSAValue:
    """Return 1 or -1, by the number of exchanged rows."""
    pivots = lu.pivots
    places = e.emit(ops.ArangeOp(shape_of(pivots)[-1]))
    signs = e.select(e.compare("NE", pivots, places), e.full(-1, (), "float32"), e.full(1, (), "float32"))
    return e.reduce("MUL", signs, (len(shape_of(pivots)) - 1,))
