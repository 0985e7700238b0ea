"""Matrix products and biases."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.emit import broadcast_shape
from cgc.importers.tensorflow.node import NodeContext, Table


def _matmul(node: NodeContext) -> SSAValue:
    a, b = node.all()
    return node.emit.emit(ops.MatMulOp(a, b, node.attr("transpose_a"), node.attr("transpose_b")))


def _batch_matmul(node: NodeContext) -> SSAValue:
    """Products over the last two axes; the leading ones are broadcast (BatchMatMulV2, V3)."""
    e, (a, b) = node.emit, node.all()
    left, right = shape_of(a), shape_of(b)
    batch = broadcast_shape(left[:-2], right[:-2])
    a, b = e.broadcast(a, (*batch, *left[-2:])), e.broadcast(b, (*batch, *right[-2:]))
    return e.emit(ops.MatMulOp(a, b, node.attr("adj_x"), node.attr("adj_y")))


def _bias_add(node: NodeContext) -> SSAValue:
    e, (x, bias) = node.emit, node.all()
    if not _channels_first(node, x):
        return e.emit(ops.BiasAddOp(x, bias))
    return e.add(x, e.reshape(bias, (-1, *(1,) * (len(shape_of(x)) - 2))))


def _bias_add_grad(node: NodeContext) -> SSAValue:
    e, grad = node.emit, node.x(0)
    if not _channels_first(node, grad):
        return e.emit(ops.BiasAddGradOp(grad))
    return e.reduce("ADD", grad, [axis for axis in range(len(shape_of(grad))) if axis != 1])


def _channels_first(node: NodeContext, x: SSAValue) -> bool:
    return bool(node.attr("data_format") == b"NCHW") and len(shape_of(x)) > 2


TABLE: Table = {
    "MatMul": _matmul,
    "BatchMatMul": _batch_matmul,
    "BatchMatMulV2": _batch_matmul,
    "BatchMatMulV3": _batch_matmul,
    "BiasAdd": _bias_add,
    "BiasAddGrad": _bias_add_grad,
}
