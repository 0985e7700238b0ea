"""Convolutions in two dimensions and their gradients, dense and depthwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.tensorflow.emit import Shape
from cgc.importers.tensorflow.handlers.windows import along_space, explicit_padding, require_channels_last
from cgc.importers.tensorflow.node import Handler, NodeContext, Table


def _window(node: NodeContext, x: Shape, kernel: Shape) -> dict[str, Any]:
    """The attributes of `ConvolutionOp` for an input and a kernel of these shapes."""
    require_channels_last(node)
    strides, dilation = along_space(node, "strides"), along_space(node, "dilations")
    return {
        "stride": strides,
        "padding": explicit_padding(node, x[1:3], kernel[:2], strides, dilation),
        "dilation": dilation,
        "groups": x[3] // max(1, kernel[2]),
    }


def _dense(kernel: Shape) -> Shape:
    return kernel


def _per_channel(kernel: Shape) -> Shape:
    """A depthwise kernel `[h, w, channels, multiplier]` as that of a convolution with a group per channel."""
    return (*kernel[:2], 1, kernel[2] * kernel[3])


def _forward(as_grouped: Callable[[Shape], Shape]) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x, kernel = node.all()
        shape = as_grouped(shape_of(kernel))
        window = _window(node, shape_of(x), shape)
        return node.emit.emit(ops.ConvolutionOp(x, node.emit.reshape(kernel, shape), **window))

    return handler


def _by_input(as_grouped: Callable[[Shape], Shape]) -> Handler:
    """Inputs: sizes of the input, kernel, gradient. Also what `conv2d_transpose` is in a forward pass."""

    def handler(node: NodeContext) -> SSAValue:
        sizes, kernel, grad = tuple(node.ints(0, "input size")), node.x(1), node.x(2)
        shape = as_grouped(shape_of(kernel))
        if len(sizes) == 2:
            sizes = (shape_of(grad)[0], *sizes, shape_of(kernel)[2])
        return node.emit.emit(
            ops.ConvolutionOp(
                grad,
                node.emit.reshape(kernel, shape),
                **_window(node, sizes, shape),
                conv_pass_direction="BWD_INPUT",
                shape=sizes,
            )
        )

    return handler


def _by_kernel(as_grouped: Callable[[Shape], Shape]) -> Handler:
    """Inputs: the input, sizes of the kernel, gradient."""

    def handler(node: NodeContext) -> SSAValue:
        x, sizes, grad = node.x(0), tuple(node.ints(1, "filter size")), node.x(2)
        shape = as_grouped(sizes)
        window = _window(node, shape_of(x), shape)
        gradient = ops.ConvolutionOp(x, grad, **window, conv_pass_direction="BWD_KERNEL", shape=shape)
        return node.emit.reshape(node.emit.emit(gradient), sizes)

    return handler


TABLE: Table = {
    "Conv2D": _forward(_dense),
    "Conv2DBackpropInput": _by_input(_dense),
    "Conv2DBackpropFilter": _by_kernel(_dense),
    "DepthwiseConv2dNative": _forward(_per_channel),
    "DepthwiseConv2dNativeBackpropInput": _by_input(_per_channel),
    "DepthwiseConv2dNativeBackpropFilter": _by_kernel(_per_channel),
}
