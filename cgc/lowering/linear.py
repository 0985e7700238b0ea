"""Lowerings of linear algebra: products and biases, LAPACK's factorizations, XLA's Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    CholeskyOp,
    DotGeneralOp,
    EighOp,
    FftOp,
    IrfftOp,
    LuOp,
    MatMulOp,
    QrOp,
    ReduceBiasOp,
    RfftOp,
    SvdOp,
    TriangularSolveOp,
)
from cgc.lowering.base import Table, result_shape


def matmul(op: MatMulOp, a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply matrices of the last two dimensions, each operand transposed first if the op requires it."""
    return matrix_product(a, b, op.transpose_a, op.transpose_b).astype(a.dtype)


def matrix_product(
    a: jax.Array, b: jax.Array, transpose_a: bool = False, transpose_b: bool = False
) -> jax.Array:
    """Multiply matrices of the last two dimensions, in float32 or in the integer type of the operands."""
    batch = tuple(range(a.ndim - 2))
    contract_a = a.ndim - 2 if transpose_a else a.ndim - 1
    contract_b = b.ndim - 1 if transpose_b else b.ndim - 2
    return _product(a, b, (((contract_a,), (contract_b,)), (batch, batch)))


def dot_general(op: DotGeneralOp, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Sum products over the contracting dimensions, for each place of the batching ones."""
    numbers = (
        (op.lhs_contracting_dimensions, op.rhs_contracting_dimensions),
        (op.lhs_batching_dimensions, op.rhs_batching_dimensions),
    )
    return _product(lhs, rhs, numbers).astype(lhs.dtype)


def _product(lhs: jax.Array, rhs: jax.Array, numbers: lax.DotDimensionNumbers) -> jax.Array:
    """Multiply in full precision; 16-bit floats are summed in float32."""
    floating = jnp.issubdtype(lhs.dtype, jnp.floating)
    return lax.dot_general(
        lhs,
        rhs,
        numbers,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32 if floating else lhs.dtype,
    )


def bias_add(_op: CirhOp, x: jax.Array, bias: jax.Array) -> jax.Array:
    """Add `bias` to the last dimension of x."""
    return x + lax.broadcast_in_dim(bias, x.shape, (x.ndim - 1,))


def bias_add_grad(_op: CirhOp, grad: jax.Array) -> jax.Array:
    """Sum `grad` over all dimensions but the last."""
    return jnp.sum(grad, tuple(range(grad.ndim - 1)), dtype=grad.dtype)


def reduce_bias(op: ReduceBiasOp, grad: jax.Array) -> jax.Array:
    """Sum `grad` over all dimensions but one."""
    return jnp.sum(grad, tuple(dim for dim in range(grad.ndim) if dim != op.dim), dtype=grad.dtype)


def _one_by_one(function: Callable[..., Any], *operands: jax.Array) -> Any:
    """Apply a function of matrices to each matrix of a batch."""
    batch = operands[0].shape[:-2]
    if not batch:
        return function(*operands)
    # One matrix at a time: jaxlib (0.10.2) runs the matrices of a batch on a pool of threads and waits for
    # them on one of these threads. Two such operations on a pool of two threads deadlock: `jit` of 16
    # independent Cholesky factorizations, `[16, 64, 64]`, hangs within a few hundred calls.
    rows = tuple(x.reshape(math.prod(batch), *x.shape[-2:]) for x in operands)
    found = lax.map(lambda matrices: function(*matrices), rows)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)


def cholesky(_op: CholeskyOp, x: jax.Array) -> jax.Array:
    """Return the lower triangle whose product with its transpose is x."""
    lower: jax.Array = _one_by_one(partial(lax.linalg.cholesky, symmetrize_input=False), x)
    return lower


def triangular_solve(op: TriangularSolveOp, a: jax.Array, b: jax.Array) -> jax.Array:
    """Solve a triangular system, for each column of b."""
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
    """Return (factors in one matrix, pivots, permutation)."""
    factors, pivots, permutation = _one_by_one(lax.linalg.lu, x)
    return factors, pivots, permutation


def qr(op: QrOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (orthonormal columns, upper triangle)."""
    q, r = _one_by_one(partial(lax.linalg.qr, full_matrices=op.full_matrices), x)
    return q, r


def svd(op: SvdOp, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (left singular vectors, singular values, right singular vectors as rows)."""
    u, s, vt = _one_by_one(partial(lax.linalg.svd, full_matrices=op.full_matrices), x)
    return u, s, vt


def eigh(_op: EighOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (eigenvalues, eigenvectors as columns)."""
    vectors, values = _one_by_one(partial(lax.linalg.eigh, symmetrize_input=False), x)
    return values, vectors


def fft(op: FftOp, re: jax.Array, im: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Transform complex numbers given as a pair; the inverse is divided by the length."""
    return _transform(lax.complex(re, im), "IFFT" if op.inverse else "FFT", re.shape[-1])


def rfft(_op: RfftOp, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the first half of the transform of real numbers."""
    return _transform(x, "RFFT", x.shape[-1])


def irfft(op: IrfftOp, re: jax.Array, im: jax.Array) -> jax.Array:
    """Return the real numbers from the first half of their transform."""
    if not re.size:
        return lax.full(result_shape(op), 0, re.dtype)
    found: jax.Array = lax.fft(lax.complex(re, im), "IRFFT", (op.length,))
    return found


def _transform(x: jax.Array, kind: str, length: int) -> tuple[jax.Array, jax.Array]:
    found = lax.fft(x, kind, (length,))
    return lax.real(found), lax.imag(found)


LOWERINGS: Table = {
    ops.MatMulOp: matmul,
    ops.DotGeneralOp: dot_general,
    ops.BiasAddOp: bias_add,
    ops.BiasAddGradOp: bias_add_grad,
    ops.ReduceBiasOp: reduce_bias,
    ops.CholeskyOp: cholesky,
    ops.TriangularSolveOp: triangular_solve,
    ops.LuOp: lu,
    ops.QrOp: qr,
    ops.SvdOp: svd,
    ops.EighOp: eigh,
    ops.FftOp: fft,
    ops.RfftOp: rfft,
    ops.IrfftOp: irfft,
}
