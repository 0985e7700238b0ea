"""Fused batch normalization and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.emit import dtype_of
from cgc.importers.tensorflow.handlers.windows import to_channels_last, to_own_format
from cgc.importers.tensorflow.node import NodeContext, Table, Value


def _fused_batch_norm(node: NodeContext) -> Sequence[Value]:
    """Outputs: y, mean, variance, and what the gradient reads: the moments of the batch."""
    x, (scale, offset) = to_channels_last(node, node.x(0)), node.all(1, 3)
    # in training without a running average TensorFlow takes vectors of no element in place of the moments
    mean, variance = (
        node.x(i) if node.shape(i) == shape_of(scale) else node.emit.like(0, scale) for i in (3, 4)
    )
    results = node.emit.emit_all(
        ops.FusedBatchNormOp(
            x,
            scale,
            offset,
            mean,
            variance,
            node.attr("epsilon"),
            node.attr("exponential_avg_factor"),
            node.attr("is_training"),
        )
    )
    return _as_many(node, results, scale)


def _fused_batch_norm_grad(node: NodeContext) -> Sequence[Value]:
    """Inputs: gradient of y, x, scale, and the mean and the variance that x was normalized with."""
    grad, x = (to_channels_last(node, node.x(i)) for i in (0, 1))
    scale, mean, variance = node.all(2, 5)
    epsilon, is_training = node.attr("epsilon"), node.attr("is_training")
    op = ops.FusedBatchNormGradOp(grad, x, scale, mean, variance, epsilon, is_training)
    return _as_many(node, node.emit.emit_all(op), scale)


def _as_many(node: NodeContext, results: Sequence[SSAValue], scale: SSAValue) -> Sequence[Value]:
    """The results, and no elements for the outputs in which other devices keep what they need."""
    empty = np.zeros(0, dtype_of(scale))
    samples, *vectors = results
    return [to_own_format(node, samples), *vectors, *[empty] * (len(node.op.outputs) - len(results))]


TABLE: Table = {
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _fused_batch_norm),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), _fused_batch_norm_grad
    ),
}
