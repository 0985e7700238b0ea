"""Windows of convolution and pooling: views of an image or volume at the positions of a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from cgc.cirh.base import CirhOp
from cgc.cirh.types import shape_of

Sizes = Sequence[int]
_RANK = 5

# Larger windows are not divided into positions, each of which is an operation for XLA.
_MANY_PLACES = 64


def taps(
    x: jax.Array, ksize: Sizes, strides: Sizes, padding: Sizes, filler: float = 0.0, dilation: Sizes = (1, 1)
) -> list[jax.Array]:
    """Return for each position in a window, row by row, the element of every window: `[N, H', W', C]`."""
    top, bottom, left, right = padding
    padded = lax.pad(
        x, jnp.asarray(filler, x.dtype), [(0, 0, 0), (top, bottom, 0), (left, right, 0), (0, 0, 0)]
    )
    batch, height, width, channels = padded.shape
    last = [
        (size - (length - 1) * step - 1) // stride * stride
        for size, length, stride, step in zip((height, width), ksize, strides, dilation, strict=True)
    ]
    corners = [(i * dilation[0], j * dilation[1]) for i in range(ksize[0]) for j in range(ksize[1])]
    return [
        lax.slice(padded, (0, i, j, 0), (batch, i + last[0] + 1, j + last[1] + 1, channels), (1, *strides, 1))
        for i, j in corners
    ]


def whole_windows(
    x: jax.Array, ksize: Sizes, strides: Sizes, padding: Sizes
) -> tuple[jax.Array, Sizes] | None:
    """View an image or volume as its windows, if these are large and cover each element exactly once.

    Returns:
        `x` as `[N, windows, places, windows, places, ..., C]` without padding, and the axes of places; None
        if windows are small, overlap, or skip elements.
    """
    space = x.shape[1:-1]
    borders = list(zip(padding[::2], padding[1::2], strict=True))
    if math.prod(ksize) <= _MANY_PLACES:
        return None
    counts = []
    for size, length, stride, (low, high) in zip(space, ksize, strides, borders, strict=True):
        one = (size + low + high - length) // stride == 0 and length >= low + size
        if not one and (low or high or length != stride or size % length):
            return None
        counts.append(1 if one else size // length)
    sides = [side for count, size in zip(counts, space, strict=True) for side in (count, size // count)]
    return x.reshape(x.shape[0], *sides, x.shape[-1]), range(2, 2 + 2 * len(space), 2)


def apply_transpose(linear: Callable[[jax.Array], Any], like: jax.Array, grad: Any) -> jax.Array:
    """Apply the transpose of a linear function of a value like `like` to a gradient of its result."""
    result: jax.Array
    (result,) = jax.linear_transpose(linear, like)(grad)
    return result


def on_volumes(
    images: Callable[..., jax.Array], volumes: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    """Return the lowering of an op on images or volumes, chosen by the rank of its first operand."""

    def lowering(op: CirhOp, *operands: jax.Array) -> jax.Array:
        return (volumes if len(shape_of(op.operands[0])) == _RANK else images)(op, *operands)

    return lowering
