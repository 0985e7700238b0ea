"""Arithmetic of windows that slide over the space of a tensor: over height and width, or depth as well."""

from __future__ import annotations

from collections.abc import Sequence

from cgc.cirh.base import CirhOp
from cgc.cirh.types import Tensor

NHWC = "NHWC"
"""The only order of dimensions of images: batch, height, width, channels."""

NDHWC = "NDHWC"
"""The only order of dimensions of volumes: batch, depth, height, width, channels."""

_NUMBERS = {2: "two", 3: "three"}
_DIMENSIONS = {2: "height and width", 3: "depth, height and width"}
_SIDES = {2: "top, bottom, left, right", 3: "front, back, top, bottom, left, right"}


def data_format_of(tensor: Tensor) -> str:
    """NHWC of an image, NDHWC of a volume."""
    return NDHWC if len(tensor.get_shape()) == 5 else NHWC


def require_window(
    op: type[CirhOp],
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] | None = None,
    dimensions: int = 2,
) -> None:
    """Checks the attributes of a window: a size of each dimension of space, and two paddings of each."""
    for what, values in (("window", ksize), ("stride", strides), ("dilation", dilation)):
        if values is not None and (len(values) != dimensions or any(value < 1 for value in values)):
            op.fail(
                f"the {what} is {tuple(values)}, expected {_NUMBERS[dimensions]} positive sizes, "
                f"of {_DIMENSIONS[dimensions]}"
            )
    if len(padding) != 2 * dimensions or any(value < 0 for value in padding):
        op.fail(f"padding is {tuple(padding)}, expected {_SIDES[dimensions]}, 0 or more each")


def require_space(op: type[CirhOp], what: str, tensor: Tensor) -> int:
    """Checks for rank 4 (images) or 5 (volumes); returns the dimensions of space."""
    rank = len(tensor.get_shape())
    if rank not in (4, 5):
        op.fail(
            f"{what} has type {tensor}, expected rank 4: [batch, height, width, channels], "
            "or 5, with depth before height"
        )
    return rank - 2


def window_counts(
    op: type[CirhOp],
    size: Sequence[int],
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """How many windows fit along each dimension of space; an error where not even one does."""
    steps = (1,) * len(size) if dilation is None else dilation
    spans = [(count - 1) * step + 1 for count, step in zip(ksize, steps, strict=True)]
    padded = [
        length + low + high for length, low, high in zip(size, padding[::2], padding[1::2], strict=True)
    ]
    if any(span > length for span, length in zip(spans, padded, strict=True)):
        op.fail(
            f"a window of {' x '.join(map(str, spans))} does not fit into {' x '.join(map(str, padded))}, "
            f"the padded {_DIMENSIONS[len(size)]}"
        )
    return tuple(
        (length - span) // stride + 1 for length, span, stride in zip(padded, spans, strides, strict=True)
    )
