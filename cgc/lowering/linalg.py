"""Lowerings of factorizations and of triangular systems: those of LAPACK."""

from __future__ import annotations

import jax
from jax import lax

from cgc.cirh import ops
from cgc.cirh.ops import CholeskyOp, EighOp, LuOp, QrOp, SvdOp, TriangularSolveOp
from cgc.lowering.table import Table


def cholesky(_op: CholeskyOp, x: jax.Array) -> jax.Array:
    """The lower triangle whose product with its transpose is x."""
    return lax.linalg.cholesky(x, symmetrize_input=False)


def triangular_solve(op: TriangularSolveOp, a: jax.Array, b: jax.Array) -> jax.Array:
    """The solution of a triangular system, for each column of b."""
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=op.lower, transpose_a=op.transpose_a, unit_diagonal=op.unit_diagonal
    )


def lu(_op: LuOp, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(factors in one matrix, pivots, permutation)."""
    factors, pivots, permutation = lax.linalg.lu(x)
    return factors, pivots, permutation


def qr(op: QrOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(orthonormal columns, upper triangle)."""
    q, r = lax.linalg.qr(x, full_matrices=op.full_matrices)
    return q, r


def svd(op: SvdOp, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(left singular vectors, singular values, right singular vectors as rows)."""
    u, s, vt = lax.linalg.svd(x, full_matrices=op.full_matrices)
    return u, s, vt


def eigh(_op: EighOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(eigenvalues, eigenvectors as columns)."""
    vectors, values = lax.linalg.eigh(x, symmetrize_input=False)
    return values, vectors


LOWERINGS: Table = {
    ops.CholeskyOp: cholesky,
    ops.TriangularSolveOp: triangular_solve,
    ops.LuOp: lu,
    ops.QrOp: qr,
    ops.SvdOp: svd,
    ops.EighOp: eigh,
}
