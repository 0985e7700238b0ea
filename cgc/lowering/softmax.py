"""Lowerings of softmax and the cross entropies, all stable: the largest logit is subtracted first.

16-bit logits are computed in float32 and rounded at the end.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.ops import (
    LogSoftmaxOp,
    SoftmaxCrossEntropyWithLogitsOp,
    SoftmaxGradOp,
    SoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
)
from cgc.cirh.softmax import PADDING_LABEL
from cgc.lowering.table import Table


def softmax(op: SoftmaxOp, x: jax.Array) -> jax.Array:
    """`exp(x) / sum(exp(x))` along an axis."""
    return softmax_of(x, op.axis).astype(x.dtype)


def softmax_grad(op: SoftmaxGradOp, probabilities: jax.Array, grad: jax.Array) -> jax.Array:
    """`(grad - sum(grad * probabilities)) * probabilities`."""
    wide = (probabilities.astype(jnp.float32), grad.astype(jnp.float32))
    return softmax_grad_of(*wide, op.axis).astype(grad.dtype)


def softmax_of(x: jax.Array, axis: int) -> jax.Array:
    """The softmax in float32."""
    _, powers, total = _normalised(x, axis)
    return powers / total


def softmax_grad_of(probabilities: jax.Array, grad: jax.Array, axis: int) -> jax.Array:
    """The gradient of the softmax from its result, in the type of the operands."""
    return (grad - jnp.sum(grad * probabilities, axis, keepdims=True)) * probabilities


def log_softmax(op: LogSoftmaxOp, x: jax.Array) -> jax.Array:
    """`x - log(sum(exp(x)))` along an axis."""
    shifted, _, total = _normalised(x, op.axis)
    return (shifted - lax.log(total)).astype(x.dtype)


def sparse_softmax_cross_entropy(
    op: SparseSoftmaxCrossEntropyWithLogitsOp, logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(loss of every row, its gradient with respect to the logits).

    A row whose label is -1 does not count: 0 in both. Any other label outside of the classes spoils its row:
    NaN in both, so that no training goes on with it, or 0 in both where the op says so.
    """
    axis = op.axis
    shifted, powers, total = _normalised(logits, axis)
    classes = lax.broadcasted_iota(jnp.int32, logits.shape, axis)
    labels = lax.expand_dims(labels.astype(jnp.int32), (axis,))
    hit = lax.eq(classes, lax.broadcast_in_dim(labels, logits.shape, tuple(range(logits.ndim))))
    known = (labels >= 0) & (labels < logits.shape[axis])
    is_skipped = ~known if op.ignore_out_of_range else labels == PADDING_LABEL
    without = jnp.where(is_skipped, np.float32(0), np.float32(np.nan))
    chosen = jnp.sum(jnp.where(hit, shifted, np.float32(0)), axis, keepdims=True)
    loss = jnp.where(known, lax.log(total) - chosen, without)
    backprop = jnp.where(known, powers / total - hit.astype(jnp.float32), without)
    return lax.squeeze(loss, (axis,)).astype(logits.dtype), backprop.astype(logits.dtype)


def softmax_cross_entropy(
    _op: SoftmaxCrossEntropyWithLogitsOp, logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(loss of every row, its gradient) for labels that are a distribution over the last dimension."""
    shifted, powers, total = _normalised(logits, logits.ndim - 1)
    wide_labels = labels.astype(jnp.float32)
    loss = jnp.sum(wide_labels * (lax.log(total) - shifted), -1)
    backprop = powers / total - wide_labels
    return loss.astype(logits.dtype), backprop.astype(logits.dtype)


def _normalised(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(x less its largest element, the exponential of that, its sum along the axis), float32."""
    wide = x.astype(jnp.float32)
    shifted = wide - jnp.max(wide, axis, keepdims=True, initial=-np.inf)  # a row may have no elements
    powers = lax.exp(shifted)
    return shifted, powers, jnp.sum(powers, axis, keepdims=True)


LOWERINGS: Table = {
    ops.SoftmaxOp: softmax,
    ops.SoftmaxGradOp: softmax_grad,
    ops.LogSoftmaxOp: log_softmax,
    ops.SparseSoftmaxCrossEntropyWithLogitsOp: sparse_softmax_cross_entropy,
    ops.SoftmaxCrossEntropyWithLogitsOp: softmax_cross_entropy,
}
