"""All ops of CIRH, their constructors, and `ALL_OPS`.

Constructors take values or single-result ops as operands and infer the result types; they raise
`InvalidOpError` when something does not fit. dtypes are numpy names, dtypes, or element types of the IR.
Negative axes count from the end. Attributes are read as Python values under the name of the constructor's
argument (`op.transpose_a -> bool`, `op.permutation -> tuple[int, ...]`); single results are `op.result`.
Every op has `set_debug_info(node_name=None, source=None)`, which returns the op, and reads them back as
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
from cgc.cirh.attention import AttentionGradOp, AttentionOp
from cgc.cirh.base import CirhOp
from cgc.cirh.batch_norm import FusedBatchNormGradOp, FusedBatchNormOp
from cgc.cirh.composite import CompositeOp
from cgc.cirh.constant import ArangeOp, ConstOp
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
    GatherOp,
    MatrixBandPartOp,
    OneHotOp,
    RepeatOp,
    SliceOp,
    StridedSliceGradOp,
    StridedSliceOp,
    UnpadOp,
)
from cgc.cirh.layer_norm import GroupNormGradOp, GroupNormOp, LayerNormGradOp, LayerNormOp
from cgc.cirh.linear import BiasAddGradOp, BiasAddOp, DotGeneralOp, MatMulOp, ReduceBiasOp
from cgc.cirh.optimizer import AdagradOp, AdamOp, AdamWOp, GradientDescentOp, MomentumOp, RMSPropOp
from cgc.cirh.pool import AvgPoolGradOp, MaxPoolGradOp, PoolOp
from cgc.cirh.random import RandomMultinomialOp, RandomNormalOp, RandomUniformOp, StatelessRandomUniformOp
from cgc.cirh.reduction import ArgMaxOp, CumProdOp, CumSumOp, L2NormOp, NthOrderStatisticOp, ReduceOp, TopKOp
from cgc.cirh.rows import ScatterNdOp, ScatterOp, UniqueOp
from cgc.cirh.shape import BroadcastInDimOp, ConcatOp, PadOp, ReshapeOp, SplitOp, TransposeOp
from cgc.cirh.softmax import (
    LogSoftmaxOp,
    SoftmaxCrossEntropyWithLogitsOp,
    SoftmaxGradOp,
    SoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
)

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

ALL_OPS: tuple[type[CirhOp], ...] = tuple(globals()[name] for name in __all__ if name.endswith("Op"))


def ops_where(holds: Callable[[type[CirhOp]], bool]) -> frozenset[type[CirhOp]]:
    """All ops for which something holds, such as one of their `FACTS`."""
    return frozenset(op for op in ALL_OPS if holds(op))
