"""Convolutions in two and three dimensions and their gradients, dense and depthwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.emit import Shape
from cgc.importers.tensorflow.handlers.windows import (
    along_space,
    explicit_padding,
    sizes_channels_last,
    to_channels_last,
    to_own_format,
)
from cgc.importers.tensorflow.node import Handler, NodeContext, Table


def _window(node: NodeContext, x: Shape, kernel: Shape) -> dict[str, Any]:
    """The attributes of `ConvolutionOp` for an input and a kernel of these shapes."""
    strides, dilation = along_space(node, "strides"), along_space(node, "dilations")
    return {
        "stride": strides,
        "padding": explicit_padding(node, x[1:-1], kernel[:-2], strides, dilation),
        "dilation": dilation,
        "groups": x[-1] // max(1, kernel[-2]),
    }


def _dense(kernel: Shape) -> Shape:
    return kernel


def _per_channel(kernel: Shape) -> Shape:
    """A depthwise kernel `[h, w, channels, multiplier]` as that of a convolution with a group per channel."""
    return (*kernel[:2], 1, kernel[2] * kernel[3])


def _forward(as_grouped: Callable[[Shape], Shape]) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x, kernel = to_channels_last(node, node.x(0)), node.x(1)
        shape = as_grouped(shape_of(kernel))
        window = _window(node, shape_of(x), shape)
        y = node.emit.emit(ops.ConvolutionOp(x, node.emit.reshape(kernel, shape), **window))
        return to_own_format(node, y)

    return handler


def _by_input(as_grouped: Callable[[Shape], Shape]) -> Handler:
    """Inputs: sizes of the input, kernel, gradient. Also what `conv2d_transpose` is in a forward pass."""

    def handler(node: NodeContext) -> SSAValue:
        kernel, grad = node.x(1), to_channels_last(node, node.x(2))
        shape = as_grouped(shape_of(kernel))
        given = node.ints(0, "input size")
        space_only = len(given) == len(shape_of(grad)) - 2
        sizes = (
            (shape_of(grad)[0], *given, shape_of(kernel)[-2])
            if space_only
            else sizes_channels_last(node, given)
        )
        gradient = ops.ConvolutionOp(
            grad,
            node.emit.reshape(kernel, shape),
            **_window(node, sizes, shape),
            conv_pass_direction="BWD_INPUT",
            shape=sizes,
        )
        return to_own_format(node, node.emit.emit(gradient))

    return handler


def _by_kernel(as_grouped: Callable[[Shape], Shape]) -> Handler:
    """Inputs: the input, sizes of the kernel, gradient."""

    def handler(node: NodeContext) -> SSAValue:
        x, grad = (to_channels_last(node, node.x(i)) for i in (0, 2))
        sizes = tuple(node.ints(1, "filter size"))
        shape = as_grouped(sizes)
        window = _window(node, shape_of(x), shape)
        gradient = ops.ConvolutionOp(x, grad, **window, conv_pass_direction="BWD_KERNEL", shape=shape)
        return node.emit.reshape(node.emit.emit(gradient), sizes)

    return handler


TABLE: Table = {
    "Conv2D": _forward(_dense),
    "Conv2DBackpropInput": _by_input(_dense),
    "Conv2DBackpropFilter": _by_kernel(_dense),
    "Conv3D": _forward(_dense),
    "Conv3DBackpropInputV2": _by_input(_dense),
    "Conv3DBackpropFilterV2": _by_kernel(_dense),
    "DepthwiseConv2dNative": _forward(_per_channel),
    "DepthwiseConv2dNativeBackpropInput": _by_input(_per_channel),
    "DepthwiseConv2dNativeBackpropFilter": _by_kernel(_per_channel),
}
