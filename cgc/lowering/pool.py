"""Lowerings of pooling, of images and volumes, in the forms that XLA compiles well for CPUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.convolution import WindowOp
from cgc.cirh.ops import AvgPoolGradOp, MaxPoolGradOp, PoolOp
from cgc.lowering.base import Table, result_shape
from cgc.lowering.windows import Sizes, apply_transpose, on_volumes, taps, whole_windows


def pool(op: PoolOp, x: jax.Array) -> jax.Array:
    """Compute the largest element or the mean of each window."""
    if op.pool_type == "MAX":
        if whole := whole_windows(x, op.ksize, op.strides, op.padding):
            return whole[0].max(whole[1])
        return _first_largest(taps(x, op.ksize, op.strides, op.padding, -jnp.inf))[0]
    return _means(op, x.astype(jnp.float32)).astype(x.dtype)


def _means(op: WindowOp, x: jax.Array) -> jax.Array:
    if whole := whole_windows(x, op.ksize, op.strides, op.padding):
        return whole[0].sum(whole[1]) * _reciprocal_counts(op, x.shape)
    elements = taps(x, op.ksize, op.strides, op.padding)
    return sum(elements[1:], elements[0]) * _reciprocal_counts(op, x.shape)


def _reciprocal_counts(op: WindowOp, shape: Sizes) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return one over the elements of each window that are not padding, `[1, H', W', 1]`."""
    counts = []
    for size, length, stride, low, high in zip(
        shape[1:3], op.ksize, op.strides, op.padding[::2], op.padding[1::2], strict=True
    ):
        starts = np.arange((size + low + high - length) // stride + 1) * stride - low
        counts.append(np.minimum(starts + length, size) - np.maximum(starts, 0))
    return (1.0 / np.outer(*counts)[None, :, :, None]).astype(np.float32)


def avg_pool_grad(op: AvgPoolGradOp, grad: jax.Array) -> jax.Array:
    """Divide every gradient by its count and spread it over its window."""
    x = jnp.zeros(result_shape(op), jnp.float32)
    return apply_transpose(lambda value: _means(op, value), x, grad.astype(jnp.float32)).astype(grad.dtype)


def max_pool_grad(op: MaxPoolGradOp, x: jax.Array, grad: jax.Array) -> jax.Array:
    """Add every gradient to the first largest element of its window, in float32 where windows overlap."""
    # Measured with the XLA of jax 0.10.2 on two cores, float32, 32 x 56 x 56 x 64 in windows of 2 x 2: 101 ms
    # as select-and-scatter (the derivative of reduce_window), 1.7 ms as this comparison of positions.
    if whole := whole_windows(x, op.ksize, op.strides, op.padding):
        return _at_first_largest(*whole, grad).reshape(x.shape)
    position = _first_largest(taps(x, op.ksize, op.strides, op.padding, -jnp.inf))[1]
    if op.ksize == op.strides and not any(op.padding) and _tiles(op, x.shape):
        return _select_gradients(op.ksize, x.shape, position, grad)
    spread = partial(_spread, op, x.shape)
    # Without a branch, every element would search all windows that contain it. XLA fuses nothing into a
    # branch and does not detect that both branches are the same; an optimization barrier is removed before
    # fusion.
    any_position = lax.slice(position, (0,) * position.ndim, (1,) * position.ndim).reshape(())
    result: jax.Array = lax.cond(lax.gt(any_position, 0), spread, spread, position, grad.astype(jnp.float32))
    return result.astype(grad.dtype)


def _at_first_largest(windows: jax.Array, axes: Sizes, grad: jax.Array) -> jax.Array:
    """Return the gradients at the first largest element of each of `whole_windows`, in their shape."""
    together = jnp.moveaxis(windows, axes, range(-len(axes), 0))
    elements = together.reshape(*grad.shape, -1)
    own = lax.broadcasted_iota(jnp.int32, elements.shape, elements.ndim - 1) == elements.argmax(
        -1, keepdims=True
    )
    spread = jnp.where(own, grad[..., None], jnp.zeros((), grad.dtype)).reshape(together.shape)
    return jnp.moveaxis(spread, range(-len(axes), 0), axes)


def _spread(op: WindowOp, shape: Sizes, position: jax.Array, grad: jax.Array) -> jax.Array:
    """Sum the gradients of windows that overlap, `[N, H, W, C]`."""
    # Elements of x whose row and column have equal remainders modulo the strides form an image, which is a
    # sum of few shifted gradients. The images are then interleaved.
    zero = np.float32(0)
    reach = [-(-length // stride) for length, stride in zip(op.ksize, op.strides, strict=True)]

    def image(row: int, column: int) -> jax.Array:
        terms = []
        for i, j in np.ndindex(*reach):
            offset = row + i * op.strides[0], column + j * op.strides[1]
            here = offset[0] < op.ksize[0] and offset[1] < op.ksize[1]
            own = position == offset[0] * op.ksize[1] + offset[1] if here else jnp.zeros(position.shape, bool)
            shift = [(0, 0, 0), (i, reach[0] - 1 - i, 0), (j, reach[1] - 1 - j, 0), (0, 0, 0)]
            terms.append(lax.pad(jnp.where(own, grad, zero), zero, shift))
        return sum(terms[1:], terms[0])

    rows = [jnp.stack([image(i, j) for j in range(op.strides[1])], 3) for i in range(op.strides[0])]
    batch, height, width, _, channels = rows[0].shape
    whole = jnp.stack(rows, 2).reshape(batch, height * op.strides[0], width * op.strides[1], channels)
    borders = [
        (-low, size + low - covered, 0)
        for size, covered, low in zip(shape[1:3], whole.shape[1:3], op.padding[::2], strict=True)
    ]
    return lax.pad(whole, zero, [(0, 0, 0), *borders, (0, 0, 0)])


def _tiles(op: WindowOp, shape: Sizes) -> bool:
    return shape[1] % op.ksize[0] == 0 and shape[2] % op.ksize[1] == 0


def _select_gradients(ksize: Sizes, shape: Sizes, position: jax.Array, grad: jax.Array) -> jax.Array:
    """Return gradients of windows that tile x: elements compare their position with that of the largest."""
    batch, height, width, channels = position.shape
    tiled = (batch, height, ksize[0], width, ksize[1], channels)
    # A small constant: XLA would hoist a value that depends only on the shape of x out of the engine's loop,
    # and read it from memory in each step.
    own = lax.broadcast_in_dim(
        np.arange(math.prod(ksize), dtype=position.dtype).reshape(ksize), tiled, (2, 4)
    )

    def spread(value: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(value, tiled, (0, 1, 3, 5))

    return lax.reshape(jnp.where(own == spread(position), spread(grad), jnp.zeros((), grad.dtype)), shape)


def _first_largest(elements: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return the largest element of each window, and its first position in the window."""
    best, position = elements[0], jnp.zeros(elements[0].shape, jnp.int32)
    for i, element in enumerate(elements[1:], 1):
        position = jnp.where(element > best, i, position)
        best = lax.max(best, element)
    return best, position


def pool_volumes(op: PoolOp, x: jax.Array) -> jax.Array:
    """Compute the largest element or the mean of each window."""
    if op.pool_type == "MAX":
        if whole := whole_windows(x, op.ksize, op.strides, op.padding):
            return whole[0].max(whole[1])
        return _largest_element(_taps_of_volumes(op, x, -jnp.inf))
    return _means_of_volumes(op, x.astype(jnp.float32)).astype(x.dtype)


def avg_pool_grad_of_volumes(op: AvgPoolGradOp, grad: jax.Array) -> jax.Array:
    """Divide every gradient by its count and spread it over its window."""
    x = jnp.zeros(result_shape(op), jnp.float32)
    return apply_transpose(lambda value: _means_of_volumes(op, value), x, grad.astype(jnp.float32)).astype(
        grad.dtype
    )


def max_pool_grad_of_volumes(op: MaxPoolGradOp, x: jax.Array, grad: jax.Array) -> jax.Array:
    """Add every gradient to all largest elements of its window, as TensorFlow does for volumes.

    Gradients of windows that overlap are summed in float32 and rounded once.
    """
    if whole := whole_windows(x, op.ksize, op.strides, op.padding):
        windows, axes = whole
        own = windows == windows.max(axes, keepdims=True)
        return jnp.where(own, jnp.expand_dims(grad, axes), jnp.zeros((), grad.dtype)).reshape(x.shape)
    elements = _taps_of_volumes(op, x, -jnp.inf)
    largest, wide = _largest_element(elements), grad.astype(jnp.float32)
    parts = [jnp.where(element == largest, wide, jnp.float32(0)) for element in elements]
    summed = apply_transpose(
        lambda value: _taps_of_volumes(op, value), jnp.zeros(x.shape, jnp.float32), parts
    )
    return summed.astype(grad.dtype)


def _largest_element(elements: Sequence[jax.Array]) -> jax.Array:
    best = elements[0]
    for element in elements[1:]:
        best = lax.max(best, element)
    return best


def _means_of_volumes(op: WindowOp, x: jax.Array) -> jax.Array:
    if whole := whole_windows(x, op.ksize, op.strides, op.padding):
        return whole[0].sum(whole[1]) * _reciprocal_counts_of_volumes(op, x.shape)
    elements = _taps_of_volumes(op, x)
    return sum(elements[1:], elements[0]) * _reciprocal_counts_of_volumes(op, x.shape)


def _reciprocal_counts_of_volumes(
    op: WindowOp, shape: Sizes
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return one over the elements of each window that are not padding, `[1, D', H', W', 1]`."""
    counts = np.ones(1)
    for size, length, stride, low, high in zip(
        shape[1:4], op.ksize, op.strides, op.padding[::2], op.padding[1::2], strict=True
    ):
        starts = np.arange((size + low + high - length) // stride + 1) * stride - low
        counts = np.multiply.outer(counts, np.minimum(starts + length, size) - np.maximum(starts, 0))
    return (1.0 / counts[..., None]).astype(np.float32)


def _taps_of_volumes(op: WindowOp, x: jax.Array, filler: float = 0.0) -> list[jax.Array]:
    """Return for each position in a window the element of every window: `[N, D', H', W', C]`."""
    borders = zip(op.padding[::2], op.padding[1::2], strict=True)
    padded = lax.pad(
        x, jnp.asarray(filler, x.dtype), [(0, 0, 0), *[(low, high, 0) for low, high in borders], (0, 0, 0)]
    )
    reach = [
        (size - length) // stride * stride + 1
        for size, length, stride in zip(padded.shape[1:4], op.ksize, op.strides, strict=True)
    ]
    batch, channels = padded.shape[0], padded.shape[4]
    return [
        lax.slice(
            padded,
            (0, *corner, 0),
            (batch, *(start + length for start, length in zip(corner, reach, strict=True)), channels),
            (1, *op.strides, 1),
        )
        for corner in itertools.product(*map(range, op.ksize))
    ]


LOWERINGS: Table = {
    ops.PoolOp: on_volumes(pool, pool_volumes),
    ops.MaxPoolGradOp: on_volumes(max_pool_grad, max_pool_grad_of_volumes),
    ops.AvgPoolGradOp: on_volumes(avg_pool_grad, avg_pool_grad_of_volumes),
}
