"""Lowerings of batch, layer and group normalization. Moments and sums are float32."""

from __future__ import annotations

import math

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import FusedBatchNormGradOp, FusedBatchNormOp, GroupNormGradOp, GroupNormOp, LayerNormOp
from cgc.lowering.base import Table, result_shape


def layer_norm(op: LayerNormOp, x: jax.Array, scale: jax.Array, offset: jax.Array) -> tuple[jax.Array, ...]:
    """Return (y, mean, rstd) over the last dimension."""
    wide = x.astype(jnp.float32)
    mean, rstd = _moments(wide, (x.ndim - 1,), op.epsilon)
    y = (wide - mean) * rstd * scale.astype(jnp.float32) + offset.astype(jnp.float32)
    return y.astype(x.dtype), mean, rstd


def layer_norm_grad(
    _op: CirhOp, grad: jax.Array, x: jax.Array, scale: jax.Array, mean: jax.Array, rstd: jax.Array
) -> tuple[jax.Array, ...]:
    """Return (x_backprop, scale_backprop, offset_backprop)."""
    wide = grad.astype(jnp.float32)
    normalized = (x.astype(jnp.float32) - mean) * rstd
    scaled = wide * scale.astype(jnp.float32)
    x_backprop = _center(scaled, normalized, (x.ndim - 1,)) * rstd
    return (x_backprop.astype(x.dtype), *_vectors(wide, normalized, scale))


def group_norm(op: GroupNormOp, x: jax.Array, scale: jax.Array, offset: jax.Array) -> tuple[jax.Array, ...]:
    """Return (y, mean, rstd) over the places of a sample and a group of channels."""
    wide = _group(x, op.num_groups)
    mean, rstd = _moments(wide, (1, 3), op.epsilon)
    normalized = ((wide - mean) * rstd).reshape(x.shape)
    y = normalized * scale.astype(jnp.float32) + offset.astype(jnp.float32)
    moments = result_shape(op, 1)
    return y.astype(x.dtype), mean.reshape(moments), rstd.reshape(moments)


def group_norm_grad(
    op: GroupNormGradOp, grad: jax.Array, x: jax.Array, scale: jax.Array, mean: jax.Array, rstd: jax.Array
) -> tuple[jax.Array, ...]:
    """Return (x_backprop, scale_backprop, offset_backprop)."""
    wide, groups = grad.astype(jnp.float32), op.num_groups
    means, rstds = (lax.expand_dims(v, (1, 3)) for v in (mean, rstd))
    normalized = (_group(x, groups) - means) * rstds
    scaled = _group(wide * scale.astype(jnp.float32), groups)
    x_backprop = (_center(scaled, normalized, (1, 3)) * rstds).reshape(x.shape)
    return (x_backprop.astype(x.dtype), *_vectors(wide, normalized.reshape(x.shape), scale))


def _group(x: jax.Array, groups: int) -> jax.Array:
    """Reshape to `[N, places, groups, channels of a group]`, in float32."""
    places = math.prod(x.shape[1:-1])
    return x.astype(jnp.float32).reshape(x.shape[0], places, groups, x.shape[-1] // groups)


def _moments(x: jax.Array, axes: tuple[int, ...], epsilon: float) -> tuple[jax.Array, jax.Array]:
    """Return (mean, 1 / sqrt(variance + epsilon)), the axes kept with size 1."""
    mean = jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(lax.square(x - mean), axes, keepdims=True)
    return mean, lax.rsqrt(variance + epsilon)


def _center(grad: jax.Array, normalized: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Subtract from grad its mean and its part along `normalized`: the effect through the moments."""
    along = jnp.mean(grad * normalized, axes, keepdims=True)
    return grad - jnp.mean(grad, axes, keepdims=True) - normalized * along


def _vectors(grad: jax.Array, normalized: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the gradients by scale and offset: sums over all dimensions but the last."""
    axes = tuple(range(grad.ndim - 1))
    return jnp.sum(grad * normalized, axes).astype(scale.dtype), jnp.sum(grad, axes).astype(scale.dtype)


def fused_batch_norm(
    op: FusedBatchNormOp,
    x: jax.Array,
    scale: jax.Array,
    offset: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
) -> tuple[jax.Array, ...]:
    """Return (y, batch_mean, batch_variance, saved_mean, saved_variance), computed in float32."""
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
    """Return (x_backprop, scale_backprop, offset_backprop), computed in float32."""
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
    ops.LayerNormOp: layer_norm,
    ops.LayerNormGradOp: layer_norm_grad,
    ops.GroupNormOp: group_norm,
    ops.GroupNormGradOp: group_norm_grad,
    ops.FusedBatchNormOp: fused_batch_norm,
    ops.FusedBatchNormGradOp: fused_batch_norm_grad,
}
