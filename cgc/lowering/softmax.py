"""Lowerings of softmax, attention and the cross entropies, all stable: the largest logit is subtracted first.

16-bit logits are computed in float32 and rounded at the end; products of attention are summed in float32.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.ops import (
    AttentionGradOp,
    AttentionOp,
    CtcLossOp,
    LogSoftmaxOp,
    SoftmaxCrossEntropyWithLogitsOp,
    SoftmaxGradOp,
    SoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
)
from cgc.cirh.softmax import PADDING_LABEL
from cgc.lowering.base import Table
from cgc.lowering.linear import matrix_product


def softmax(op: SoftmaxOp, x: jax.Array) -> jax.Array:
    """Compute `exp(x) / sum(exp(x))` along an axis."""
    return softmax_of(x, op.axis).astype(x.dtype)


def softmax_grad(op: SoftmaxGradOp, probabilities: jax.Array, grad: jax.Array) -> jax.Array:
    """Compute `(grad - sum(grad * probabilities)) * probabilities`."""
    wide = (probabilities.astype(jnp.float32), grad.astype(jnp.float32))
    return softmax_grad_of(*wide, op.axis).astype(grad.dtype)


def softmax_of(x: jax.Array, axis: int) -> jax.Array:
    """Compute the softmax in float32."""
    _, powers, total = _normalize(x, axis)
    return powers / total


def softmax_grad_of(probabilities: jax.Array, grad: jax.Array, axis: int) -> jax.Array:
    """Compute the gradient of the softmax from its result, in the type of the operands."""
    return (grad - jnp.sum(grad * probabilities, axis, keepdims=True)) * probabilities


def log_softmax(op: LogSoftmaxOp, x: jax.Array) -> jax.Array:
    """Compute `x - log(sum(exp(x)))` along an axis."""
    shifted, _, total = _normalize(x, op.axis)
    return (shifted - lax.log(total)).astype(x.dtype)


def sparse_softmax_cross_entropy(
    op: SparseSoftmaxCrossEntropyWithLogitsOp, logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return (loss of every row, its gradient with respect to the logits).

    A row whose label is -1 is padding: 0 in both. Any other label outside of the classes invalidates its row:
    NaN in both, so that training stops, or 0 in both if the op requires it.
    """
    axis = op.axis
    shifted, powers, total = _normalize(logits, axis)
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
    """Return (loss of every row, its gradient) for labels that are a distribution over the last dimension."""
    shifted, powers, total = _normalize(logits, logits.ndim - 1)
    wide_labels = labels.astype(jnp.float32)
    loss = jnp.sum(wide_labels * (lax.log(total) - shifted), -1)
    backprop = powers / total - wide_labels
    return loss.astype(logits.dtype), backprop.astype(logits.dtype)


def _normalize(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (x less its largest element, the exponential of that, its sum along the axis), float32."""
    wide = x.astype(jnp.float32)
    shifted = wide - jnp.max(wide, axis, keepdims=True, initial=-np.inf)  # a row may have no elements
    powers = lax.exp(shifted)
    return shifted, powers, jnp.sum(powers, axis, keepdims=True)


# Log likelihood of impossible alignments: finite, so that differences of two are not NaN.
_IMPOSSIBLE = np.float32(-1e30)


def ctc_loss(
    op: CtcLossOp,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return (loss of every sequence, its gradient by the logits)."""
    # Labels with a blank before and after each: `[N, 2 S + 1]`.
    count, length = targets.shape
    blanks = jnp.full((count, 2 * length + 1), op.blank, jnp.int32)
    labels = blanks.at[:, 1::2].set(targets.astype(jnp.int32))
    log_probs = jnp.maximum(log_probs, _IMPOSSIBLE)
    loss, pull = jax.vjp(
        lambda x: _minus_log_likelihood(x, labels, input_lengths, target_lengths, op.blank), log_probs
    )
    (by_log_probs,) = pull(jnp.ones_like(loss))
    within = (jnp.arange(log_probs.shape[1]) < input_lengths[:, None])[..., None]
    backprop = jnp.where(within, by_log_probs + jnp.exp(log_probs), 0)
    fits = loss < -_IMPOSSIBLE / 2
    return jnp.where(fits, loss, np.inf), jnp.where(fits[:, None, None], backprop, np.nan)


def _minus_log_likelihood(
    log_probs: jax.Array, labels: jax.Array, input_lengths: jax.Array, target_lengths: jax.Array, blank: int
) -> jax.Array:
    """Compute, by the forward algorithm, the likelihood of being at each label after each step."""
    size = labels.shape[1]
    emitted = jnp.take_along_axis(log_probs, labels[:, None, :], 2, mode="clip").transpose(1, 0, 2)
    place = jnp.arange(size)
    # A blank may be left out between two labels that differ.
    before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :size]
    skips = (labels != blank) & (labels != before) & (place >= 2)

    def shift(alpha: jax.Array, places: int) -> jax.Array:
        return jnp.pad(alpha, ((0, 0), (places, 0)), constant_values=_IMPOSSIBLE)[:, :size]

    def advance(alpha: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        number, here = step
        skipped = jnp.where(skips, shift(alpha, 2), _IMPOSSIBLE)
        total = jnp.logaddexp(jnp.logaddexp(alpha, shift(alpha, 1)), skipped) + here
        return jnp.where((number < input_lengths)[:, None], total, alpha), None

    first = jnp.where(place < 2, emitted[0], _IMPOSSIBLE)
    alpha, _ = lax.scan(advance, first, (jnp.arange(1, len(emitted)), emitted[1:]))
    last = 2 * target_lengths.astype(jnp.int32)[:, None]
    ends = (place == last) | (place == last - 1)
    return -jax.nn.logsumexp(jnp.where(ends, alpha, _IMPOSSIBLE), 1)


def attention(
    op: AttentionOp, query: jax.Array, key: jax.Array, value: jax.Array, *optional: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return (context, probabilities)."""
    rest = list(optional)
    bias = rest.pop(0) if op.has_bias else None
    keep = rest.pop(0) if op.has_keep else None
    scores = matrix_product(query, key, transpose_b=True) * jnp.float32(op.scale)
    if bias is not None:
        scores = scores + bias.astype(jnp.float32)
    probabilities = softmax_of(scores, scores.ndim - 1).astype(query.dtype)
    kept = probabilities if keep is None else probabilities * keep
    return matrix_product(kept, value).astype(query.dtype), probabilities


def attention_grad(
    op: AttentionGradOp,
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    probabilities: jax.Array,
    keep: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (dquery, dkey, dvalue)."""
    kept = probabilities if keep is None else probabilities * keep
    dvalue = matrix_product(kept, grad, transpose_a=True)
    dkept = matrix_product(grad, value, transpose_b=True)
    dprobabilities = dkept if keep is None else dkept * keep.astype(jnp.float32)
    dscores = softmax_grad_of(probabilities.astype(jnp.float32), dprobabilities, probabilities.ndim - 1)
    scaled = (dscores * jnp.float32(op.scale)).astype(query.dtype)
    dquery, dkey = matrix_product(scaled, key), matrix_product(scaled, query, transpose_a=True)
    return dquery.astype(query.dtype), dkey.astype(query.dtype), dvalue.astype(query.dtype)


LOWERINGS: Table = {
    ops.CtcLossOp: ctc_loss,
    ops.SoftmaxOp: softmax,
    ops.SoftmaxGradOp: softmax_grad,
    ops.LogSoftmaxOp: log_softmax,
    ops.SparseSoftmaxCrossEntropyWithLogitsOp: sparse_softmax_cross_entropy,
    ops.SoftmaxCrossEntropyWithLogitsOp: softmax_cross_entropy,
    ops.AttentionOp: attention,
    ops.AttentionGradOp: attention_grad,
}
