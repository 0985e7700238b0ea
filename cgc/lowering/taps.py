"""What the lowerings of convolution and pooling share: views of an image at the places of a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

Sizes = Sequence[int]


def taps(
    x: jax.Array, ksize: Sizes, strides: Sizes, padding: Sizes, filler: float = 0.0, dilation: Sizes = (1, 1)
) -> list[jax.Array]:
    """For each place of a window, row by row, the element there of every window: `[N, H', W', C]`."""
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


def transposed(linear: Callable[[jax.Array], Any], like: jax.Array, grad: Any) -> jax.Array:
    """The transpose of a linear function of a value like `like`, applied to a gradient of its result."""
    result: jax.Array
    (result,) = jax.linear_transpose(linear, like)(grad)
    return result
