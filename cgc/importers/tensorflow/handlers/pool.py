"""Pooling and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.pooling import places_of_largest
from cgc.importers.emit import Shape
from cgc.importers.tensorflow.handlers.windows import (
    along_space,
    explicit_padding,
    sizes_channels_last,
    to_channels_last,
    to_own_format,
)
from cgc.importers.tensorflow.node import Handler, NodeContext, Table


def _window(node: NodeContext, x: Shape, sizes_at: int | None = None) -> dict[str, Sequence[int]]:
    """ksize, strides and padding for an input of this shape; `sizes_at`: which inputs give the first two."""
    given: list[Any] = [None, None]
    if sizes_at is not None:
        given = [node.ints(sizes_at, "ksize"), node.ints(sizes_at + 1, "strides")]
    ksize, strides = along_space(node, "ksize", given[0]), along_space(node, "strides", given[1])
    return {"ksize": ksize, "strides": strides, "padding": explicit_padding(node, x[1:-1], ksize, strides)}


def _pool(kind: str, sizes_at: int | None = None) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = to_channels_last(node, node.x(0))
        return to_own_format(
            node, node.emit.emit(ops.PoolOp(x, kind, **_window(node, shape_of(x), sizes_at)))
        )

    return handler


def _max_pool_grad(sizes_at: int | None = None) -> Handler:
    """Inputs: what was pooled, the result of it, the gradient."""

    def handler(node: NodeContext) -> SSAValue:
        x, grad = (to_channels_last(node, node.x(i)) for i in (0, 2))
        window = _window(node, shape_of(x), sizes_at)
        return to_own_format(node, node.emit.emit(ops.MaxPoolGradOp(x, grad, **window)))

    return handler


def _avg_pool_grad(node: NodeContext) -> SSAValue:
    """Inputs: the sizes of what was pooled, the gradient."""
    sizes = sizes_channels_last(node, node.ints(0, "input size"))
    grad = to_channels_last(node, node.x(1))
    return to_own_format(node, node.emit.emit(ops.AvgPoolGradOp(grad, sizes, **_window(node, sizes))))


def _max_pool_with_argmax(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """The largest elements, and their numbers in an image, or with the attribute in the whole batch."""
    e, x = node.emit, node.x(0)
    count, height, width, channels = shape_of(x)
    window = _window_of_images(node, shape_of(x))
    y = e.emit(ops.PoolOp(x, "MAX", **window))
    places = places_of_largest(e, x, shape_of(y), **window)
    numbers = e.add(e.mul(places, e.like(channels, places)), e.emit(ops.ArangeOp(channels)))
    if node.attr("include_batch_in_index"):
        first = e.emit(ops.ArangeOp(count, 0, height * width * channels))
        numbers = e.add(numbers, e.reshape(first, (count, 1, 1, 1)))
    return y, e.cast(numbers, node.out_dtype(1))


def _max_pool_with_argmax_grad(node: NodeContext) -> SSAValue:
    """Inputs: what was pooled, the gradient, the numbers."""
    x, window = node.x(0), _window_of_images(node, node.shape(0))
    return node.emit.emit(ops.MaxPoolGradOp(x, node.x(1), **window))


def _window_of_images(node: NodeContext, x: Shape) -> dict[str, Sequence[int]]:
    """The window of an operation that has no other format than NHWC."""
    ksize, strides = (tuple(node.attr(name)[1:3]) for name in ("ksize", "strides"))
    return {"ksize": ksize, "strides": strides, "padding": explicit_padding(node, x[1:-1], ksize, strides)}


TABLE: Table = {
    "MaxPoolWithArgmax": _max_pool_with_argmax,
    "MaxPoolGradWithArgmax": _max_pool_with_argmax_grad,
    "MaxPool": _pool("MAX"),
    "MaxPoolV2": _pool("MAX", 1),
    "AvgPool": _pool("AVG"),
    "MaxPoolGrad": _max_pool_grad(),
    "MaxPoolGradV2": _max_pool_grad(3),
    "AvgPoolGrad": _avg_pool_grad,
    "MaxPool3D": _pool("MAX"),
    "AvgPool3D": _pool("AVG"),
    "MaxPool3DGrad": _max_pool_grad(),
    "AvgPool3DGrad": _avg_pool_grad,
}
