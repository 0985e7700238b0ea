"""Arithmetic of windows that slide over the two space dimensions of an NHWC tensor."""

from __future__ import annotations

from collections.abc import Sequence

from cgc.cirh.base import CirhOp
from cgc.cirh.types import Tensor

NHWC = "NHWC"
"""The only order of dimensions: batch, height, width, channels."""


def require_window(
    op: type[CirhOp],
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> None:
    """Checks the attributes of a window: two sizes each, and four paddings."""
    for what, values in (("window", ksize), ("stride", strides), ("dilation", dilation)):
        if len(values) != 2 or any(value < 1 for value in values):
            op.fail(f"the {what} is {tuple(values)}, expected two positive sizes, of height and width")
    if len(padding) != 4 or any(value < 0 for value in padding):
        op.fail(f"padding is {tuple(padding)}, expected top, bottom, left, right, 0 or more each")


def require_image(op: type[CirhOp], what: str, tensor: Tensor) -> None:
    """Checks for rank 4."""
    if len(tensor.get_shape()) != 4:
        op.fail(f"{what} has type {tensor}, expected rank 4: [batch, height, width, channels]")


def window_counts(
    op: type[CirhOp],
    size: Sequence[int],
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> tuple[int, int]:
    """How many windows fit along height and width; an error where not even one does."""
    spans = [(count - 1) * step + 1 for count, step in zip(ksize, dilation, strict=True)]
    padded = [size[0] + padding[0] + padding[1], size[1] + padding[2] + padding[3]]
    if any(span > length for span, length in zip(spans, padded, strict=True)):
        op.fail(
            f"a window of {spans[0]} x {spans[1]} does not fit into {padded[0]} x {padded[1]}, "
            "the padded height and width"
        )
    height, width = (
        (length - span) // stride + 1 for length, span, stride in zip(padded, spans, strides, strict=True)
    )
    return height, width
