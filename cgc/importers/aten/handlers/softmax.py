"""Softmax, negative log likelihood, and cross entropy, which combines the two."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.softmax import PADDING_LABEL
from cgc.cirh.types import shape_of
from cgc.importers.aten.node import ClassGrad, NodeContext, Table, Value
from cgc.importers.decompositions.indexing import channels_last, channels_second
from cgc.importers.emit import Emitter, dtype_of

MEAN = 1  # ATen's number of the reduction "mean"; 0 is "none", 2 is "sum"


def _softmax(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.cast()
    return e.emit(ops.SoftmaxOp(x, node.axis())) if node.shape else e.like(1, x)


def _softmax_backward(node: NodeContext) -> SSAValue:
    e = node.emit
    grad, output = node.x("grad_output"), node.x("output")
    if not node.shape:
        return e.like(0, output)
    return e.cast(e.emit(ops.SoftmaxGradOp(output, grad, node.axis(source="output"))), node.dtype)


def _log_softmax(node: NodeContext) -> SSAValue:
    x, axis = node.cast(), node.axis()
    if not node.shape:
        return node.emit.like(0, x)
    found = node.emit.emit(ops.LogSoftmaxOp(x, axis))
    if axis == len(shape_of(x)) - 1:
        node.step.logits[found] = x
    return found


def _log_softmax_backward(node: NodeContext) -> SSAValue:
    """Grad - softmax * sum(grad); of a cross entropy that is the scaled difference of softmax and labels."""
    e, likelihood, axis = node.emit, node.raw("grad_output"), node.axis(source="output")
    if not node.shape:
        return e.like(0, node.x("output"))
    if isinstance(likelihood, ClassGrad) and likelihood.backprop is not None:
        scale = e.reshape(likelihood.scale, (*shape_of(likelihood.scale), 1))
        return e.cast(e.mul(likelihood.backprop, scale), node.dtype)
    grad = node.x("grad_output")
    total = e.reduce("ADD", grad, (axis,), keep_dims=True)
    probabilities = e.unary(ops.ExpOp, node.x("output"))
    return e.cast(e.sub(grad, e.mul(probabilities, total)), node.dtype)


def _nll_loss(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """Return the loss, and the weight of all rows: those whose label is `ignore_index` have none."""
    e, target = node.emit, node.x("target")
    log_p, labels = _rows(e, node.x(), target)
    kept = e.compare("NE", labels, e.like(node.arg("ignore_index"), labels))
    weights = _weights(node, labels, kept)
    losses = _losses(node, log_p, labels, kept)
    if node.arg("weight") is not None:
        losses = e.mul(losses, weights)
    reduction = node.arg("reduction")
    if reduction == 0:
        return e.reshape(losses, node.shape), e.full(0, node.result(1).shape, node.result(1).dtype)
    axes = tuple(range(len(shape_of(losses))))
    total, weight = e.reduce("ADD", losses, axes), e.reduce("ADD", weights, axes)
    return (e.div(total, weight) if reduction == MEAN else total), weight


def _nll_loss_backward(node: NodeContext) -> Value:
    e = node.emit
    source = node.x()
    _, labels = _rows(e, source, node.x("target"))
    kept = e.compare("NE", labels, e.like(node.arg("ignore_index"), labels))
    grad, reduction = node.x("grad_output"), node.arg("reduction")
    if reduction == MEAN:
        grad = e.div(grad, node.x("total_weight"))
    grad = e.broadcast(grad, shape_of(labels)) if reduction else e.reshape(grad, shape_of(labels))
    scale = e.select(kept, grad, e.like(0, grad))
    if node.arg("weight") is not None:
        scale = e.mul(scale, _weights(node, labels, kept))
    backprop = node.step.backprops.get((source, node.x("target")))
    return ClassGrad(scale, backprop, partial(_spread, e, scale, labels, shape_of(source)))


def _spread(e: Emitter, scale: SSAValue, labels: SSAValue, shape: tuple[int, ...]) -> SSAValue:
    """Return minus the scale at the label of each row, zero elsewhere."""
    axis = 1 if len(shape) > 1 else 0
    dtype = dtype_of(scale)
    hot = ops.OneHotOp(labels, e.scalar(1, dtype), e.scalar(0, dtype), shape[axis], -1)
    wide = e.reshape(e.unary(ops.NegOp, scale), (*shape_of(scale), 1))
    grad = e.mul(e.emit(hot), wide)
    return channels_second(e, grad) if len(shape) > 2 else e.reshape(grad, shape)


def _rows(e: Emitter, log_p: SSAValue, target: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Return log probabilities with the classes last, and labels, one for each row."""
    if len(shape_of(log_p)) > 2:
        log_p = channels_last(e, log_p)
    return log_p, e.reshape(target, shape_of(log_p)[:-1])


def _weights(node: NodeContext, labels: SSAValue, kept: SSAValue) -> SSAValue:
    """Return the weight of each row: that of its class, or 1; 0 for ignored rows."""
    e, weight = node.emit, node.maybe("weight")
    if weight is None:
        return e.cast(kept, node.result().dtype)
    safe = e.select(kept, labels, e.like(0, labels))
    return e.select(kept, e.take(weight, safe, 0), e.scalar(0, node.result().dtype))


def _losses(node: NodeContext, log_p: SSAValue, labels: SSAValue, kept: SSAValue) -> SSAValue:
    """Return minus the log probability of each row's label, 0 for ignored rows."""
    e = node.emit
    classes = shape_of(log_p)[-1]
    source = node.x()
    logits = node.step.logits.get(source)
    if logits is not None and len(shape_of(logits)) <= 2:
        padded = e.select(kept, labels, e.like(PADDING_LABEL, labels))
        losses, backprop = e.emit_all(ops.SparseSoftmaxCrossEntropyWithLogitsOp(logits, padded))
        node.step.backprops[source, node.x("target")] = backprop
        return losses
    rows = math.prod(shape_of(labels))
    safe = e.cast(e.reshape(e.select(kept, labels, e.like(0, labels)), (rows,)), "int32")
    starts = e.emit(ops.ArangeOp(rows, 0, classes, "int32"))
    found = e.take(e.reshape(log_p, (-1,)), e.add(safe, starts), 0)
    found = e.reshape(e.unary(ops.NegOp, found), shape_of(labels))
    return e.select(kept, found, e.like(0, found))


def _ctc_loss(node: NodeContext) -> tuple[SSAValue, None]:
    """Losses `[N]` of log probabilities `[T, N, C]`; what CPUs keep of the alignments is not needed."""
    e = node.emit
    log_probs = e.transpose(node.x("log_probs"), (1, 0, 2))
    target_lengths = _lengths(node, "target_lengths")
    targets = _pad_targets(node, target_lengths)
    op = ops.CtcLossOp(log_probs, targets, _lengths(node, "input_lengths"), target_lengths, node.arg("blank"))
    losses, backprop = e.emit_all(op)
    node.step.backprops[losses, node.x("targets")] = e.transpose(backprop, (1, 0, 2))
    return losses, None


def _lengths(node: NodeContext, name: str) -> SSAValue:
    """Return lengths as a tensor; a program may give them as numbers."""
    given = node.arg(name)
    if isinstance(given, list):
        return node.emit.constant(np.asarray(given, np.int32))
    return node.emit.cast(node.x(name), "int32")


def _pad_targets(node: NodeContext, lengths: SSAValue) -> SSAValue:
    """Return targets as `[N, S]`, a row for each sequence; one-dimensional targets are concatenated."""
    e, targets = node.emit, node.x("targets")
    if len(shape_of(targets)) == 2:
        return targets
    (count,) = shape_of(lengths)
    (total,) = shape_of(targets)
    starts = e.reshape(e.emit(ops.CumSumOp(lengths, 0, exclusive=True)), (count, 1))
    places = e.add(starts, e.reshape(e.emit(ops.ArangeOp(total)), (1, total)))
    return e.take(targets, e.binary(ops.MinOp, places, e.like(total - 1, places)), 0)


def _ctc_loss_backward(node: NodeContext) -> SSAValue:
    """Return the gradient by the logits of the log probabilities, as in ATen."""
    e, losses, grad = node.emit, node.x("neg_log_likelihood"), node.x("grad")
    backprop = node.step.backprops[losses, node.x("targets")]
    found = e.mul(backprop, e.reshape(grad, (1, *shape_of(grad), 1)))
    if not node.arg("zero_infinity"):
        return found
    fits = e.reshape(e.unary(ops.IsFiniteOp, losses), (1, *shape_of(losses), 1))
    return e.select(fits, found, e.like(0, found))


TABLE: Table = {
    "aten._ctc_loss.default": _ctc_loss,
    "aten._ctc_loss.Tensor": _ctc_loss,
    "aten._ctc_loss_backward.default": _ctc_loss_backward,
    "aten._ctc_loss_backward.Tensor": _ctc_loss_backward,
    "aten._softmax.default": _softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax.default": _log_softmax,
    "aten._log_softmax_backward_data.default": _log_softmax_backward,
    "aten.nll_loss_forward.default": _nll_loss,
    "aten.nll_loss_backward.default": _nll_loss_backward,
    "aten.nll_loss2d_forward.default": _nll_loss,
    "aten.nll_loss2d_backward.default": _nll_loss_backward,
}
