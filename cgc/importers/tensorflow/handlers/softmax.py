"""Softmax and the cross entropies."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.tensorflow.node import NodeContext, Table


def _softmax(node: NodeContext) -> SSAValue:
    x = node.x(0)
    return node.emit.emit(ops.SoftmaxOp(x, len(shape_of(x)) - 1))


def _log_softmax(node: NodeContext) -> SSAValue:
    x = node.x(0)
    return node.emit.emit(ops.LogSoftmaxOp(x, len(shape_of(x)) - 1))


def _sparse_cross_entropy(node: NodeContext) -> tuple[SSAValue, ...]:
    return node.emit.emit_all(ops.SparseSoftmaxCrossEntropyWithLogitsOp(node.x(0), node.x(1)))


def _cross_entropy(node: NodeContext) -> tuple[SSAValue, ...]:
    e = node.emit
    shape = tuple(node.op.outputs[1].shape.as_list())
    logits, labels = (e.broadcast(x, shape) for x in node.all())
    return e.emit_all(ops.SoftmaxCrossEntropyWithLogitsOp(logits, labels))


TABLE: Table = {
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
}
