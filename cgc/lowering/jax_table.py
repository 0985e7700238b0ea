"""The table: what every CIRH op computes.

A lowering takes the op (for its attributes and result types) and the jax values of its operands, and
returns the value of its result, or a tuple of values where it has several. It is pure and called under
jax tracing.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.errors import LoweringError
from cgc.lowering import (
    attention,
    batch_norm,
    composite,
    convolution,
    elementwise,
    indexing,
    layer_norm,
    linear,
    losses,
    optimizers,
    random,
    reductions,
    rows,
    shapes,
    volumes,
    windows,
)

Lowered = jax.Array | tuple[jax.Array, ...]
Lowering = Callable[..., Lowered]


def _plain(function: Callable[..., jax.Array]) -> Lowering:
    """A lowering that takes nothing from the op."""
    return lambda _op, *operands: function(*operands)


def _round_half_to_even(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


LOWERINGS: dict[type[CirhOp], Lowering] = {
    # elementwise, two operands
    ops.AddOp: _plain(lax.add),
    ops.SubOp: _plain(lax.sub),
    ops.MulOp: _plain(lax.mul),
    ops.DivOp: _plain(lax.div),
    ops.PowOp: elementwise.power,
    ops.MaxOp: _plain(lax.max),
    ops.MinOp: _plain(lax.min),
    ops.FloorDivOp: elementwise.floor_div,
    ops.FloorModOp: elementwise.floor_mod,
    ops.Atan2Op: _plain(lax.atan2),
    ops.AndOp: _plain(lax.bitwise_and),
    ops.OrOp: _plain(lax.bitwise_or),
    ops.XorOp: _plain(lax.bitwise_xor),
    # elementwise, one operand
    ops.NegOp: _plain(lax.neg),
    ops.AbsOp: _plain(lax.abs),
    ops.ExpOp: _plain(lax.exp),
    ops.Expm1Op: _plain(lax.expm1),
    ops.LogOp: _plain(lax.log),
    ops.Log1pOp: _plain(lax.log1p),
    ops.SqrtOp: _plain(lax.sqrt),
    ops.RsqrtOp: _plain(lax.rsqrt),
    ops.ReciprocalOp: elementwise.reciprocal,
    ops.SinOp: _plain(lax.sin),
    ops.CosOp: _plain(lax.cos),
    ops.TanhOp: _plain(lax.tanh),
    ops.SigmoidOp: _plain(lax.logistic),
    ops.SignOp: _plain(lax.sign),
    ops.FloorOp: _plain(lax.floor),
    ops.CeilOp: _plain(lax.ceil),
    ops.RoundOp: _plain(_round_half_to_even),
    ops.ErfOp: _plain(lax.erf),
    ops.ReluOp: elementwise.relu,
    ops.EluOp: elementwise.elu,
    ops.SoftplusOp: elementwise.softplus,
    ops.NotOp: _plain(lax.bitwise_not),
    ops.IsFiniteOp: _plain(lax.is_finite),
    ops.HardSigmoidOp: elementwise.hard_sigmoid,
    ops.GeluOp: elementwise.gelu,
    ops.LeakyReluOp: elementwise.leaky_relu,
    # gradients of activations
    ops.ReluGradOp: elementwise.relu_grad,
    ops.EluGradOp: elementwise.elu_grad,
    ops.LeakyReluGradOp: elementwise.leaky_relu_grad,
    ops.SigmoidGradOp: elementwise.sigmoid_grad,
    ops.TanhGradOp: elementwise.tanh_grad,
    ops.GeluGradOp: elementwise.gelu_grad,
    ops.SoftplusGradOp: elementwise.softplus_grad,
    ops.HardSigmoidGradOp: elementwise.hard_sigmoid_grad,
    # comparison, selection, type
    ops.CompareOp: elementwise.compare,
    ops.SelectOp: elementwise.select,
    ops.ClampOp: elementwise.clamp,
    ops.CastOp: elementwise.cast,
    ops.ExtSIOp: elementwise.extend_signed,
    ops.ExtUIOp: elementwise.extend_unsigned,
    ops.FscaleOp: elementwise.fscale,
    # constants and movement
    ops.ConstOp: shapes.constant,
    ops.ArangeOp: shapes.arange,
    ops.OneHotOp: shapes.one_hot,
    ops.ReshapeOp: shapes.reshape,
    ops.TransposeOp: shapes.transpose,
    ops.BroadcastInDimOp: shapes.broadcast_in_dim,
    ops.ConcatOp: shapes.concat,
    ops.SliceOp: shapes.slice_,
    ops.PadOp: shapes.pad,
    ops.GatherOp: shapes.gather,
    # elements by position
    ops.GatherNdOp: indexing.gather_nd,
    ops.StridedSliceOp: indexing.strided_slice,
    ops.StridedSliceGradOp: indexing.strided_slice_grad,
    ops.UnpadOp: indexing.unpad,
    ops.SplitOp: indexing.split,
    ops.RepeatOp: indexing.repeat,
    ops.MatrixBandPartOp: indexing.matrix_band_part,
    ops.ConditionalArangeOp: indexing.conditional_arange,
    # rows of tables
    ops.ScatterNdOp: rows.scatter_nd,
    ops.UniqueOp: rows.unique,
    ops.ScatterOp: rows.scatter,
    # reductions
    ops.ReduceOp: reductions.reduce,
    ops.ArgMaxOp: reductions.argmax,
    ops.CumSumOp: reductions.cumsum,
    ops.CumProdOp: reductions.cumprod,
    ops.NthOrderStatisticOp: reductions.nth_order_statistic,
    ops.TopKOp: reductions.top_k,
    ops.L2NormOp: reductions.l2_norm,
    # linear algebra
    ops.MatMulOp: linear.matmul,
    ops.DotGeneralOp: linear.dot_general,
    ops.BiasAddOp: linear.bias_add,
    ops.BiasAddGradOp: linear.bias_add_grad,
    ops.ReduceBiasOp: linear.reduce_bias,
    ops.CompositeOp: composite.composite,
    # convolution, pooling, batch normalization
    ops.ConvolutionOp: volumes.on_volumes(convolution.convolution, volumes.convolution),
    ops.PoolOp: volumes.on_volumes(windows.pool, volumes.pool),
    ops.MaxPoolGradOp: volumes.on_volumes(windows.max_pool_grad, volumes.max_pool_grad),
    ops.AvgPoolGradOp: volumes.on_volumes(windows.avg_pool_grad, volumes.avg_pool_grad),
    ops.FusedBatchNormOp: batch_norm.fused_batch_norm,
    ops.FusedBatchNormGradOp: batch_norm.fused_batch_norm_grad,
    # layer and group normalization, attention
    ops.LayerNormOp: layer_norm.layer_norm,
    ops.LayerNormGradOp: layer_norm.layer_norm_grad,
    ops.GroupNormOp: layer_norm.group_norm,
    ops.GroupNormGradOp: layer_norm.group_norm_grad,
    ops.AttentionOp: attention.attention,
    ops.AttentionGradOp: attention.attention_grad,
    # losses
    ops.SoftmaxOp: losses.softmax,
    ops.SoftmaxGradOp: losses.softmax_grad,
    ops.LogSoftmaxOp: losses.log_softmax,
    ops.SparseSoftmaxCrossEntropyWithLogitsOp: losses.sparse_softmax_cross_entropy,
    ops.SoftmaxCrossEntropyWithLogitsOp: losses.softmax_cross_entropy,
    # random numbers
    ops.RandomUniformOp: random.random_uniform,
    ops.RandomNormalOp: random.random_normal,
    ops.RandomMultinomialOp: random.random_multinomial,
    ops.StatelessRandomUniformOp: random.stateless_random_uniform,
    # optimizers
    ops.GradientDescentOp: optimizers.gradient_descent,
    ops.MomentumOp: optimizers.momentum,
    ops.AdamOp: optimizers.adam,
    ops.AdamWOp: optimizers.adam_w,
    ops.RMSPropOp: optimizers.rms_prop,
    ops.AdagradOp: optimizers.adagrad,
}


def lower(op: CirhOp, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """The values of all results of `op`.

    Raises:
        LoweringError: the table has no entry for the op, or the op holds a value that the device cannot
        compute.
    """
    lowering = LOWERINGS.get(type(op))
    if lowering is None:
        raise LoweringError(
            f"{shapes.describe(op)}: no lowering is known for this op; "
            "expected one of the ops of cgc.lowering.jax_table"
        )
    values = lowering(op, *operands)
    return values if isinstance(values, tuple) else (values,)
