"""Lowerings of batch normalization."""

from __future__ import annotations

import math

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.ops import FusedBatchNormGradOp, FusedBatchNormOp
from cgc.lowering.table import Table


def fused_batch_norm(
    op: FusedBatchNormOp,
    x: jax.Array,
    scale: jax.Array,
    offset: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
) -> tuple[jax.Array, ...]:
    """(y, batch_mean, batch_variance, saved_mean, saved_variance), computed in float32."""
    dtype, wide = scale.dtype, x.astype(jnp.float32)
    scale, offset, mean, variance = (v.astype(jnp.float32) for v in (scale, offset, mean, variance))
    saved_mean, saved_variance, moved_mean, moved_variance = mean, variance, mean, variance
    if op.is_training:
        axes, count = tuple(range(x.ndim - 1)), math.prod(x.shape[:-1])
        saved_mean = jnp.mean(wide, axes)
        saved_variance = jnp.mean(lax.square(wide - saved_mean), axes)
        unbiased = saved_variance * (count / max(1, count - 1))
        factor = op.exponential_avg_factor
        moved_mean = saved_mean if factor == 1 else mean + (saved_mean - mean) * factor
        moved_variance = unbiased if factor == 1 else variance + (unbiased - variance) * factor
    y = (wide - saved_mean) * (lax.rsqrt(saved_variance + op.epsilon) * scale) + offset
    vectors = (moved_mean, moved_variance, saved_mean, saved_variance)
    return (y.astype(x.dtype), *(vector.astype(dtype) for vector in vectors))


def fused_batch_norm_grad(
    op: FusedBatchNormGradOp,
    grad: jax.Array,
    x: jax.Array,
    scale: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
) -> tuple[jax.Array, ...]:
    """(x_backprop, scale_backprop, offset_backprop), computed in float32."""
    dtype, wide = scale.dtype, grad.astype(jnp.float32)
    scale, mean, variance = (v.astype(jnp.float32) for v in (scale, mean, variance))
    axes, count = tuple(range(x.ndim - 1)), math.prod(x.shape[:-1])
    inverse = lax.rsqrt(variance + op.epsilon)
    centered = x.astype(jnp.float32) - mean
    offset_backprop = jnp.sum(wide, axes)
    scale_backprop = jnp.sum(wide * centered, axes) * inverse
    if op.is_training:
        wide = wide - offset_backprop / count - centered * (inverse * scale_backprop / count)
    x_backprop = wide * (scale * inverse)
    return x_backprop.astype(x.dtype), scale_backprop.astype(dtype), offset_backprop.astype(dtype)


LOWERINGS: Table = {
    ops.FusedBatchNormOp: fused_batch_norm,
    ops.FusedBatchNormGradOp: fused_batch_norm_grad,
}
