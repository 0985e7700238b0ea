"""Batch norm in training and evaluation, and its gradient.

PyTorch saves 1 / sqrt(variance + eps), the device the variance. The running variance counts count - 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.aten.handlers.layer_norm import channels_last, channels_second, wanted
from cgc.importers.aten.node import NodeContext, Table, Value


def _vector(node: NodeContext, name: str, default: float) -> SSAValue:
    """A vector of channels, or what stands in its place."""
    given = node.maybe(name)
    channels = node.node.arguments["input"].shape[1]
    return node.emit.full(default, (channels,), "float32") if given is None else given


def _normalized(node: NodeContext, training: bool) -> tuple[SSAValue, ...]:
    """y, saved mean, saved 1 / sqrt(variance + eps), new running mean, new running variance."""
    e, eps = node.emit, node.arg("eps")
    x = channels_last(e, node.x("input"))
    scale, offset = _vector(node, "weight", 1), _vector(node, "bias", 0)
    moments = _vector(node, "running_mean", 0), _vector(node, "running_var", 1)
    op = ops.FusedBatchNormOp(x, scale, offset, *moments, eps, node.arg("momentum"), training)
    y, mean, variance, saved_mean, saved_variance = e.emit_all(op)
    rstd = e.unary(ops.RsqrtOp, e.add(saved_variance, e.like(eps, saved_variance)))
    node.step.variances[rstd] = saved_variance
    return channels_second(e, y), saved_mean, rstd, mean, variance


def _legit_functional(node: NodeContext) -> tuple[SSAValue, ...]:
    return _normalized(node, bool(node.arg("training")))


def _without_stats(node: NodeContext) -> tuple[SSAValue, ...]:
    return _normalized(node, bool(node.arg("training", True)))[:3]


def _no_training(node: NodeContext) -> Sequence[Value]:
    """In evaluation nothing is saved: the results behind y are empty."""
    y = _normalized(node, training=False)[0]
    empty = [node.emit.full(0, node.result(i).shape, node.result(i).dtype) for i in (1, 2)]
    return [y, *empty]


def _backward(node: NodeContext) -> Sequence[Value]:
    e, training, eps = node.emit, bool(node.arg("train")), node.arg("eps")
    scale = _vector(node, "weight", 1)
    if training:
        mean, rstd = node.x("save_mean"), node.x("save_invstd")
        variance = node.step.variances.get(rstd)
        if variance is None:
            variance = e.sub(e.unary(ops.ReciprocalOp, e.mul(rstd, rstd)), e.like(eps, rstd))
    else:
        mean, variance = node.x("running_mean"), node.x("running_var")
    grad, x = (channels_last(e, node.x(name)) for name in ("grad_out", "input"))
    op = ops.FusedBatchNormGradOp(grad, x, scale, mean, variance, eps, training)
    by_x, by_scale, by_offset = e.emit_all(op)
    return wanted(node, (channels_second(e, by_x), by_scale, by_offset))


TABLE: Table = {
    "aten._native_batch_norm_legit_functional.default": _legit_functional,
    "aten._native_batch_norm_legit.no_stats": _without_stats,
    "aten._native_batch_norm_legit_no_training.default": _no_training,
    "aten.native_batch_norm_backward.default": _backward,
}
