"""All ops of CIRH and `ALL_OPS`.

Constructors take values or single-result ops as operands and infer the result types; they raise
`InvalidOpError` when something does not fit. dtypes are numpy names, dtypes, or element types of the IR.
Negative axes count from the end. Attributes are read as Python values under the name of the constructor's
argument (`op.transpose_a -> bool`, `op.permutation -> tuple[int, ...]`); single results are `op.result`.

    AddOp(lhs, rhs), also Sub Mul Div Pow Max Min FloorDiv FloorMod Atan2 And Or Xor
    NegOp(x), also Abs Exp Expm1 Log Log1p Sqrt Rsqrt Reciprocal Sin Cos Tanh Sigmoid Sign Floor Ceil Round
        Erf Relu Elu Softplus HardSigmoid Not IsFinite
    GeluOp(x, approximate=False), LeakyReluOp(x, alpha=0.2)
    ReluGradOp(grad, features), SoftplusGradOp(grad, features), HardSigmoidGradOp(grad, features)
    LeakyReluGradOp(grad, features, alpha=0.2), GeluGradOp(grad, features, approximate=False)
    EluGradOp(grad, outputs), SigmoidGradOp(outputs, grad), TanhGradOp(outputs, grad)
    CompareOp(lhs, rhs, direction), SelectOp(cond, on_true, on_false), ClampOp(x, minimum, maximum)
    CastOp(x, dtype, truncate=False), ExtSIOp(x, dtype), ExtUIOp(x, dtype), FscaleOp(x, exponent)
    ConstOp(dense attribute), ConstOp.from_array(array, dtype=None), ConstOp.splat(value, like); .to_array()
    ArangeOp(size, start=0, step=1, dtype="int32"), OneHotOp(indices, on, off, depth, axis=-1)
    ReshapeOp(x, shape), TransposeOp(x, permutation), BroadcastInDimOp(x, shape, broadcast_dimensions)
    ConcatOp(xs, axis), SliceOp(x, start_indices, limit_indices, strides=None), PadOp(x, value, low, high)
    GatherOp(x, indices, axis=0), ScatterNdOp(indices, updates, shape, reduce_kind="ADD")
    UniqueOp(x, dtype="int32") -> values, idx; ScatterOp(x, indices, updates, reduce_kind)
    GatherNdOp(x, indices), RepeatOp(x, repeats, axis), SplitOp(x, sizes, axis) -> one result a size
    StridedSliceOp(x, begin, end, strides), StridedSliceGradOp(grad, shape, begin, end, strides)
    UnpadOp(x, low, high), MatrixBandPartOp(x, num_lower, num_upper)
    ConditionalArangeOp(condition, start=0, fill=0)
    ReduceOp(x, reduce_kind, dimensions, keep_dims=False), ArgMaxOp(x, axis, dtype="int64")
    CumSumOp(x, axis, exclusive=False, reverse=False), also CumProdOp
    NthOrderStatisticOp(x, n, reverse=False), TopKOp(x, k) -> values, indices, L2NormOp(*xs)
    MatMulOp(a, b, transpose_a=False, transpose_b=False), BiasAddOp(x, bias), BiasAddGradOp(grad)
    DotGeneralOp(lhs, rhs, lhs_contracting_dimensions, rhs_contracting_dimensions,
        lhs_batching_dimensions=(), rhs_batching_dimensions=())
    ReduceBiasOp(grad, dim), CompositeOp(x, bias, function)
    ConvolutionOp(lhs, rhs, stride=1s, padding=0s, dilation=1s, groups=1,
        conv_pass_direction="FWD", shape=None): lhs, rhs are x, kernel | grad, kernel | x, grad
    PoolOp(x, pool_type, ksize, strides, padding=0s)
    MaxPoolGradOp(x, grad, ksize, strides, padding), AvgPoolGradOp(grad, shape, ksize, strides, padding)
    FusedBatchNormOp(x, scale, offset, mean, variance, epsilon, exponential_avg_factor, is_training)
        -> y, batch_mean, batch_variance, saved_mean, saved_variance
    FusedBatchNormGradOp(grad, x, scale, mean, variance, epsilon, is_training)
        -> x_backprop, scale_backprop, offset_backprop
    LayerNormOp(x, scale, offset, epsilon=1e-3) -> y, mean, rstd
    LayerNormGradOp(grad, x, scale, mean, rstd) -> x_backprop, scale_backprop, offset_backprop
    GroupNormOp(x, scale, offset, num_groups, epsilon=1e-3) -> y, mean, rstd
    GroupNormGradOp(grad, x, scale, mean, rstd, num_groups)
        -> x_backprop, scale_backprop, offset_backprop
    AttentionOp(query, key, value, bias=None, keep=None, scale=1.0) -> context, probabilities
    AttentionGradOp(grad, query, key, value, probabilities, keep=None, scale=1.0) -> dquery, dkey, dvalue
    SoftmaxOp(x, axis=-1), LogSoftmaxOp(x, axis=-1), SoftmaxGradOp(probabilities, grad, axis=-1)
    SparseSoftmaxCrossEntropyWithLogitsOp(logits, labels, ignore_out_of_range=False) -> loss, backprop
    SoftmaxCrossEntropyWithLogitsOp(logits, labels) -> loss, backprop
    RandomUniformOp(step, shape, seed, op_seed), RandomNormalOp(step, shape, seed, op_seed)
    RandomMultinomialOp(step, logits, num_samples, seed, op_seed), StatelessRandomUniformOp(key, shape)
    GradientDescentOp(param, lr, grad) -> new_param
    MomentumOp(param, accum, lr, grad, momentum, use_nesterov=False) -> new_param, new_accum
    AdamOp(param, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad, use_nesterov=False)
        -> new_param, new_m, new_v
    AdamWOp(the same up to grad, weight_decay, use_nesterov=False) -> new_param, new_m, new_v
    RMSPropOp(param, ms, mom, lr, rho, momentum, epsilon, grad) -> new_param, new_ms, new_mom
    AdagradOp(param, accum, lr, grad) -> new_param, new_accum

Every op also has `set_debug_info(node_name=None, source=None)`, which returns the op, and reads them back as
`op.node_name` and `op.source`.
"""

from __future__ import annotations

from collections.abc import Callable

from cgc.cirh.activation import (
    EluGradOp,
    EluOp,
    GeluGradOp,
    GeluOp,
    HardSigmoidGradOp,
    HardSigmoidOp,
    LeakyReluGradOp,
    LeakyReluOp,
    ReluGradOp,
    ReluOp,
    SigmoidGradOp,
    SoftplusGradOp,
    SoftplusOp,
    TanhGradOp,
)
from cgc.cirh.attention import (
    AttentionGradOp,
    AttentionOp,
)
from cgc.cirh.base import (
    CirhOp,
)
from cgc.cirh.batch_norm import (
    FusedBatchNormGradOp,
    FusedBatchNormOp,
)
from cgc.cirh.composite import (
    CompositeOp,
)
from cgc.cirh.constant import (
    ArangeOp,
    ConstOp,
    OneHotOp,
)
from cgc.cirh.convolution import (
    ConvolutionOp,
)
from cgc.cirh.elementwise import (
    AbsOp,
    AddOp,
    AndOp,
    Atan2Op,
    CastOp,
    CeilOp,
    ClampOp,
    CompareOp,
    CosOp,
    DivOp,
    ErfOp,
    Expm1Op,
    ExpOp,
    ExtSIOp,
    ExtUIOp,
    FloorDivOp,
    FloorModOp,
    FloorOp,
    FscaleOp,
    IsFiniteOp,
    Log1pOp,
    LogOp,
    MaxOp,
    MinOp,
    MulOp,
    NegOp,
    NotOp,
    OrOp,
    PowOp,
    ReciprocalOp,
    RoundOp,
    RsqrtOp,
    SelectOp,
    SigmoidOp,
    SignOp,
    SinOp,
    SqrtOp,
    SubOp,
    TanhOp,
    XorOp,
)
from cgc.cirh.indexing import (
    ConditionalArangeOp,
    GatherNdOp,
    MatrixBandPartOp,
    RepeatOp,
    SplitOp,
    StridedSliceGradOp,
    StridedSliceOp,
    UnpadOp,
)
from cgc.cirh.layer_norm import (
    GroupNormGradOp,
    GroupNormOp,
    LayerNormGradOp,
    LayerNormOp,
)
from cgc.cirh.linear import (
    ArgMaxOp,
    BiasAddGradOp,
    BiasAddOp,
    DotGeneralOp,
    MatMulOp,
    ReduceBiasOp,
    ReduceOp,
)
from cgc.cirh.nn import (
    LogSoftmaxOp,
    SoftmaxCrossEntropyWithLogitsOp,
    SoftmaxGradOp,
    SoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
)
from cgc.cirh.optimizer import (
    AdagradOp,
    AdamOp,
    AdamWOp,
    GradientDescentOp,
    MomentumOp,
    RMSPropOp,
)
from cgc.cirh.pool import (
    AvgPoolGradOp,
    MaxPoolGradOp,
    PoolOp,
)
from cgc.cirh.random import (
    RandomMultinomialOp,
    RandomNormalOp,
    RandomUniformOp,
    StatelessRandomUniformOp,
)
from cgc.cirh.rows import (
    ScatterOp,
    UniqueOp,
)
from cgc.cirh.scan import (
    CumProdOp,
    CumSumOp,
    L2NormOp,
    NthOrderStatisticOp,
    TopKOp,
)
from cgc.cirh.shape import (
    BroadcastInDimOp,
    ConcatOp,
    GatherOp,
    PadOp,
    ReshapeOp,
    ScatterNdOp,
    SliceOp,
    TransposeOp,
)

ALL_OPS: tuple[type[CirhOp], ...] = (
    ConstOp,
    ArangeOp,
    OneHotOp,
    AddOp,
    SubOp,
    MulOp,
    DivOp,
    PowOp,
    MaxOp,
    MinOp,
    FloorDivOp,
    FloorModOp,
    Atan2Op,
    AndOp,
    OrOp,
    XorOp,
    NegOp,
    AbsOp,
    ExpOp,
    Expm1Op,
    LogOp,
    Log1pOp,
    SqrtOp,
    RsqrtOp,
    ReciprocalOp,
    SinOp,
    CosOp,
    TanhOp,
    SigmoidOp,
    SignOp,
    FloorOp,
    CeilOp,
    RoundOp,
    ErfOp,
    ReluOp,
    EluOp,
    SoftplusOp,
    NotOp,
    HardSigmoidOp,
    GeluOp,
    LeakyReluOp,
    IsFiniteOp,
    ReluGradOp,
    LeakyReluGradOp,
    GeluGradOp,
    SoftplusGradOp,
    HardSigmoidGradOp,
    SigmoidGradOp,
    TanhGradOp,
    EluGradOp,
    CompareOp,
    SelectOp,
    ClampOp,
    CastOp,
    ExtSIOp,
    ExtUIOp,
    FscaleOp,
    ReshapeOp,
    TransposeOp,
    BroadcastInDimOp,
    ConcatOp,
    SliceOp,
    PadOp,
    GatherOp,
    ScatterNdOp,
    UniqueOp,
    ScatterOp,
    GatherNdOp,
    StridedSliceOp,
    StridedSliceGradOp,
    UnpadOp,
    SplitOp,
    RepeatOp,
    MatrixBandPartOp,
    ConditionalArangeOp,
    ReduceOp,
    ArgMaxOp,
    CumSumOp,
    CumProdOp,
    NthOrderStatisticOp,
    TopKOp,
    L2NormOp,
    MatMulOp,
    DotGeneralOp,
    BiasAddOp,
    BiasAddGradOp,
    ReduceBiasOp,
    CompositeOp,
    ConvolutionOp,
    PoolOp,
    MaxPoolGradOp,
    AvgPoolGradOp,
    FusedBatchNormOp,
    FusedBatchNormGradOp,
    LayerNormOp,
    LayerNormGradOp,
    GroupNormOp,
    GroupNormGradOp,
    AttentionOp,
    AttentionGradOp,
    SoftmaxOp,
    SoftmaxGradOp,
    LogSoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
    SoftmaxCrossEntropyWithLogitsOp,
    RandomUniformOp,
    RandomNormalOp,
    RandomMultinomialOp,
    StatelessRandomUniformOp,
    GradientDescentOp,
    MomentumOp,
    AdamOp,
    AdamWOp,
    RMSPropOp,
    AdagradOp,
)


def ops_where(holds: Callable[[type[CirhOp]], bool]) -> frozenset[type[CirhOp]]:
    """All ops for which something holds, such as one of their `FACTS`."""
    return frozenset(op for op in ALL_OPS if holds(op))


__all__ = [
    "ALL_OPS",
    "AbsOp",
    "AdagradOp",
    "AdamOp",
    "AdamWOp",
    "AddOp",
    "AndOp",
    "ArangeOp",
    "ArgMaxOp",
    "Atan2Op",
    "AttentionGradOp",
    "AttentionOp",
    "AvgPoolGradOp",
    "BiasAddGradOp",
    "BiasAddOp",
    "BroadcastInDimOp",
    "CastOp",
    "CeilOp",
    "ClampOp",
    "CompareOp",
    "CompositeOp",
    "ConcatOp",
    "ConditionalArangeOp",
    "ConstOp",
    "ConvolutionOp",
    "CosOp",
    "CumProdOp",
    "CumSumOp",
    "DivOp",
    "DotGeneralOp",
    "EluGradOp",
    "EluOp",
    "ErfOp",
    "ExpOp",
    "Expm1Op",
    "ExtSIOp",
    "ExtUIOp",
    "FloorDivOp",
    "FloorModOp",
    "FloorOp",
    "FscaleOp",
    "FusedBatchNormGradOp",
    "FusedBatchNormOp",
    "GatherNdOp",
    "GatherOp",
    "GeluGradOp",
    "GeluOp",
    "GradientDescentOp",
    "GroupNormGradOp",
    "GroupNormOp",
    "HardSigmoidGradOp",
    "HardSigmoidOp",
    "IsFiniteOp",
    "L2NormOp",
    "LayerNormGradOp",
    "LayerNormOp",
    "LeakyReluGradOp",
    "LeakyReluOp",
    "Log1pOp",
    "LogOp",
    "LogSoftmaxOp",
    "MatMulOp",
    "MatrixBandPartOp",
    "MaxOp",
    "MaxPoolGradOp",
    "MinOp",
    "MomentumOp",
    "MulOp",
    "NegOp",
    "NotOp",
    "NthOrderStatisticOp",
    "OneHotOp",
    "OrOp",
    "PadOp",
    "PoolOp",
    "PowOp",
    "RMSPropOp",
    "RandomMultinomialOp",
    "RandomNormalOp",
    "RandomUniformOp",
    "ReciprocalOp",
    "ReduceBiasOp",
    "ReduceOp",
    "ReluGradOp",
    "ReluOp",
    "RepeatOp",
    "ReshapeOp",
    "RoundOp",
    "RsqrtOp",
    "ScatterNdOp",
    "ScatterOp",
    "SelectOp",
    "SigmoidGradOp",
    "SigmoidOp",
    "SignOp",
    "SinOp",
    "SliceOp",
    "SoftmaxCrossEntropyWithLogitsOp",
    "SoftmaxGradOp",
    "SoftmaxOp",
    "SoftplusGradOp",
    "SoftplusOp",
    "SparseSoftmaxCrossEntropyWithLogitsOp",
    "SplitOp",
    "SqrtOp",
    "StatelessRandomUniformOp",
    "StridedSliceGradOp",
    "StridedSliceOp",
    "SubOp",
    "TanhGradOp",
    "TanhOp",
    "TopKOp",
    "TransposeOp",
    "UniqueOp",
    "UnpadOp",
    "XorOp",
    "ops_where",
]
