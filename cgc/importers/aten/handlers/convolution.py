"""Convolutions in one to three dimensions, transposed ones, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.handlers.layer_norm import channels_last, channels_second
from cgc.importers.aten.node import NodeContext, Table, Value
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
        """For `ConvolutionOp`."""
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
        """The reverse of `samples`."""
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
        """The reverse of `kernel`."""
        rank = len(shape_of(w))
        w = e.transpose(w, (rank - 1, rank - 2, *range(rank - 2)))
        if self.flat:
            out, channels, _, width = shape_of(w)
            w = e.reshape(w, (out, channels, width))
        return w


def _sample_shape(window: _Window, shape: Shape) -> Shape:
    """The shape of `[N, C, ...]` behind `samples`."""
    n, c, *space = shape
    return (n, *((1, *space) if window.flat else space), c)


def _convolution(node: NodeContext) -> SSAValue:
    e, w, bias = node.emit, node.cast("weight"), node.maybe("bias")
    window = _Window(node, len(node.shape) - 2)
    x = window.samples(e, node.cast("input"))
    if node.arg("transposed"):
        # what the gradient by the input of a convolution with this kernel is
        shape = _sample_shape(window, node.shape)
        op = ops.ConvolutionOp(
            x, window.kernel(e, w), **window.attributes(), conv_pass_direction="BWD_INPUT", shape=shape
        )
    else:
        op = ops.ConvolutionOp(x, window.kernel(e, w), **window.attributes())
    y = e.emit(op)
    return window.back(e, y if bias is None else e.emit(ops.BiasAddOp(y, e.cast(bias, node.dtype))))


def _convolution_backward(node: NodeContext) -> Sequence[Value]:
    """By input, weight and bias."""
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


TABLE: Table = {
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
}
