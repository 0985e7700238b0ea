"""All ops of CIRH and `ALL_OPS`.

Constructors take values or single-result ops as operands and infer the result types; they raise
`InvalidOpError` when something does not fit. dtypes are numpy names, dtypes, or element types of the IR.
Negative axes count from the end. Attributes are read as Python values under the name of the constructor's
argument (`op.transpose_a -> bool`, `op.permutation -> tuple[int, ...]`); single results are `op.result`.

    AddOp(lhs, rhs), also Sub Mul Div Pow Max Min FloorDiv FloorMod Atan2 And Or Xor
    NegOp(x), also Abs Exp Expm1 Log Log1p Sqrt Rsqrt Reciprocal Sin Cos Tanh Sigmoid Sign Floor Ceil Round
        Erf Relu Elu Softplus Not IsFinite
    GeluOp(x, approximate=False), LeakyReluOp(x, alpha=0.2)
    ReluGradOp(grad, features), SoftplusGradOp(grad, features)
    LeakyReluGradOp(grad, features, alpha=0.2), GeluGradOp(grad, features, approximate=False)
    EluGradOp(grad, outputs), SigmoidGradOp(outputs, grad), TanhGradOp(outputs, grad)
    CompareOp(lhs, rhs, direction), SelectOp(cond, on_true, on_false), ClampOp(x, minimum, maximum)
    CastOp(x, dtype, truncate=False)
    ConstOp(dense attribute), ConstOp.from_array(array, dtype=None), ConstOp.splat(value, like); .to_array()
    ArangeOp(size, start=0, step=1, dtype="int32"), OneHotOp(indices, on, off, depth, axis=-1)
    ReshapeOp(x, shape), TransposeOp(x, permutation), BroadcastInDimOp(x, shape, broadcast_dimensions)
    ConcatOp(xs, axis), SliceOp(x, start_indices, limit_indices, strides=None), PadOp(x, value, low, high)
    GatherOp(x, indices, axis=0), ScatterNdOp(indices, updates, shape, reduce_kind="ADD")
    UniqueOp(x, dtype="int32") -> values, idx; ScatterOp(x, indices, updates, reduce_kind)
    ReduceOp(x, reduce_kind, dimensions, keep_dims=False), ArgMaxOp(x, axis, dtype="int64")
    CumSumOp(x, axis, exclusive=False, reverse=False)
    MatMulOp(a, b, transpose_a=False, transpose_b=False), BiasAddOp(x, bias), BiasAddGradOp(grad)
    ConvolutionOp(lhs, rhs, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1,
        conv_pass_direction="FWD", shape=None): lhs, rhs are x, kernel | grad, kernel | x, grad
    PoolOp(x, pool_type, ksize, strides, padding=(0, 0, 0, 0))
    MaxPoolGradOp(x, grad, ksize, strides, padding), AvgPoolGradOp(grad, shape, ksize, strides, padding)
    FusedBatchNormOp(x, scale, offset, mean, variance, epsilon, exponential_avg_factor, is_training)
        -> y, batch_mean, batch_variance, saved_mean, saved_variance
    FusedBatchNormGradOp(grad, x, scale, mean, variance, epsilon, is_training)
        -> x_backprop, scale_backprop, offset_backprop
    SoftmaxOp(x, axis=-1), LogSoftmaxOp(x, axis=-1)
    SparseSoftmaxCrossEntropyWithLogitsOp(logits, labels) -> loss, backprop
    SoftmaxCrossEntropyWithLogitsOp(logits, labels) -> loss, backprop
    RandomUniformOp(step, shape, seed, op_seed), RandomNormalOp(step, shape, seed, op_seed)
    StatelessRandomUniformOp(key, shape)
    GradientDescentOp(param, lr, grad) -> new_param
    MomentumOp(param, accum, lr, grad, momentum, use_nesterov=False) -> new_param, new_accum
    AdamOp(param, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad, use_nesterov=False)
        -> new_param, new_m, new_v
    RMSPropOp(param, ms, mom, lr, rho, momentum, epsilon, grad) -> new_param, new_ms, new_mom
    AdagradOp(param, accum, lr, grad) -> new_param, new_accum

Every op also has `set_debug_info(node_name=None, source=None)`, which returns the op, and reads them back as
`op.node_name` and `op.source`.
"""

from __future__ import annotations

from cgc.cirh.activation import (
    EluGradOp,
    EluOp,
    GeluGradOp,
    GeluOp,
    LeakyReluGradOp,
    LeakyReluOp,
    ReluGradOp,
    ReluOp,
    SigmoidGradOp,
    SoftplusGradOp,
    SoftplusOp,
    TanhGradOp,
)
from cgc.cirh.base import CirhOp
from cgc.cirh.batch_norm import (
    FusedBatchNormGradOp,
    FusedBatchNormOp,
)
from cgc.cirh.constant import (
    ArangeOp,
    ConstOp,
    OneHotOp,
)
from cgc.cirh.convolution import ConvolutionOp
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
    FloorDivOp,
    FloorModOp,
    FloorOp,
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
from cgc.cirh.linear import (
    ArgMaxOp,
    BiasAddGradOp,
    BiasAddOp,
    CumSumOp,
    MatMulOp,
    ReduceOp,
)
from cgc.cirh.nn import (
    LogSoftmaxOp,
    SoftmaxCrossEntropyWithLogitsOp,
    SoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
)
from cgc.cirh.optimizer import (
    AdagradOp,
    AdamOp,
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
    RandomNormalOp,
    RandomUniformOp,
    StatelessRandomUniformOp,
)
from cgc.cirh.rows import (
    ScatterOp,
    UniqueOp,
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
    GeluOp,
    LeakyReluOp,
    IsFiniteOp,
    ReluGradOp,
    LeakyReluGradOp,
    GeluGradOp,
    SoftplusGradOp,
    SigmoidGradOp,
    TanhGradOp,
    EluGradOp,
    CompareOp,
    SelectOp,
    ClampOp,
    CastOp,
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
    ReduceOp,
    ArgMaxOp,
    CumSumOp,
    MatMulOp,
    BiasAddOp,
    BiasAddGradOp,
    ConvolutionOp,
    PoolOp,
    MaxPoolGradOp,
    AvgPoolGradOp,
    FusedBatchNormOp,
    FusedBatchNormGradOp,
    SoftmaxOp,
    LogSoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
    SoftmaxCrossEntropyWithLogitsOp,
    RandomUniformOp,
    RandomNormalOp,
    StatelessRandomUniformOp,
    GradientDescentOp,
    MomentumOp,
    AdamOp,
    RMSPropOp,
    AdagradOp,
)

__all__ = [
    "ALL_OPS",
    "AbsOp",
    "AdagradOp",
    "AdamOp",
    "AddOp",
    "AndOp",
    "ArangeOp",
    "ArgMaxOp",
    "Atan2Op",
    "AvgPoolGradOp",
    "BiasAddGradOp",
    "BiasAddOp",
    "BroadcastInDimOp",
    "CastOp",
    "CeilOp",
    "ClampOp",
    "CompareOp",
    "ConcatOp",
    "ConstOp",
    "ConvolutionOp",
    "CosOp",
    "CumSumOp",
    "DivOp",
    "EluGradOp",
    "EluOp",
    "ErfOp",
    "ExpOp",
    "Expm1Op",
    "FloorDivOp",
    "FloorModOp",
    "FloorOp",
    "FusedBatchNormGradOp",
    "FusedBatchNormOp",
    "GatherOp",
    "GeluGradOp",
    "GeluOp",
    "GradientDescentOp",
    "IsFiniteOp",
    "LeakyReluGradOp",
    "LeakyReluOp",
    "Log1pOp",
    "LogOp",
    "LogSoftmaxOp",
    "MatMulOp",
    "MaxOp",
    "MaxPoolGradOp",
    "MinOp",
    "MomentumOp",
    "MulOp",
    "NegOp",
    "NotOp",
    "OneHotOp",
    "OrOp",
    "PadOp",
    "PoolOp",
    "PowOp",
    "RMSPropOp",
    "RandomNormalOp",
    "RandomUniformOp",
    "ReciprocalOp",
    "ReduceOp",
    "ReluGradOp",
    "ReluOp",
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
    "SoftmaxOp",
    "SoftplusGradOp",
    "SoftplusOp",
    "SparseSoftmaxCrossEntropyWithLogitsOp",
    "SqrtOp",
    "StatelessRandomUniformOp",
    "SubOp",
    "TanhGradOp",
    "TanhOp",
    "TransposeOp",
    "UniqueOp",
    "XorOp",
]
