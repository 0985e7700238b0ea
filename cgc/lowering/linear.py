"""Lowerings of matrix products and biases.

float32 is multiplied in full float32 on every backend (a GPU would use TF32 otherwise); 16-bit operands are
accumulated in float32 and rounded once, as on the wafer.
"""

from __future__ import annotations

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import DotGeneralOp, MatMulOp, ReduceBiasOp
from cgc.lowering.table import Table


def matmul(op: MatMulOp, a: jax.Array, b: jax.Array) -> jax.Array:
    """Matrix product over the last two dimensions, each operand transposed first if the op says so."""
    return batched_product(a, b, op.transpose_a, op.transpose_b).astype(a.dtype)


def batched_product(
    a: jax.Array, b: jax.Array, transpose_a: bool = False, transpose_b: bool = False
) -> jax.Array:
    """The product of matrices in the last two dimensions: float32, or the integers of the operands."""
    batch = tuple(range(a.ndim - 2))
    contract_a = a.ndim - 2 if transpose_a else a.ndim - 1
    contract_b = b.ndim - 1 if transpose_b else b.ndim - 2
    return _product(a, b, (((contract_a,), (contract_b,)), (batch, batch)))


def dot_general(op: DotGeneralOp, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Product summed over the contracting dimensions, for each place of the batching ones."""
    numbers = (
        (op.lhs_contracting_dimensions, op.rhs_contracting_dimensions),
        (op.lhs_batching_dimensions, op.rhs_batching_dimensions),
    )
    return _product(lhs, rhs, numbers).astype(lhs.dtype)


def _product(lhs: jax.Array, rhs: jax.Array, numbers: lax.DotDimensionNumbers) -> jax.Array:
    floating = jnp.issubdtype(lhs.dtype, jnp.floating)
    return lax.dot_general(
        lhs,
        rhs,
        numbers,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32 if floating else lhs.dtype,
    )


def bias_add(_op: CirhOp, x: jax.Array, bias: jax.Array) -> jax.Array:
    """`bias` added to the last dimension of x."""
    return x + lax.broadcast_in_dim(bias, x.shape, (x.ndim - 1,))


def bias_add_grad(_op: CirhOp, grad: jax.Array) -> jax.Array:
    """`grad` summed over all dimensions but the last."""
    return jnp.sum(grad, tuple(range(grad.ndim - 1)), dtype=grad.dtype)


def reduce_bias(op: ReduceBiasOp, grad: jax.Array) -> jax.Array:
    """`grad` summed over all dimensions but one."""
    return jnp.sum(grad, tuple(dim for dim in range(grad.ndim) if dim != op.dim), dtype=grad.dtype)


LOWERINGS: Table = {
    ops.MatMulOp: matmul,
    ops.DotGeneralOp: dot_general,
    ops.BiasAddOp: bias_add,
    ops.BiasAddGradOp: bias_add_grad,
    ops.ReduceBiasOp: reduce_bias,
}
