"""Lowerings of matrix products and biases."""

from __future__ import annotations

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh.base import CirhOp
from cgc.cirh.ops import MatMulOp


def matmul(op: MatMulOp, a: jax.Array, b: jax.Array) -> jax.Array:
    """Matrix product over the last two dimensions, each operand transposed first if the op says so.

    float32 is multiplied in full float32 on every backend (a GPU would use TF32 otherwise); 16-bit
    operands are accumulated in float32 and rounded once, as on the wafer.
    """
    batch = tuple(range(a.ndim - 2))
    contract_a = a.ndim - 2 if op.transpose_a else a.ndim - 1
    contract_b = b.ndim - 1 if op.transpose_b else b.ndim - 2
    floating = jnp.issubdtype(a.dtype, jnp.floating)
    product = lax.dot_general(
        a,
        b,
        (((contract_a,), (contract_b,)), (batch, batch)),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32 if floating else a.dtype,
    )
    return product.astype(a.dtype)


def bias_add(_op: CirhOp, x: jax.Array, bias: jax.Array) -> jax.Array:
    """`bias` added to the last dimension of x."""
    return x + lax.broadcast_in_dim(bias, x.shape, (x.ndim - 1,))


def bias_add_grad(_op: CirhOp, grad: jax.Array) -> jax.Array:
    """`grad` summed over all dimensions but the last."""
    return jnp.sum(grad, tuple(range(grad.ndim - 1)), dtype=grad.dtype)
