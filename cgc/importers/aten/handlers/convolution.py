"""Convolutions in one to three dimensions, transposed ones, pooling, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.handlers.resampling import Matrix, apply_transposed
from cgc.importers.aten.node import Deferred, Handler, NodeContext, Table, Value
from cgc.importers.decompositions.indexing import channels_last, channels_second, max_positions
from cgc.importers.emit import Emitter, Shape


class _Window:
    """The attributes of a convolution; one dimension is computed as two, of which the first has size 1."""

    def __init__(self, node: NodeContext, dimensions: int) -> None:
        def along(name: str, default: int) -> tuple[int, ...]:
            given = tuple(node.arg(name) or (default,))
            given = given * dimensions if len(given) == 1 else given
            return (default, *given) if dimensions == 1 else given

        self.flat = dimensions == 1
        self.stride, self.dilation = along("stride", 1), along("dilation", 1)
        self.padding = tuple(n for pad in along("padding", 0) for n in (pad, pad))
        self.groups = node.arg("groups")

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of `ConvolutionOp`."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    def samples(self, e: Emitter, x: SSAValue) -> SSAValue:
        """`[N, C, ...]` as `[N, ..., C]`."""
        if self.flat:
            n, c, width = shape_of(x)
            x = e.reshape(x, (n, c, 1, width))
        return channels_last(e, x)

    def back(self, e: Emitter, x: SSAValue) -> SSAValue:
        """Return the reverse of `samples`."""
        x = channels_second(e, x)
        if self.flat:
            n, c, _, width = shape_of(x)
            x = e.reshape(x, (n, c, width))
        return x

    def kernel(self, e: Emitter, w: SSAValue) -> SSAValue:
        """`[out, in / groups, ...]` as `[..., in / groups, out]`."""
        if self.flat:
            out, channels, width = shape_of(w)
            w = e.reshape(w, (out, channels, 1, width))
        rank = len(shape_of(w))
        return e.transpose(w, (*range(2, rank), 1, 0))

    def kernel_back(self, e: Emitter, w: SSAValue) -> SSAValue:
        """Return the reverse of `kernel`."""
        rank = len(shape_of(w))
        w = e.transpose(w, (rank - 1, rank - 2, *range(rank - 2)))
        if self.flat:
            out, channels, _, width = shape_of(w)
            w = e.reshape(w, (out, channels, width))
        return w


def _sample_shape(window: _Window, shape: Shape) -> Shape:
    """Return the shape of `[N, C, ...]` without `samples`."""
    n, c, *space = shape
    return (n, *((1, *space) if window.flat else space), c)


def _convolution(node: NodeContext) -> SSAValue:
    e, w, bias = node.emit, node.cast("weight"), node.maybe("bias")
    window = _Window(node, len(node.shape) - 2)
    x = window.samples(e, node.cast("input"))
    if node.arg("transposed"):
        # it is the gradient by the input of a convolution with this kernel
        shape = _sample_shape(window, node.shape)
        op = ops.ConvolutionOp(
            x, window.kernel(e, w), **window.attributes(), conv_pass_direction="BWD_INPUT", shape=shape
        )
    else:
        op = ops.ConvolutionOp(x, window.kernel(e, w), **window.attributes())
    y = e.emit(op)
    return window.back(e, y if bias is None else e.emit(ops.BiasAddOp(y, e.cast(bias, node.dtype))))


def _convolution_backward(node: NodeContext) -> Sequence[Value]:
    """Return the gradients by input, weight and bias."""
    e, arguments = node.emit, node.node.arguments
    window = _Window(node, len(arguments["input"].shape) - 2)
    grad = window.samples(e, node.x("grad_output"))
    x, w = node.x("input"), node.x("weight")
    by_input, by_weight, by_bias = node.node.results
    found: list[Value] = [None, None, None]
    transposed = bool(node.arg("transposed"))
    if by_input is not None:
        found[0] = window.back(e, _by_input(e, window, grad, w, shape_of(x), transposed))
    if by_weight is not None:
        lhs, rhs = window.samples(e, x), grad
        if transposed:
            lhs, rhs = rhs, lhs
        shape = shape_of(window.kernel(e, w))
        op = ops.ConvolutionOp(lhs, rhs, **window.attributes(), conv_pass_direction="BWD_KERNEL", shape=shape)
        found[1] = window.kernel_back(e, e.emit(op))
    if by_bias is not None:
        found[2] = e.emit(ops.BiasAddGradOp(grad))
    return found


def _by_input(
    e: Emitter, window: _Window, grad: SSAValue, w: SSAValue, shape: Shape, transposed: bool
) -> SSAValue:
    kernel = window.kernel(e, w)
    if transposed:
        return e.emit(ops.ConvolutionOp(grad, kernel, **window.attributes()))
    return e.emit(
        ops.ConvolutionOp(
            grad,
            kernel,
            **window.attributes(),
            conv_pass_direction="BWD_INPUT",
            shape=_sample_shape(window, shape),
        )
    )


def _window(node: NodeContext, space: Shape, pooled: Shape) -> dict[str, Sequence[int]]:
    """Return ksize, strides and padding; `ceil_mode` adds padding at the end as far as results reach."""
    ksize = _along(node.arg("kernel_size"), len(space))
    strides = _along(node.arg("stride") or ksize, len(space))
    padding = _along(node.arg("padding"), len(space))
    pads: list[int] = []
    for size, count, kernel, stride, pad in zip(space, pooled, ksize, strides, padding, strict=True):
        reached = (count - 1) * stride + kernel - size - pad
        pads += [pad, max(pad, reached) if node.arg("ceil_mode") else pad]
    return {"ksize": ksize, "strides": strides, "padding": pads}


def _along(given: Any, dimensions: int) -> tuple[int, ...]:
    values = tuple(given)
    return values * dimensions if len(values) == 1 else values


def _to_batch(e: Emitter, x: SSAValue, dimensions: int) -> SSAValue:
    """Return the tensor with a batch dimension, channels last."""
    return channels_last(e, x if len(shape_of(x)) == dimensions + 2 else e.reshape(x, (1, *shape_of(x))))


def _max_pool(dimensions: int) -> Handler:
    """Return the largest elements and their positions; the gradient finds positions itself."""

    def handler(node: NodeContext) -> tuple[SSAValue, Deferred]:
        e, x = node.emit, node.x()
        if _is_dilated(node):
            places = _window_places(shape_of(x)[-dimensions:], _dilated_ranges(node, dimensions))
            return _largest(node, places, dimensions)
        window = _window(node, shape_of(x)[-dimensions:], node.shape[-dimensions:])
        batched = _to_batch(e, x, dimensions)
        y = e.emit(ops.PoolOp(batched, "MAX", **window))

        def positions() -> SSAValue:
            found = channels_second(e, max_positions(e, batched, shape_of(y), **window))
            return e.cast(e.reshape(found, node.shape), "int64")

        return e.reshape(channels_second(e, y), node.shape), Deferred(positions)

    return handler


def _is_dilated(node: NodeContext) -> bool:
    return any(step != 1 for step in node.arg("dilation"))


def _dilated_ranges(node: NodeContext, dimensions: int) -> list[list[range]]:
    """Return for each axis the elements that its windows take, without the padding."""
    kernel = _along(node.arg("kernel_size"), dimensions)
    settings = (kernel, node.arg("stride") or kernel, node.arg("padding"), node.arg("dilation"))
    found = []
    for size, count, kernel_size, stride, pad, dilation in zip(
        shape_of(node.x())[-dimensions:],
        node.shape[-dimensions:],
        *(_along(setting, dimensions) for setting in settings),
        strict=True,
    ):
        starts = (place * stride - pad for place in range(count))
        whole = (range(start, start + kernel_size * dilation, dilation) for start in starts)
        found.append([range(max(r.start, r.start % dilation), min(r.stop, size), dilation) for r in whole])
    return found


def _max_pool_backward(dimensions: int) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        if _is_dilated(node):
            return _to_places(node, dimensions)
        e, x, grad = node.emit, node.x(), node.x("grad_output")
        window = _window(node, shape_of(x)[-dimensions:], shape_of(grad)[-dimensions:])
        op = ops.MaxPoolGradOp(_to_batch(e, x, dimensions), _to_batch(e, grad, dimensions), **window)
        return e.reshape(channels_second(e, e.emit(op)), node.shape)

    return handler


def _avg_pool(dimensions: int) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e, x = node.emit, node.x()
        window, low, high = _counted_window(node, shape_of(x)[-dimensions:], node.shape[-dimensions:])
        x = e.pad(_to_batch(e, x, dimensions), (0, *low, 0), (0, *high, 0))
        y = e.emit(ops.PoolOp(x, "AVG", **window))
        return e.reshape(channels_second(e, _rescale(node, y, window)), node.shape)

    return handler


def _counted_window(
    node: NodeContext, space: Shape, pooled: Shape
) -> tuple[dict[str, Sequence[int]], Sequence[int], Sequence[int]]:
    """Return the window, and the padding along each axis that counts as zeros, before and after the elements.

    Padding that `ceil_mode` adds at the end does not count, unless the divisor is given.
    """
    window = _window(node, space, pooled)
    pads = window["padding"]
    low, high = list(pads[::2]), list(pads[1::2])
    if node.arg("divisor_override") is None:
        own = _along(node.arg("padding"), len(space)) if node.arg("count_include_pad") else (0,) * len(space)
        low, high = list(own), list(own)
    both = [amount for pair in zip(low, high, strict=True) for amount in pair]
    left = [pad - amount for pad, amount in zip(pads, both, strict=True)]
    return {**window, "padding": left}, low, high


def _rescale(node: NodeContext, x: SSAValue, window: dict[str, Sequence[int]]) -> SSAValue:
    """Return means of windows, or their gradients, with the divisor of the program instead of the size."""
    divisor = node.arg("divisor_override")
    return x if divisor is None else node.emit.scale(x, math.prod(window["ksize"]) / divisor)


def _avg_pool_backward(dimensions: int) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e, x, grad = node.emit, node.x(), node.x("grad_output")
        window, low, high = _counted_window(node, shape_of(x)[-dimensions:], shape_of(grad)[-dimensions:])
        shape = shape_of(_to_batch(e, x, dimensions))
        padded = [size + a + b for size, a, b in zip(shape, (0, *low, 0), (0, *high, 0), strict=True)]
        grad = _rescale(node, _to_batch(e, grad, dimensions), window)
        y = e.emit(ops.AvgPoolGradOp(grad, padded, **window))
        ends = [size - b for size, b in zip(padded, (0, *high, 0), strict=True)]
        y = e.slice(y, (0, *low, 0), ends, [1] * len(shape))
        return e.reshape(channels_second(e, y), node.shape)

    return handler


def _divides(space: Shape, pooled: Shape) -> bool:
    """Return whether adaptive windows have one size and do not overlap."""
    return all(count and size % count == 0 for size, count in zip(space, pooled, strict=True))


def _equal_windows(space: Shape, pooled: Shape) -> dict[str, Sequence[int]]:
    ksize = [size // count for size, count in zip(space, pooled, strict=True)]
    return {"ksize": ksize, "strides": ksize, "padding": [0] * 2 * len(ksize)}


def _adaptive_ranges(size: int, count: int) -> list[range]:
    """Return the elements of an axis for each window; windows overlap unless `count` divides `size`."""
    return [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _mean_matrices(space: Shape, pooled: Shape) -> list[Matrix]:
    """Return `[pooled, size]` for each axis: the weight of each element in the mean of a window."""
    found = []
    for size, count in zip(space, pooled, strict=True):
        matrix = np.zeros((count, size), np.float32)
        for row, window in zip(matrix, _adaptive_ranges(size, count), strict=True):
            row[window.start : window.stop] = 1 / len(window)
        found.append(matrix)
    return found


def _adaptive_avg_pool(dimensions: int) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e, x = node.emit, node.x()
        space, pooled = shape_of(x)[-dimensions:], node.shape[-dimensions:]
        if math.prod(pooled) == 1:
            axes = range(len(shape_of(x)) - dimensions, len(shape_of(x)))
            return e.reduce("MEAN", x, tuple(axes), keep_dims=True)
        if not _divides(space, pooled):
            return apply_transposed(e, x, [matrix.T for matrix in _mean_matrices(space, pooled)])
        op = ops.PoolOp(_to_batch(e, x, dimensions), "AVG", **_equal_windows(space, pooled))
        return e.reshape(channels_second(e, e.emit(op)), node.shape)

    return handler


def _adaptive_avg_pool_backward(dimensions: int) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e, x, grad = node.emit, node.x(), node.x("grad_output")
        space, pooled = shape_of(x)[-dimensions:], shape_of(grad)[-dimensions:]
        if math.prod(pooled) == 1:
            return e.broadcast(e.scale(grad, 1 / math.prod(space)), node.shape)
        if not _divides(space, pooled):
            return apply_transposed(e, grad, _mean_matrices(space, pooled))
        window = _equal_windows(space, pooled)
        shape = shape_of(_to_batch(e, x, dimensions))
        op = ops.AvgPoolGradOp(_to_batch(e, grad, dimensions), shape, **window)
        return e.reshape(channels_second(e, e.emit(op)), node.shape)

    return handler


def _adaptive_max_pool(dimensions: int) -> Handler:
    """Return the largest elements of windows, and the position in the image of the first such."""

    def handler(node: NodeContext) -> tuple[SSAValue, Deferred]:
        space, pooled = shape_of(node.x())[-dimensions:], node.shape[-dimensions:]
        ranges = [_adaptive_ranges(size, count) for size, count in zip(space, pooled, strict=True)]
        return _largest(node, _window_places(space, ranges), dimensions)

    return handler


def _largest(node: NodeContext, places: NDArray[np.int32], dimensions: int) -> tuple[SSAValue, Deferred]:
    """Return the largest elements of windows whose places are listed, and the position of the first such."""
    e, x = node.emit, node.x()
    count = math.prod(node.shape[:-dimensions])
    rows = e.reshape(x, (count, -1))
    windows = e.reshape(e.take(rows, e.constant(places.reshape(-1)), 1), (count, *places.shape))

    def positions() -> SSAValue:
        first = e.emit(ops.ArgMaxOp(windows, 2, "int32"))
        starts = np.arange(len(places), dtype=np.int32) * places.shape[1]
        found = e.take(e.constant(places.reshape(-1)), e.add(first, e.constant(starts)), 0)
        return e.cast(e.reshape(found, node.shape), "int64")

    return e.reshape(e.reduce("MAX", windows, (2,)), node.shape), Deferred(positions)


def _window_places(space: Shape, ranges: Sequence[Sequence[range]]) -> NDArray[np.int32]:
    """`[windows, elements]`: where in the image the elements of each window are, in their order.

    A window with fewer elements than others repeats its last ones, which changes neither its maximum nor
    which element is the first such.
    """
    places = np.zeros((1, 1), np.int32)
    for size, windows in zip(space, ranges, strict=True):
        longest = max(map(len, windows), default=1)
        along = np.array([[r[min(k, len(r) - 1)] for k in range(longest)] for r in windows], np.int32)
        along = along.reshape(len(windows), longest)
        both = places[:, None, :, None] * size + along[None, :, None, :]
        places = both.reshape(len(places) * len(windows), -1)
    return places


def _adaptive_max_pool_backward(dimensions: int) -> Handler:
    return lambda node: _to_places(node, dimensions)


def _to_places(node: NodeContext, dimensions: int) -> SSAValue:
    """Add each gradient at the position of the largest element of its window."""
    e, x, indices = node.emit, node.x(), node.x("indices")
    shape = shape_of(x)
    places, count = math.prod(shape[-dimensions:]), math.prod(shape[:-dimensions])
    rows = e.reshape(e.cast(indices, "int32"), (count, -1))
    starts = e.reshape(e.emit(ops.ArangeOp(count, 0, places, "int32")), (count, 1))
    flat = e.reshape(e.add(rows, starts), (-1,))
    grad = e.reshape(node.x("grad_output"), (-1,))
    return e.reshape(e.emit(ops.ScatterNdOp(flat, grad, (count * places,))), shape)


TABLE: Table = {
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.adaptive_max_pool2d.default": _adaptive_max_pool(2),
    "aten.adaptive_max_pool3d.default": _adaptive_max_pool(3),
    "aten.adaptive_max_pool2d_backward.default": _adaptive_max_pool_backward(2),
    "aten.adaptive_max_pool3d_backward.default": _adaptive_max_pool_backward(3),
    "aten.max_pool2d_with_indices.default": _max_pool(2),
    "aten.max_pool2d_with_indices_backward.default": _max_pool_backward(2),
    "aten.max_pool3d_with_indices.default": _max_pool(3),
    "aten.max_pool3d_with_indices_backward.default": _max_pool_backward(3),
    "aten.avg_pool2d.default": _avg_pool(2),
    "aten.avg_pool2d_backward.default": _avg_pool_backward(2),
    "aten.avg_pool3d.default": _avg_pool(3),
    "aten.avg_pool3d_backward.default": _avg_pool_backward(3),
    "aten._adaptive_avg_pool2d.default": _adaptive_avg_pool(2),
    "aten._adaptive_avg_pool2d_backward.default": _adaptive_avg_pool_backward(2),
    "aten._adaptive_avg_pool3d.default": _adaptive_avg_pool(3),
    "aten._adaptive_avg_pool3d_backward.default": _adaptive_avg_pool_backward(3),
}
