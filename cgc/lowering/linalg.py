"""Lowerings of factorizations and of triangular systems: those of LAPACK, one matrix at a time.

jaxlib (0.10.2) runs the matrices of a batch on a pool of threads, and waits for them on one of these threads.
Two such operations on a pool of two threads deadlock: `jit` of 16 independent Cholesky factorizations,
`[16, 64, 64]`, hangs within a few hundred calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax

from cgc.cirh import ops
from cgc.cirh.ops import CholeskyOp, EighOp, LuOp, QrOp, SvdOp, TriangularSolveOp
from cgc.lowering.table import Table


def _one_by_one(function: Callable[..., Any], *operands: jax.Array) -> Any:
    """What a function of matrices gives for each matrix of a batch."""
    batch = operands[0].shape[:-2]
    if not batch:
        return function(*operands)
    rows = tuple(x.reshape(math.prod(batch), *x.shape[-2:]) for x in operands)
    found = lax.map(lambda matrices: function(*matrices), rows)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)


def cholesky(_op: CholeskyOp, x: jax.Array) -> jax.Array:
    """The lower triangle whose product with its transpose is x."""
    lower: jax.Array = _one_by_one(partial(lax.linalg.cholesky, symmetrize_input=False), x)
    return lower


def triangular_solve(op: TriangularSolveOp, a: jax.Array, b: jax.Array) -> jax.Array:
    """The solution of a triangular system, for each column of b."""
    solve = partial(
        lax.linalg.triangular_solve,
        left_side=True,
        lower=op.lower,
        transpose_a=op.transpose_a,
        unit_diagonal=op.unit_diagonal,
    )
    solution: jax.Array = _one_by_one(solve, a, b)
    return solution


def lu(_op: LuOp, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(factors in one matrix, pivots, permutation)."""
    factors, pivots, permutation = _one_by_one(lax.linalg.lu, x)
    return factors, pivots, permutation


def qr(op: QrOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(orthonormal columns, upper triangle)."""
    q, r = _one_by_one(partial(lax.linalg.qr, full_matrices=op.full_matrices), x)
    return q, r


def svd(op: SvdOp, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(left singular vectors, singular values, right singular vectors as rows)."""
    u, s, vt = _one_by_one(partial(lax.linalg.svd, full_matrices=op.full_matrices), x)
    return u, s, vt


def eigh(_op: EighOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(eigenvalues, eigenvectors as columns)."""
    vectors, values = _one_by_one(partial(lax.linalg.eigh, symmetrize_input=False), x)
    return values, vectors


LOWERINGS: Table = {
    ops.CholeskyOp: cholesky,
    ops.TriangularSolveOp: triangular_solve,
    ops.LuOp: lu,
    ops.QrOp: qr,
    ops.SvdOp: svd,
    ops.EighOp: eigh,
}
