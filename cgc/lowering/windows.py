"""Lowerings of convolution and pooling, in the forms that XLA compiles well for CPUs.

Measured with the XLA of jax 0.10.2 on two cores, float32, in milliseconds. Gradient of max pooling,
32 x 56 x 56 x 64 in windows of 2 x 2: 101 as select-and-scatter (what the derivative of reduce_window
becomes), 1.7 as the comparison of positions below; 16 x 56 x 56 x 64, 3 x 3 with stride 2: 79 and 5.7.
Depthwise convolution, 16 x 28 x 28 x 32, 3 x 3: 11.8 as a grouped convolution, 0.2 as shifted products.
Dense convolutions are left to XLA: their gradient by the kernel as matrix products of unfolded images is
up to twice as fast alone where the images fit into the cache, but not within a step, and elsewhere slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh.ops import AvgPoolGradOp, ConvolutionOp, MaxPoolGradOp, PoolOp
from cgc.cirh.pool import WindowOp
from cgc.lowering.dtypes import result_shape

Sizes = Sequence[int]
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolution(op: ConvolutionOp, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The convolution, or its gradient by one operand; 16-bit operands are multiplied in float32."""
    left, right = lhs.astype(jnp.float32), rhs.astype(jnp.float32)
    wanted = jnp.zeros(result_shape(op), jnp.float32)
    if op.conv_pass_direction == "FWD":
        result = _forward(op, left, right)
    elif op.conv_pass_direction == "BWD_INPUT":
        result = _transposed(lambda x: _forward(op, x, right), wanted, left)
    else:
        result = _transposed(lambda kernel: _forward(op, left, kernel), wanted, right)
    return result.astype(lhs.dtype)


def _forward(op: ConvolutionOp, x: jax.Array, kernel: jax.Array) -> jax.Array:
    if op.groups == x.shape[3] > 1:
        return _depthwise(op, x, kernel)
    top, bottom, left, right = op.padding
    return lax.conv_general_dilated(
        x,
        kernel,
        op.stride,
        [(top, bottom), (left, right)],
        rhs_dilation=op.dilation,
        dimension_numbers=_LAYOUT,
        feature_group_count=op.groups,
        precision=lax.Precision.HIGHEST,
    )


def _depthwise(op: ConvolutionOp, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The sum over the places of the kernel: x shifted there, times the kernel's row."""
    height, width, _, outputs = kernel.shape
    spread = jnp.repeat(x, outputs // x.shape[3], 3) if outputs != x.shape[3] else x
    taps = _taps(spread, (height, width), op.stride, op.padding, 0.0, op.dilation)
    terms = [tap * kernel[i // width, i % width] for i, tap in enumerate(taps)]
    return sum(terms[1:], terms[0])


def pool(op: PoolOp, x: jax.Array) -> jax.Array:
    """Largest element or mean of each window."""
    if op.pool_type == "MAX":
        return _first_largest(_taps(x, op.ksize, op.strides, op.padding, -jnp.inf))[0]
    return _means(op, x.astype(jnp.float32)).astype(x.dtype)


def _means(op: WindowOp, x: jax.Array) -> jax.Array:
    taps = _taps(x, op.ksize, op.strides, op.padding, 0.0)
    return sum(taps[1:], taps[0]) * _reciprocal_counts(op, x.shape)


def _reciprocal_counts(op: WindowOp, shape: Sizes) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """One over the elements of each window that are no padding, `[1, H', W', 1]`."""
    counts = []
    for size, length, stride, low, high in zip(
        shape[1:3], op.ksize, op.strides, op.padding[::2], op.padding[1::2], strict=True
    ):
        starts = np.arange((size + low + high - length) // stride + 1) * stride - low
        counts.append(np.minimum(starts + length, size) - np.maximum(starts, 0))
    return (1.0 / np.outer(*counts)[None, :, :, None]).astype(np.float32)


def avg_pool_grad(op: AvgPoolGradOp, grad: jax.Array) -> jax.Array:
    """Every gradient divided by its count and spread over its window."""
    x = jnp.zeros(result_shape(op), jnp.float32)
    return _transposed(lambda value: _means(op, value), x, grad.astype(jnp.float32)).astype(grad.dtype)


def max_pool_grad(op: MaxPoolGradOp, x: jax.Array, grad: jax.Array) -> jax.Array:
    """Every gradient at the first largest element of its window, summed where windows overlap."""
    place = _first_largest(_taps(x, op.ksize, op.strides, op.padding, -jnp.inf))[1]
    if op.ksize == op.strides and not any(op.padding) and _tiles(op, x.shape):
        return _at_place(op.ksize, x.shape, place, grad)
    # computed once and kept: fused, each of the terms below would search its windows again
    (place,) = lax.optimization_barrier((place,))  # type: ignore[no-untyped-call]  # jax leaves it untyped
    count = op.ksize[0] * op.ksize[1]
    found = [jnp.where(place == i, grad, jnp.zeros((), grad.dtype)) for i in range(count)]
    return _transposed(
        lambda value: _taps(value, op.ksize, op.strides, op.padding, 0.0),
        jnp.zeros(x.shape, grad.dtype),
        found,
    )


def _transposed(linear: Callable[[jax.Array], Any], like: jax.Array, grad: Any) -> jax.Array:
    """The transpose of a linear function of a value like `like`, applied to a gradient of its result."""
    result: jax.Array
    (result,) = jax.linear_transpose(linear, like)(grad)
    return result


def _tiles(op: WindowOp, shape: Sizes) -> bool:
    return shape[1] % op.ksize[0] == 0 and shape[2] % op.ksize[1] == 0


def _at_place(ksize: Sizes, shape: Sizes, place: jax.Array, grad: jax.Array) -> jax.Array:
    """For windows that tile x: every element compares its own place with its window's."""
    batch, height, width, channels = place.shape
    tiled = (batch, height, ksize[0], width, ksize[1], channels)
    own = lax.broadcasted_iota(place.dtype, tiled, 2) * ksize[1] + lax.broadcasted_iota(place.dtype, tiled, 4)

    def spread(value: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(value, tiled, (0, 1, 3, 5))

    return lax.reshape(jnp.where(own == spread(place), spread(grad), jnp.zeros((), grad.dtype)), shape)


def _first_largest(taps: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The largest element of each window, and which of the window's places has it first."""
    best, place = taps[0], jnp.zeros(taps[0].shape, jnp.int32)
    for i, tap in enumerate(taps[1:], 1):
        place = jnp.where(tap > best, i, place)
        best = lax.max(best, tap)
    return best, place


def _taps(
    x: jax.Array, ksize: Sizes, strides: Sizes, padding: Sizes, filler: float, dilation: Sizes = (1, 1)
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
