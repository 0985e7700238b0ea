"""Batch normalization and local response normalization, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.emit import dtype_of
from cgc.importers.tensorflow.handlers.convolution import to_channels_last, to_own_format
from cgc.importers.tensorflow.node import NodeContext, Table, Value


def _fused_batch_norm(node: NodeContext) -> Sequence[Value]:
    """Return y, mean, variance, and the moments of the batch, which the gradient reads."""
    x, (scale, offset) = to_channels_last(node, node.x(0)), node.all(1, 3)
    # in training without a running average TensorFlow takes empty vectors instead of the moments
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
    """Return the results, and empty tensors for outputs in which other devices keep intermediates."""
    empty = np.zeros(0, dtype_of(scale))
    samples, *vectors = results
    return [to_own_format(node, samples), *vectors, *[empty] * (len(node.op.outputs) - len(results))]


def _sum_of_near_channels(node: NodeContext, x: SSAValue) -> SSAValue:
    """Return for each channel the sum over the channels at most `depth_radius` away."""
    e, shape, radius = node.emit, shape_of(x), int(node.attr("depth_radius"))
    *outer, channels = shape
    radius = min(radius, channels - 1)
    border = [0] * len(outer) + [radius]
    padded = e.pad(x, border, border)
    steps, zeros = [1] * len(shape), [0] * len(outer)
    parts = [
        e.slice(padded, [*zeros, start], [*outer, start + channels], steps) for start in range(2 * radius + 1)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = e.add(total, part)
    return total


def _scale(node: NodeContext, x: SSAValue) -> SSAValue:
    """Return `bias + alpha * sum of squares`, the base of the power of -beta."""
    e = node.emit
    squares = e.scale(_sum_of_near_channels(node, e.mul(x, x)), node.attr("alpha"))
    return e.add(squares, e.scalar(node.attr("bias"), dtype_of(x)))


def _lrn(node: NodeContext) -> SSAValue:
    """`x * scale**-beta`."""
    e, x = node.emit, node.x(0)
    power = e.scalar(-node.attr("beta"), dtype_of(x))
    return e.mul(x, e.binary(ops.PowOp, _scale(node, x), power))


def _lrn_grad(node: NodeContext) -> SSAValue:
    """Inputs: the gradient dy, x, y.

    `dy * scale**-beta - 2 * alpha * beta * x * sum of near dy * y / scale`.
    """
    e, (dy, x, y) = node.emit, node.all()
    scale = _scale(node, x)
    own = e.mul(dy, e.binary(ops.PowOp, scale, e.scalar(-node.attr("beta"), dtype_of(x))))
    near = _sum_of_near_channels(node, e.div(e.mul(dy, y), scale))
    return e.sub(own, e.mul(e.scale(x, 2 * node.attr("alpha") * node.attr("beta")), near))


TABLE: Table = {
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _fused_batch_norm),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), _fused_batch_norm_grad
    ),
    "LRN": _lrn,
    "LRNGrad": _lrn_grad,
}
