"""What convolution and pooling share: data format, padding and the sizes along height and width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgc.importers.tensorflow.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import NodeContext


def require_channels_last(node: NodeContext) -> None:
    """Refuses NCHW: the device has NHWC, and TensorFlow itself computes no other on a CPU."""
    data_format = node.attr("data_format").decode()
    if data_format != "NHWC":
        raise RefusedError(
            Kind.USAGE,
            f"its data_format is {data_format}, expected NHWC; build the layer with channels last: "
            "data_format='NHWC' in tf.nn, 'channels_last' in Keras",
        )


def along_space(node: NodeContext, what: str) -> tuple[int, int]:
    """The attribute `what` along height and width; along batch and channels it must be 1."""
    values = [int(value) for value in node.attr(what)]
    if len(values) != 4 or values[0] != 1 or values[3] != 1:
        raise RefusedError(
            Kind.USAGE, f"its {what} is {values}, expected four sizes with 1 for batch and for channels"
        )
    return values[1], values[2]


def explicit_padding(
    node: NodeContext,
    size: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> tuple[int, int, int, int]:
    """The padding of TensorFlow's SAME, VALID or EXPLICIT as top, bottom, left, right.

    Args:
        node: the operation.
        size: height and width of what the windows slide over.
        window: height and width of a window.
        strides: steps of the windows.
        dilation: steps inside a window.
    """
    kind = node.attr("padding").decode()
    if kind == "EXPLICIT":
        given: Any = [int(value) for value in node.attr("explicit_paddings")]
        if any(given[:2]) or any(given[6:]):
            raise RefusedError(
                Kind.USAGE, f"its explicit_paddings are {given}, expected 0 for batch and channels"
            )
        return given[2], given[3], given[4], given[5]
    if kind == "VALID":
        return 0, 0, 0, 0
    top, bottom = _same(size[0], window[0], strides[0], dilation[0])
    left, right = _same(size[1], window[1], strides[1], dilation[1])
    return top, bottom, left, right


def _same(size: int, window: int, stride: int, dilation: int) -> tuple[int, int]:
    """As much padding as makes the output `ceil(size / stride)`; an odd one goes to the end."""
    count = -(-size // stride)
    total = max(0, (count - 1) * stride + (window - 1) * dilation + 1 - size)
    return total // 2, total - total // 2
