"""Lowerings of attention: products accumulated in float32, softmax in float32."""

from __future__ import annotations

import jax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.ops import AttentionGradOp, AttentionOp
from cgc.lowering.linear import batched_product
from cgc.lowering.softmax import softmax_grad_of, softmax_of
from cgc.lowering.table import Table


def attention(
    op: AttentionOp, query: jax.Array, key: jax.Array, value: jax.Array, *optional: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(context, probabilities)."""
    rest = list(optional)
    bias = rest.pop(0) if op.has_bias else None
    keep = rest.pop(0) if op.has_keep else None
    scores = batched_product(query, key, transpose_b=True) * jnp.float32(op.scale)
    if bias is not None:
        scores = scores + bias.astype(jnp.float32)
    probabilities = softmax_of(scores, scores.ndim - 1).astype(query.dtype)
    kept = probabilities if keep is None else probabilities * keep
    return batched_product(kept, value).astype(query.dtype), probabilities


def attention_grad(
    op: AttentionGradOp,
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    probabilities: jax.Array,
    keep: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(dquery, dkey, dvalue)."""
    kept = probabilities if keep is None else probabilities * keep
    dvalue = batched_product(kept, grad, transpose_a=True)
    dkept = batched_product(grad, value, transpose_b=True)
    dprobabilities = dkept if keep is None else dkept * keep.astype(jnp.float32)
    dscores = softmax_grad_of(probabilities.astype(jnp.float32), dprobabilities, probabilities.ndim - 1)
    scaled = (dscores * jnp.float32(op.scale)).astype(query.dtype)
    dquery, dkey = batched_product(scaled, key), batched_product(scaled, query, transpose_a=True)
    return dquery.astype(query.dtype), dkey.astype(query.dtype), dvalue.astype(query.dtype)


LOWERINGS: Table = {
    ops.AttentionOp: attention,
    ops.AttentionGradOp: attention_grad,
}
