"""Convolutions and pooling in two and three dimensions, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import channels_last, channels_second, max_positions
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Shape
from cgc.importers.tensorflow.node import Handler, NodeContext, Table


def _window(node: NodeContext, x: Shape, kernel: Shape) -> dict[str, Any]:
    """Return the attributes of `ConvolutionOp` for an input and a kernel of these shapes."""
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
    """Return a depthwise kernel `[h, w, channels, multiplier]` as one with a group per channel."""
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


def _pool_window(node: NodeContext, x: Shape, sizes_at: int | None = None) -> dict[str, Sequence[int]]:
    """Return ksize, strides and padding for an input shape; `sizes_at`: position of the first two inputs."""
    given: list[Any] = [None, None]
    if sizes_at is not None:
        given = [node.ints(sizes_at, "ksize"), node.ints(sizes_at + 1, "strides")]
    ksize, strides = along_space(node, "ksize", given[0]), along_space(node, "strides", given[1])
    return {"ksize": ksize, "strides": strides, "padding": explicit_padding(node, x[1:-1], ksize, strides)}


def _pool(kind: str, sizes_at: int | None = None) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = to_channels_last(node, node.x(0))
        return to_own_format(
            node, node.emit.emit(ops.PoolOp(x, kind, **_pool_window(node, shape_of(x), sizes_at)))
        )

    return handler


def _max_pool_grad(sizes_at: int | None = None) -> Handler:
    """Inputs: the operand of the pooling, its result, the gradient."""

    def handler(node: NodeContext) -> SSAValue:
        x, grad = (to_channels_last(node, node.x(i)) for i in (0, 2))
        window = _pool_window(node, shape_of(x), sizes_at)
        return to_own_format(node, node.emit.emit(ops.MaxPoolGradOp(x, grad, **window)))

    return handler


def _avg_pool_grad(node: NodeContext) -> SSAValue:
    """Inputs: the sizes of the operand of the pooling, the gradient."""
    sizes = sizes_channels_last(node, node.ints(0, "input size"))
    grad = to_channels_last(node, node.x(1))
    return to_own_format(node, node.emit.emit(ops.AvgPoolGradOp(grad, sizes, **_pool_window(node, sizes))))


def _max_pool_with_argmax(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """Return the largest elements, and their positions in an image, or by attribute in the batch."""
    e, x = node.emit, node.x(0)
    count, height, width, channels = shape_of(x)
    window = _window_of_images(node, shape_of(x))
    y = e.emit(ops.PoolOp(x, "MAX", **window))
    places = max_positions(e, x, shape_of(y), **window)
    numbers = e.add(e.mul(places, e.like(channels, places)), e.emit(ops.ArangeOp(channels)))
    if node.attr("include_batch_in_index"):
        first = e.emit(ops.ArangeOp(count, 0, height * width * channels))
        numbers = e.add(numbers, e.reshape(first, (count, 1, 1, 1)))
    return y, e.cast(numbers, node.out_dtype(1))


def _max_pool_with_argmax_grad(node: NodeContext) -> SSAValue:
    """Inputs: the operand of the pooling, the gradient, the indices."""
    x, window = node.x(0), _window_of_images(node, node.shape(0))
    return node.emit.emit(ops.MaxPoolGradOp(x, node.x(1), **window))


def _window_of_images(node: NodeContext, x: Shape) -> dict[str, Sequence[int]]:
    """Return the window of an operation that has no other format than NHWC."""
    ksize, strides = (tuple(node.attr(name)[1:3]) for name in ("ksize", "strides"))
    return {"ksize": ksize, "strides": strides, "padding": explicit_padding(node, x[1:-1], ksize, strides)}


Item = TypeVar("Item")


def channels_first(node: NodeContext) -> bool:
    """Return whether the channels of an operation are the second dimension: NCHW, NCDHW."""
    data_format = node.attr("data_format").decode()
    if data_format not in ("NHWC", "NDHWC", "NCHW", "NCDHW"):
        raise RefusedError(
            Kind.USAGE, f"its data_format is {data_format}, expected NHWC or NCHW, NDHWC or NCDHW"
        )
    return bool(data_format.startswith("NC"))


# CIRH has channels last. What TensorFlow has channels first (NCHW) is transposed before the op and back after
# it; the transposes between two such ops cancel out.
def to_channels_last(node: NodeContext, x: SSAValue) -> SSAValue:
    """Return a tensor of the operation as `[batch, *space, channels]`."""
    return channels_last(node.emit, x) if channels_first(node) else x


def to_own_format(node: NodeContext, x: SSAValue) -> SSAValue:
    """Return the inverse of `to_channels_last`."""
    return channels_second(node.emit, x) if channels_first(node) else x


def sizes_channels_last(node: NodeContext, sizes: Sequence[Item]) -> tuple[Item, ...]:
    """Return one item of each dimension, in the order of the operation, as batch, height, width, channels."""
    if len(sizes) < 4:
        raise RefusedError(Kind.USAGE, f"it has sizes {list(sizes)}, expected one of each dimension")
    return (sizes[0], *sizes[2:], sizes[1]) if channels_first(node) else tuple(sizes)


def along_space(node: NodeContext, what: str, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the attribute `what`, or given values, along the space; batch and channels need 1."""
    values = [int(value) for value in (node.attr(what) if given is None else given)]
    *space, channels = sizes_channels_last(node, values)[1:]
    if values[0] != 1 or channels != 1:
        raise RefusedError(Kind.USAGE, f"its {what} is {values}, expected 1 for batch and for channels")
    return tuple(space)


def explicit_padding(
    node: NodeContext,
    size: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the padding of TensorFlow's SAME, VALID or EXPLICIT: low and high of each dimension of space.

    Args:
        node: the operation.
        size: height and width of the image (or depth, height and width).
        window: those of a window.
        strides: steps of the windows.
        dilation: steps inside a window.
    """
    kind = node.attr("padding").decode()
    if kind == "EXPLICIT":
        given: Any = [int(value) for value in node.attr("explicit_paddings")]
        pairs = sizes_channels_last(node, list(zip(given[::2], given[1::2], strict=True)))
        if any(pairs[0]) or any(pairs[-1]):
            raise RefusedError(
                Kind.USAGE, f"its explicit_paddings are {given}, expected 0 for batch and channels"
            )
        return tuple(amount for pair in pairs[1:-1] for amount in pair)
    if kind == "VALID":
        return (0,) * 2 * len(size)
    steps = dilation or (1,) * len(size)
    return tuple(amount for axis in zip(size, window, strides, steps, strict=True) for amount in _same(*axis))


def _same(size: int, window: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the padding that makes the output `ceil(size / stride)`; an odd one goes to the end."""
    count = -(-size // stride)
    total = max(0, (count - 1) * stride + (window - 1) * dilation + 1 - size)
    return total // 2, total - total // 2


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
