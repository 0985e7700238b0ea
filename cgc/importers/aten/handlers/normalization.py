"""Batch norm, layer norm and group norm, and their gradients.

PyTorch saves 1 / sqrt(variance + eps) of a batch norm, the device the variance. The running variance divides
by count - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.node import NodeContext, Table, Value
from cgc.importers.decompositions.indexing import channels_last, channels_second


def _channels_vector(node: NodeContext, name: str, default: float) -> SSAValue:
    """Return a vector of channels, or a constant one if there is none."""
    given = node.maybe(name)
    channels = node.node.arguments["input"].shape[1]
    return node.emit.full(default, (channels,), "float32") if given is None else given


def _normalize(node: NodeContext, training: bool) -> tuple[SSAValue, ...]:
    """Return y, saved mean, saved 1 / sqrt(variance + eps), new running mean, new running variance."""
    e, eps = node.emit, node.arg("eps")
    x = channels_last(e, node.x("input"))
    scale, offset = _channels_vector(node, "weight", 1), _channels_vector(node, "bias", 0)
    moments = _channels_vector(node, "running_mean", 0), _channels_vector(node, "running_var", 1)
    op = ops.FusedBatchNormOp(x, scale, offset, *moments, eps, node.arg("momentum"), training)
    y, mean, variance, saved_mean, saved_variance = e.emit_all(op)
    rstd = e.unary(ops.RsqrtOp, e.add(saved_variance, e.like(eps, saved_variance)))
    node.step.variances[rstd] = saved_variance
    return channels_second(e, y), saved_mean, rstd, mean, variance


def _legit_functional(node: NodeContext) -> tuple[SSAValue, ...]:
    return _normalize(node, bool(node.arg("training")))


def _without_stats(node: NodeContext) -> tuple[SSAValue, ...]:
    return _normalize(node, bool(node.arg("training", True)))[:3]


def _no_training(node: NodeContext) -> Sequence[Value]:
    """Normalize in evaluation; the other results are empty, as nothing is saved."""
    y = _normalize(node, training=False)[0]
    empty = [node.emit.full(0, node.result(i).shape, node.result(i).dtype) for i in (1, 2)]
    return [y, *empty]


def _backward(node: NodeContext) -> Sequence[Value]:
    e, training, eps = node.emit, bool(node.arg("train")), node.arg("eps")
    scale = _channels_vector(node, "weight", 1)
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
    return requested_gradients(node, (channels_second(e, by_x), by_scale, by_offset))


def _layer_norm(node: NodeContext) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Return y, and mean and 1 / sqrt(variance + eps) of each row."""
    e, x = node.emit, node.x("input")
    width = math.prod(node.arg("normalized_shape"))
    rows = e.reshape(x, (-1, width))
    scale, offset = _vector(node, "weight", width, 1), _vector(node, "bias", width, 0)
    y, mean, rstd = e.emit_all(ops.LayerNormOp(rows, scale, offset, node.arg("eps")))
    return (
        e.reshape(y, node.shape),
        e.reshape(e.cast(mean, node.result(1).dtype), node.result(1).shape),
        e.reshape(e.cast(rstd, node.result(2).dtype), node.result(2).shape),
    )


def _layer_norm_backward(node: NodeContext) -> Sequence[Value]:
    """Return the gradients by x, weight and bias, as far as `output_mask` requests them."""
    e, x = node.emit, node.x("input")
    width = math.prod(node.arg("normalized_shape"))
    grad, rows = (e.reshape(value, (-1, width)) for value in (node.x("grad_out"), x))
    mean, rstd = (e.cast(e.reshape(node.x(name), (-1, 1)), "float32") for name in ("mean", "rstd"))
    op = ops.LayerNormGradOp(grad, rows, _vector(node, "weight", width, 1), mean, rstd)
    return requested_gradients(node, e.emit_all(op))


def _vector(node: NodeContext, name: str, width: int, default: float) -> SSAValue:
    given = node.maybe(name)
    e = node.emit
    if given is None:
        dtype = node.node.arguments["input"].dtype
        return e.full(default, (width,), dtype)
    return e.reshape(given, (width,))


def requested_gradients(node: NodeContext, values: Sequence[SSAValue]) -> list[Value]:
    """Return gradients in the shapes of the results; None for those that the operation leaves out."""
    found: list[Value] = []
    for tensor, value in zip(node.node.results, values, strict=True):
        found.append(None if tensor is None else node.emit.reshape(value, tensor.shape))
    return found


def _group_norm(node: NodeContext) -> tuple[SSAValue, SSAValue, SSAValue]:
    """y, and mean and 1 / sqrt(variance + eps) of each group: `[N, groups]`. x is `[N, C, ...]`."""
    e, x = node.emit, node.x("input")
    channels = shape_of(x)[1]
    scale, offset = _vector(node, "weight", channels, 1), _vector(node, "bias", channels, 0)
    op = ops.GroupNormOp(channels_last(e, x), scale, offset, node.arg("group"), node.arg("eps"))
    y, mean, rstd = e.emit_all(op)
    mean, rstd = (e.cast(moment, node.result(1).dtype) for moment in (mean, rstd))
    return channels_second(e, y), mean, rstd


def _group_norm_backward(node: NodeContext) -> Sequence[Value]:
    e, x = node.emit, node.x("input")
    scale = _vector(node, "weight", shape_of(x)[1], 1)
    grad, x = (channels_last(e, value) for value in (node.x("grad_out"), x))
    mean, rstd = (e.cast(node.x(name), "float32") for name in ("mean", "rstd"))
    by_x, by_scale, by_offset = e.emit_all(ops.GroupNormGradOp(grad, x, scale, mean, rstd, node.arg("group")))
    return requested_gradients(node, (channels_second(e, by_x), by_scale, by_offset))


TABLE: Table = {
    "aten._native_batch_norm_legit_functional.default": _legit_functional,
    "aten._native_batch_norm_legit.no_stats": _without_stats,
    "aten._native_batch_norm_legit_no_training.default": _no_training,
    "aten.native_batch_norm_backward.default": _backward,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_group_norm_backward.default": _group_norm_backward,
}
