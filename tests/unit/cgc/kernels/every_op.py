"""Every op of the dialect once, with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from xdsl.ir import Operation

from cgc.cirh import ops

Argument = tuple[tuple[int, ...], str]
X: Argument = ((8, 6), "float32")
ROW: Argument = ((6,), "float32")
COUNTS: Argument = ((8, 6), "int32")
FLAGS: Argument = ((8, 6), "bool")
IMAGE: Argument = ((8, 6, 6, 4), "float32")
POOLED: Argument = ((8, 3, 3, 4), "float32")
CHANNELS: Argument = ((4,), "float32")
WINDOW = ((2, 2), (2, 2))
SCALAR: Argument = ((), "float32")
MATRICES: Argument = ((8, 3, 3), "float32")
STEP: Argument = ((), "int32")
LABELS: Argument = ((8,), "int32")
MOMENTS: Argument = ((8, 1), "float32")
HEADS: Argument = ((8, 2, 5, 6), "float32")
SCORES: Argument = ((8, 2, 5, 5), "float32")

FLOAT_BINARY = "Add Sub Mul Div Pow Max Min FloorDiv FloorMod Atan2"
UNARY = (
    "Neg Abs Exp Expm1 Log Log1p Sqrt Rsqrt Reciprocal Sin Cos Tanh Sigmoid Sign Floor Ceil Round Erf Relu "
    "Elu Softplus HardSigmoid IsFinite Gelu LeakyRelu Softmax LogSoftmax BiasAddGrad"
)
GRADIENTS = (
    "ReluGrad EluGrad LeakyReluGrad SigmoidGrad TanhGrad GeluGrad SoftplusGrad HardSigmoidGrad SoftmaxGrad"
)

CASES: dict[str, tuple[Sequence[Argument], Callable[..., Operation]]] = {
    **{f"{name}Op": ((X, X), getattr(ops, f"{name}Op")) for name in (FLOAT_BINARY + " " + GRADIENTS).split()},
    **{f"{name}Op": ((X,), getattr(ops, f"{name}Op")) for name in UNARY.split()},
    **{f"{name}Op": ((FLAGS, FLAGS), getattr(ops, f"{name}Op")) for name in ("And", "Or", "Xor")},
    "NotOp": ((FLAGS,), ops.NotOp),
    "CompareOp": ((X, X), lambda a, b: ops.CompareOp(a, b, "LT")),
    "SelectOp": ((FLAGS, X, X), ops.SelectOp),
    "ClampOp": ((X, SCALAR, SCALAR), ops.ClampOp),
    "CastOp": ((X,), lambda x: ops.CastOp(x, "int32")),
    "ConstOp": ((), lambda: ops.ConstOp.from_array(np.arange(48, dtype=np.float32))),
    "ArangeOp": ((), lambda: ops.ArangeOp(64)),
    "OneHotOp": ((LABELS, SCALAR, SCALAR), lambda i, on, off: ops.OneHotOp(i, on, off, 10)),
    "ReshapeOp": ((X,), lambda x: ops.ReshapeOp(x, (8, 2, 3))),
    "TransposeOp": ((X,), lambda x: ops.TransposeOp(x, (1, 0))),
    "BroadcastInDimOp": ((ROW,), lambda x: ops.BroadcastInDimOp(x, (8, 6), (1,))),
    "ConcatOp": ((X, X), lambda a, b: ops.ConcatOp([a, b], 1)),
    "SliceOp": ((X,), lambda x: ops.SliceOp(x, (0, 1), (8, 4))),
    "PadOp": ((X, SCALAR), lambda x, value: ops.PadOp(x, value, (0, 1), (0, 2))),
    "GatherOp": ((X, LABELS), ops.GatherOp),
    "ScatterNdOp": ((LABELS, X), lambda indices, x: ops.ScatterNdOp(indices, x, (100, 6))),
    "UniqueOp": ((LABELS,), ops.UniqueOp),
    "ScatterOp": ((X, LABELS, X), lambda x, i, rows: ops.ScatterOp(x, i, rows, "SET")),
    "ReduceOp": ((X,), lambda x: ops.ReduceOp(x, "ADD", (1,))),
    "GatherNdOp": ((X, ((8, 1), "int32")), ops.GatherNdOp),
    "StridedSliceOp": ((X,), lambda x: ops.StridedSliceOp(x, (7, 0), (-1, 6), (-1, 2))),
    "StridedSliceGradOp": ((X,), lambda x: ops.StridedSliceGradOp(x, (8, 12), (0, 0), (8, 12), (1, 2))),
    "UnpadOp": ((X,), lambda x: ops.UnpadOp(x, (0, 1), (0, 2))),
    "SplitOp": ((X,), lambda x: ops.SplitOp(x, (2, 4), 1)),
    "RepeatOp": ((X,), lambda x: ops.RepeatOp(x, 3, 1)),
    "MatrixBandPartOp": ((X,), lambda x: ops.MatrixBandPartOp(x, -1, 0)),
    "ConditionalArangeOp": ((FLAGS,), ops.ConditionalArangeOp),
    "CumMaxOp": ((X,), lambda x: ops.CumMaxOp(x, 1)),
    "CumLogSumExpOp": ((X,), lambda x: ops.CumLogSumExpOp(x, 1)),
    "CumProdOp": ((X,), lambda x: ops.CumProdOp(x, 1)),
    "FftOp": ((X, X), lambda re, im: ops.FftOp(re, im, inverse=True)),
    "RfftOp": ((X,), ops.RfftOp),
    "IrfftOp": ((X, X), lambda re, im: ops.IrfftOp(re, im, 11)),
    "CholeskyOp": ((MATRICES,), ops.CholeskyOp),
    "TriangularSolveOp": ((MATRICES, MATRICES), lambda a, b: ops.TriangularSolveOp(a, b, lower=True)),
    "LuOp": ((MATRICES,), ops.LuOp),
    "QrOp": ((MATRICES,), ops.QrOp),
    "SvdOp": ((MATRICES,), ops.SvdOp),
    "EighOp": ((MATRICES,), ops.EighOp),
    "CtcLossOp": (
        (((8, 5, 6), "float32"), ((8, 2), "int32"), LABELS, LABELS),
        lambda *v: ops.CtcLossOp(*v, blank=5),
    ),
    "NthOrderStatisticOp": ((X,), lambda x: ops.NthOrderStatisticOp(x, 2)),
    "TopKOp": ((X,), lambda x: ops.TopKOp(x, 2)),
    "L2NormOp": ((X, ROW), ops.L2NormOp),
    "ExtSIOp": ((COUNTS,), lambda x: ops.ExtSIOp(x, "int64")),
    "ExtUIOp": ((FLAGS,), lambda x: ops.ExtUIOp(x, "int32")),
    "FscaleOp": ((X, STEP), ops.FscaleOp),
    "ArgMaxOp": ((X,), lambda x: ops.ArgMaxOp(x, 1)),
    "CumSumOp": ((X,), lambda x: ops.CumSumOp(x, 1)),
    "MatMulOp": ((X, X), lambda a, b: ops.MatMulOp(a, b, transpose_b=True)),
    "BiasAddOp": ((X, ROW), ops.BiasAddOp),
    "ReduceBiasOp": ((X,), lambda x: ops.ReduceBiasOp(x, 1)),
    "CompositeOp": ((X, ROW), lambda x, bias: ops.CompositeOp(x, bias, "BiasGelu")),
    "DotGeneralOp": ((X, X), lambda a, b: ops.DotGeneralOp(a, b, (1,), (1,))),
    "ConvolutionOp": ((IMAGE, ((3, 3, 4, 5), "float32")), ops.ConvolutionOp),
    "PoolOp": ((IMAGE,), lambda x: ops.PoolOp(x, "MAX", *WINDOW)),
    "MaxPoolGradOp": ((IMAGE, POOLED), lambda x, grad: ops.MaxPoolGradOp(x, grad, *WINDOW)),
    "AvgPoolGradOp": ((POOLED,), lambda grad: ops.AvgPoolGradOp(grad, (8, 6, 6, 4), *WINDOW)),
    "FusedBatchNormOp": ((IMAGE, *[CHANNELS] * 4), ops.FusedBatchNormOp),
    "FusedBatchNormGradOp": ((IMAGE, IMAGE, *[CHANNELS] * 3), ops.FusedBatchNormGradOp),
    "LayerNormOp": ((X, ROW, ROW), ops.LayerNormOp),
    "LayerNormGradOp": ((X, X, ROW, MOMENTS, MOMENTS), ops.LayerNormGradOp),
    "GroupNormOp": ((IMAGE, CHANNELS, CHANNELS), lambda *v: ops.GroupNormOp(*v, 2)),
    "GroupNormGradOp": (
        (IMAGE, IMAGE, CHANNELS, *[((8, 2), "float32")] * 2),
        lambda *v: ops.GroupNormGradOp(*v, 2),
    ),
    "AttentionOp": ((HEADS, HEADS, HEADS), ops.AttentionOp),
    "AttentionGradOp": ((HEADS, HEADS, HEADS, HEADS, SCORES), ops.AttentionGradOp),
    "SparseSoftmaxCrossEntropyWithLogitsOp": ((X, LABELS), ops.SparseSoftmaxCrossEntropyWithLogitsOp),
    "SoftmaxCrossEntropyWithLogitsOp": ((X, X), ops.SoftmaxCrossEntropyWithLogitsOp),
    "RandomUniformOp": ((STEP,), lambda step: ops.RandomUniformOp(step, (8, 6), 1, 2)),
    "RandomNormalOp": ((STEP,), lambda step: ops.RandomNormalOp(step, (8, 6), 1, 2)),
    "RandomMultinomialOp": ((STEP, X), lambda step, x: ops.RandomMultinomialOp(step, x, 2, 1, 2)),
    "KeyedRandomUniformOp": (
        (((2,), "int32"), STEP),
        lambda key, step: ops.KeyedRandomUniformOp(key, step, (8, 6)),
    ),
    "KeyedRandomNormalOp": (
        (((2,), "int32"), STEP),
        lambda key, step: ops.KeyedRandomNormalOp(key, step, (8, 6)),
    ),
    "StartTokenLoopOp": ((COUNTS,), ops.StartTokenLoopOp),
    "UpdateTokenLoopOp": (
        (COUNTS, ((8, 1), "int32"), ((8, 1), "int32"), ((8, 2, 3), "int32")),
        lambda *v: ops.UpdateTokenLoopOp(*v, (9,), 4),
    ),
    "StatelessRandomUniformOp": ((((2,), "int32"),), lambda key: ops.StatelessRandomUniformOp(key, (8, 6))),
    "GradientDescentOp": ((X, SCALAR, X), ops.GradientDescentOp),
    "MomentumOp": ((X, X, SCALAR, X, SCALAR), ops.MomentumOp),
    "AdamOp": ((X, X, X, *[SCALAR] * 6, X), ops.AdamOp),
    "AdamWOp": ((X, X, X, *[SCALAR] * 6, X, SCALAR), ops.AdamWOp),
    "RMSPropOp": ((X, X, X, *[SCALAR] * 4, X), ops.RMSPropOp),
    "AdagradOp": ((X, X, SCALAR, X), ops.AdagradOp),
}
