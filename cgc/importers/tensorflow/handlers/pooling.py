"""Pooling and its gradients."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.tensorflow.emit import Shape
from cgc.importers.tensorflow.handlers.windows import along_space, explicit_padding, require_channels_last
from cgc.importers.tensorflow.node import Handler, NodeContext, Table

_Window = tuple[tuple[int, int], tuple[int, int], tuple[int, int, int, int]]


def _window(node: NodeContext, x: Shape) -> _Window:
    """ksize, strides and padding for an input of this shape."""
    require_channels_last(node)
    ksize, strides = along_space(node, "ksize"), along_space(node, "strides")
    return ksize, strides, explicit_padding(node, x[1:3], ksize, strides)


def _pool(kind: str) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.x(0)
        return node.emit.emit(ops.PoolOp(x, kind, *_window(node, shape_of(x))))

    return handler


def _max_pool_grad(node: NodeContext) -> SSAValue:
    """Inputs: what was pooled, the result of it, the gradient."""
    x, grad = node.x(0), node.x(2)
    return node.emit.emit(ops.MaxPoolGradOp(x, grad, *_window(node, shape_of(x))))


def _avg_pool_grad(node: NodeContext) -> SSAValue:
    """Inputs: the sizes of what was pooled, the gradient."""
    sizes = tuple(node.ints(0, "input size"))
    return node.emit.emit(ops.AvgPoolGradOp(node.x(1), sizes, *_window(node, sizes)))


TABLE: Table = {
    "MaxPool": _pool("MAX"),
    "AvgPool": _pool("AVG"),
    "MaxPoolGrad": _max_pool_grad,
    "AvgPoolGrad": _avg_pool_grad,
}
