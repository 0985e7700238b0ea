"""What convolution and pooling share: data format, padding and the sizes along height and width.

CIRH has channels last. What TensorFlow has channels first (NCHW) is transposed before the op and back behind
it; the transposes between two such ops cancel out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from xdsl.ir import SSAValue

from cgc.cirh.types import shape_of
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import NodeContext

Item = TypeVar("Item")


def channels_first(node: NodeContext) -> bool:
    """Whether the tensors of an operation have their channels behind the batch: NCHW, NCDHW."""
    data_format = node.attr("data_format").decode()
    if data_format not in ("NHWC", "NDHWC", "NCHW", "NCDHW"):
        raise RefusedError(
            Kind.USAGE, f"its data_format is {data_format}, expected NHWC or NCHW, NDHWC or NCDHW"
        )
    return bool(data_format.startswith("NC"))


def to_channels_last(node: NodeContext, x: SSAValue) -> SSAValue:
    """A tensor of the operation as `[batch, *space, channels]`."""
    if not channels_first(node):
        return x
    return node.emit.transpose(x, (0, *range(2, len(shape_of(x))), 1))


def to_own_format(node: NodeContext, x: SSAValue) -> SSAValue:
    """The inverse of `to_channels_last`."""
    if not channels_first(node):
        return x
    rank = len(shape_of(x))
    return node.emit.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def sizes_channels_last(node: NodeContext, sizes: Sequence[Item]) -> tuple[Item, ...]:
    """One item of each dimension, in the order of the operation, as batch, height, width, channels."""
    if len(sizes) < 4:
        raise RefusedError(Kind.USAGE, f"it has sizes {list(sizes)}, expected one of each dimension")
    return (sizes[0], *sizes[2:], sizes[1]) if channels_first(node) else tuple(sizes)


def along_space(node: NodeContext, what: str, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """The attribute `what`, or values given for it, along the space; 1 is needed for batch and channels."""
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
    """The padding of TensorFlow's SAME, VALID or EXPLICIT: low and high of each dimension of space.

    Args:
        node: the operation.
        size: height and width of what the windows slide over (or depth, height and width).
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
    """As much padding as makes the output `ceil(size / stride)`; an odd one goes to the end."""
    count = -(-size // stride)
    total = max(0, (count - 1) * stride + (window - 1) * dilation + 1 - size)
    return total // 2, total - total // 2
