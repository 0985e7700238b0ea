"""Lowerings of convolution, of images and volumes, in the forms that XLA compiles well for CPUs.

Measured with the XLA of jax 0.10.2 in a loop on two cores, float32, in milliseconds; CPU milliseconds are
summed over two threads. Shapes are written as N x H x W x C -> K, window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax import lax
from jax import numpy as jnp
from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.ops import ConvolutionOp
from cgc.cirh.types import tensor_type
from cgc.lowering.base import Table, result_shape
from cgc.lowering.windows import Sizes, apply_transpose, on_volumes, taps

Pairs = Sequence[tuple[int, int]]
Function = Callable[[jax.Array, jax.Array], jax.Array]
WindowFunction = Callable[["_Window", jax.Array, jax.Array], jax.Array]
_LAYOUT = ("NHWC", "HWIO", "NHWC")

# XLA's routine (Eigen) is slow with few channels of the image and few of the result. Adjacent columns of the
# result are then computed as channels of one column (`_by_columns`), CPU milliseconds for windows of 3 x 3:
#
#                                 plain    by columns
#     32 x 32 x 32 x 16 -> 16      1.80    1.12 (two together)
#     32 x 32 x 32 x 3 -> 16       1.36    0.39 (four)
#     32 x 16 x 16 x 8 -> 8        0.35    0.15 (four)
_FEW = 16
_WIDE = 64  # channels of the result that keep the routine busy

# Windows of at most this many elements become rows of a product: 128 x 28 x 28 x 1 -> 32, 3 x 3, takes 3.1
# CPU milliseconds as a convolution, 2.0 by two columns, 1.6 as a product.
_TINY = 16

# From this many groups on, groups are a loop. Otherwise XLA compiles a convolution for each, 32 for a layer
# of ResNeXt: 4.2 instead of 0.9 CPU s for 16 x 14 x 14 x 128, 3 x 3. All directions take 34 instead of 28 CPU
# ms.
_MANY = 8

# The gradient by the kernel of large images is summed sample by sample, because both operands of one sample
# stay in the cache, CPU milliseconds for windows of 3 x 3:
#
#                                 all samples    one by one
#     32 x 56 x 56 x 64 -> 64        84.3          54.0
#     8 x 64 x 64 x 32 -> 16          4.0           2.9
#     8 x 64 x 64 x 16 -> 16          2.1           1.6
#     32 x 32 x 32 x 16 -> 16         2.0           2.1
#     16 x 28 x 28 x 128 -> 128      21.6          22.5
#     128 x 14 x 14 x 32 -> 64        7.1          10.1, so not for small images
_LARGE = 1024  # windows of a sample, at least
_WORK = 200_000  # multiplications of a sample, at least
_CACHED = 1 << 18  # elements of a gradient that stays in the cache anyway


class _Window(NamedTuple):
    """A convolution of one group, in any direction.

    Attributes:
        stride: of the forward convolution; all attributes are of height and width.
        padding: low and high of both.
        dilation: steps inside the window.
        out_shape: shape of the result.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out_shape: tuple[int, ...]

    @property
    def pairs(self) -> Pairs:
        """Padding of height and of width."""
        return list(zip(self.padding[::2], self.padding[1::2], strict=True))

    @property
    def is_dense(self) -> bool:
        """True if windows have stride 1 and no gaps."""
        return {*self.stride, *self.dilation} == {1}

    def is_apart(self, kernel: Sequence[int]) -> bool:
        """Return True if no element is in two windows of a kernel of this shape."""
        spans = ((length - 1) * step + 1 for length, step in zip(kernel[:2], self.dilation, strict=True))
        return all(span <= stride for span, stride in zip(spans, self.stride, strict=True))


def convolve_images(op: ConvolutionOp, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Compute the convolution, or its gradient by one operand; 16-bit operands are multiplied in float32."""
    left, right = lhs.astype(jnp.float32), rhs.astype(jnp.float32)
    window = _Window(op.stride, op.padding, op.dilation, result_shape(op))
    direction = op.conv_pass_direction
    x_shape = window.out_shape if direction == "BWD_INPUT" else lhs.shape
    if op.groups == x_shape[3] > 1:
        if direction == "BWD_KERNEL":
            result = _depthwise_by_kernel(window, left, right)
        else:
            result = _derive(direction, partial(_depthwise, window), window.out_shape)(left, right)
    else:
        plain = partial(_forward, window, groups=op.groups)
        result = lax.platform_dependent(
            left,
            right,
            cpu=_by_group(_CPU[direction], window, op.groups),
            default=_derive(direction, plain, window.out_shape),
        )
    return result.astype(lhs.dtype)


def _derive(direction: str, forward: Function, out_shape: Sequence[int]) -> Function:
    """Derive a direction of a convolution as the transpose of the forward one."""
    if direction == "FWD":
        return forward
    like = jnp.zeros(out_shape, jnp.float32)
    if direction == "BWD_INPUT":
        return lambda grad, kernel: apply_transpose(lambda x: forward(x, kernel), like, grad)
    return lambda x, grad: apply_transpose(lambda kernel: forward(x, kernel), like, grad)


def _by_group(function: WindowFunction, window: _Window, groups: int) -> Function:
    """Convolve group by group, since XLA's fast routine for CPUs has no groups."""
    if groups == 1:
        return partial(function, window)
    *sizes, channels = window.out_shape
    own = window._replace(out_shape=(*sizes, channels // groups))

    def split(x: jax.Array, y: jax.Array) -> jax.Array:
        pairs = zip(jnp.split(x, groups, 3), jnp.split(y, groups, 3), strict=True)
        return jnp.concatenate([function(own, *pair) for pair in pairs], 3)

    def loop(x: jax.Array, y: jax.Array) -> jax.Array:
        rows = [jnp.moveaxis(v.reshape(*v.shape[:3], groups, -1), 3, 0) for v in (x, y)]
        results = lax.map(lambda pair: function(own, *pair), tuple(rows))
        return jnp.moveaxis(results, 0, 3).reshape(window.out_shape)

    return split if groups < _MANY else loop


def _forward(window: _Window, x: jax.Array, kernel: jax.Array, groups: int = 1) -> jax.Array:
    return _canonical(x, kernel, window.pairs, window.stride, window.dilation, groups=groups)


def _canonical(
    x: jax.Array,
    kernel: jax.Array,
    padding: Pairs,
    stride: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
    spread: Sequence[int] = (1, 1),
    groups: int = 1,
) -> jax.Array:
    """Apply XLA's convolution; with `spread` - 1 zeros between the elements of x."""
    is_plain = groups == 1 and tuple(spread) == (1, 1)
    if is_plain and math.prod(kernel.shape[:2]) > 1 and math.prod(kernel.shape[:3]) <= _TINY:
        return _as_product(x, kernel, padding, stride, dilation)
    if is_plain and dilation[1] == 1:
        columns = _columns_at_once(x.shape, kernel.shape, padding, stride)
        if columns > 1:
            return _by_columns(x, kernel, padding, stride, dilation, columns)
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        padding,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        dimension_numbers=_LAYOUT,
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )


def _as_product(
    x: jax.Array, kernel: jax.Array, padding: Pairs, stride: Sequence[int], dilation: Sequence[int]
) -> jax.Array:
    """Multiply each window as a row."""
    sides = (*padding[0], *padding[1])
    rows = jnp.concatenate(taps(x, kernel.shape[:2], stride, sides, dilation=dilation), 3)
    columns = kernel.reshape(-1, kernel.shape[3])
    return lax.dot_general(rows, columns, (((3,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)


def _columns_at_once(x: Sequence[int], kernel: Sequence[int], padding: Pairs, stride: Sequence[int]) -> int:
    """Return number of result columns that `_by_columns` computes together; 1 for the plain convolution."""
    _, width, inputs, outputs = kernel
    if width == 1 or max(inputs, outputs) > _FEW:
        return 1
    count = (x[2] + sum(padding[1]) - width) // stride[1] + 1
    most = (_WIDE if inputs < _FEW // 2 else _WIDE // 2) // outputs
    return math.gcd(count, 1 << (most.bit_length() - 1))


def _by_columns(
    x: jax.Array,
    kernel: jax.Array,
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
    columns: int,
) -> jax.Array:
    """Compute adjacent columns as channels of one: shifted copies of the kernel, padded with zeros."""
    zero, last = jnp.zeros((), kernel.dtype), (columns - 1) * stride[1]
    shifted = [
        lax.pad(kernel, zero, [(0, 0, 0), (shift, last - shift, 0), (0, 0, 0), (0, 0, 0)])
        for shift in range(0, last + 1, stride[1])
    ]
    steps = (stride[0], stride[1] * columns)
    joined = _canonical(x, jnp.concatenate(shifted, 3), padding, steps, dilation)
    return joined.reshape(*joined.shape[:2], -1, kernel.shape[3])


def _by_input(window: _Window, grad: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve the gradient, spread by the stride, with the reversed kernel."""
    if window.is_apart(kernel.shape):
        return _by_input_as_product(window, grad, kernel)
    transposed = lax.transpose(lax.rev(kernel, (0, 1)), (0, 1, 3, 2))
    padding = []
    for size, length, count, stride, step, (low, _) in _axes(
        window, window.out_shape, kernel.shape, grad.shape
    ):
        span = (length - 1) * step
        before = span - low
        padding.append((before, size + span - before - ((count - 1) * stride + 1)))
    return _canonical(grad, transposed, padding, dilation=window.dilation, spread=window.stride)


def _by_kernel(window: _Window, x: jax.Array, grad: jax.Array) -> jax.Array:
    """Swap samples and channels: x is convolved with the gradient as the kernel."""
    if window.is_apart(window.out_shape):
        # Multiply each window as a row, without a convolution; no element of x is in two rows. Windows that
        # do not overlap need no convolution: 4 x 56 x 56 x 64 -> 128, 1 x 1 / 2, takes 1.8 ms as a
        # convolution, 0.3 as a product.
        shifted = taps(x, window.out_shape[:2], window.stride, window.padding, dilation=window.dilation)
        rows = jnp.concatenate(shifted, 3).reshape(-1, math.prod(window.out_shape[:3]))
        columns = grad.reshape(-1, grad.shape[3])
        product = lax.dot_general(rows, columns, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
        return product.reshape(window.out_shape)
    if window.is_dense and _is_large(window, grad):
        return _by_kernel_of_samples(window, x, grad)
    padding = []
    for size, length, count, stride, step, (low, _) in _axes(window, x.shape, window.out_shape, grad.shape):
        padding.append((low, (length - 1) * step + (count - 1) * stride + 1 - size - low))
    # Elements outside of all windows are removed, since the fast routine has no negative padding.
    x = lax.pad(
        x, jnp.zeros((), x.dtype), [(0, 0, 0), *[(0, min(0, high), 0) for _, high in padding], (0, 0, 0)]
    )
    padding = [(low, max(0, high)) for low, high in padding]
    channels_first, rows_first = _transpose_both(x, grad)
    swapped = _canonical(channels_first, rows_first, padding, window.dilation, window.stride)
    return lax.transpose(swapped, (1, 2, 0, 3))


def _is_large(window: _Window, grad: jax.Array) -> bool:
    windows = math.prod(grad.shape[1:3])
    return windows >= _LARGE and windows * math.prod(window.out_shape) >= _WORK and grad.size >= _CACHED


def _transpose_both(x: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Transpose both for `_by_kernel`, in memory, from values in memory."""

    # XLA would fuse the transposition with the ops that compute x, and recompute these in an order that is
    # bad for caches: 3.4 CPU milliseconds instead of 2.4 for all of 32 x 32 x 32 x 16 -> 16, 3 x 3, after one
    # normalization and ReLU, and more after a sum of such. It fuses nothing into a branch, does not detect
    # that both branches are the same, and removes an optimization barrier before it fuses.
    def transpose(x: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.transpose(x, (3, 1, 2, 0)), lax.transpose(grad, (1, 2, 0, 3))

    any_element = lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())
    transposed: tuple[jax.Array, jax.Array] = lax.cond(
        lax.gt(any_element, 0.0), transpose, transpose, x, grad
    )
    return transposed


def _by_kernel_of_samples(window: _Window, x: jax.Array, grad: jax.Array) -> jax.Array:
    """Sum the gradients of the samples, each a convolution along the height."""
    # The channels of that convolution are the columns of the image. The places of the window along the width
    # become channels of x. The operand with more channels is the kernel, not transposed, and the routine
    # works on that many at once; the other one is transposed.
    height, width, channels, outputs = window.out_shape
    top, bottom, left, right = window.padding
    rows, columns = grad.shape[1:3]
    x_is_kernel = width * channels > outputs and max(top, bottom) < height

    def share(x: jax.Array, grad: jax.Array) -> jax.Array:
        shifted = taps(x, (1, width), (1, 1), (0, 0, left, right))
        if x_is_kernel:
            kernel = jnp.concatenate(shifted, 3).reshape(x.shape[1], 1, columns, -1)
            image = lax.transpose(grad, (0, 1, 3, 2))
            return _canonical(image, kernel, [(height - 1 - top, height - 1 - bottom), (0, 0)])
        image = lax.transpose(jnp.concatenate(shifted, 3), (0, 1, 3, 2))
        return _canonical(image, grad.reshape(rows, 1, columns, outputs), [(top, bottom), (0, 0)])

    def add(sample: jax.Array, total: jax.Array) -> jax.Array:
        own = [lax.dynamic_slice_in_dim(batch, sample, 1) for batch in (x, grad)]
        return total + share(*own)

    sizes = (outputs, width * channels) if x_is_kernel else (width * channels, outputs)
    total: jax.Array = lax.fori_loop(0, x.shape[0], add, jnp.zeros((1, height, *sizes), x.dtype))
    if x_is_kernel:
        # the gradient moved over x, so the rows come from last to first
        total = lax.transpose(lax.rev(total, (1,)), (0, 1, 3, 2))
    return total.reshape(window.out_shape)


def _by_input_as_product(window: _Window, grad: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute each window as a block of rows of the result, with zeros where the stride is longer."""
    batch, height, width, _ = grad.shape
    _, columns, channels, _ = kernel.shape
    zero = jnp.zeros((), grad.dtype)
    rows = []
    for row in kernel:
        product = lax.dot_general(grad, row, (((3,), (2,)), ((), ())), precision=lax.Precision.HIGHEST)
        gaps = (0, window.stride[1] - (columns - 1) * window.dilation[1] - 1, window.dilation[1] - 1)
        spread = lax.pad(product, zero, [(0, 0, 0)] * 3 + [gaps, (0, 0, 0)])
        rows.append(spread.reshape(batch, height, 1, width * window.stride[1], channels))
    joined = jnp.concatenate(rows, 2)
    gaps = (0, window.stride[0] - (len(rows) - 1) * window.dilation[0] - 1, window.dilation[0] - 1)
    spread = lax.pad(joined, zero, [(0, 0, 0)] * 2 + [gaps] + [(0, 0, 0)] * 2)
    image = spread.reshape(batch, height * window.stride[0], width * window.stride[1], channels)
    borders = [
        (-low, size + low - covered, 0)
        for size, covered, (low, _) in zip(window.out_shape[1:3], image.shape[1:3], window.pairs, strict=True)
    ]
    return lax.pad(image, zero, [(0, 0, 0), *borders, (0, 0, 0)])


def _axes(
    window: _Window, x: Sequence[int], kernel: Sequence[int], grad: Sequence[int]
) -> list[tuple[int, int, int, int, int, tuple[int, int]]]:
    """Return for height and width: sizes of x, kernel and gradient, stride, dilation, padding."""
    sizes = x[1:3], kernel[:2], grad[1:3], window.stride, window.dilation, window.pairs
    return list(zip(*sizes, strict=True))


def _depthwise(window: _Window, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Sum x, shifted to each position of the kernel, times the row of the kernel."""
    # 16 x 28 x 28 x 32, 3 x 3, takes 11.8 ms as a grouped convolution, 0.2 as shifted products.
    height, width, _, outputs = kernel.shape
    spread = _for_each_output(x, outputs)
    shifted = taps(spread, (height, width), window.stride, window.padding, dilation=window.dilation)
    terms = [tap * kernel[i // width, i % width] for i, tap in enumerate(shifted)]
    return sum(terms[1:], terms[0])


def _for_each_output(x: jax.Array, outputs: int) -> jax.Array:
    """Repeat each channel for the outputs that are computed from it."""
    return x if outputs == x.shape[3] else jnp.repeat(x, outputs // x.shape[3], 3)


def _depthwise_by_kernel(window: _Window, x: jax.Array, grad: jax.Array) -> jax.Array:
    """Sum x, shifted to each position of the kernel, times the gradient."""
    # The rows of the kernel are a loop. Without it, XLA compiles a sum for each position, 25 for a 5 x 5
    # kernel, and fuses the normalization and activation before the convolution into each of them.
    height, width, _, outputs = window.out_shape
    borders = [(0, 0, 0), *((low, high, 0) for low, high in window.pairs), (0, 0, 0)]
    padded = lax.pad(_for_each_output(x, outputs), jnp.zeros((), x.dtype), borders)
    rows = (grad.shape[1] - 1) * window.stride[0] + 1

    def row(start: jax.Array) -> jax.Array:
        band = lax.dynamic_slice_in_dim(padded, start, rows, 1)
        shifted = taps(band, (1, width), window.stride, (0, 0, 0, 0), dilation=window.dilation)
        return jnp.stack([jnp.sum(tap * grad, (0, 1, 2)) for tap in shifted])

    sums: jax.Array = lax.map(row, jnp.arange(height) * window.dilation[0])
    return sums.reshape(window.out_shape)


# XLA for CPUs has fast routines for one form of convolution only: NHWC, kernel HWIO, one group, nothing
# reversed. It brings others into this form only in the outermost computation, and the engine runs its steps
# in a loop. So gradients are written as such convolutions, milliseconds as the transpose of the forward
# convolution and in this form:
#
#                                       by the kernel    by the input
#     32 x 28 x 28 x 16 -> 32, 3 x 3     215      4.9     158     2.7
#     16 x 16 x 16 x 32 -> 32, 3 x 3      73      0.6      70     0.5
#     32 x 32 x 32 x 3 -> 16, 7 x 7 / 2   57      0.3      11     1.0
#
# There are two routines: one (YNN) computes on a single thread, the other (Eigen) on all. On one thread the
# engine leaves the choice to XLA, on more it chooses the latter (`cs_system.engine.device.compiler_options`).
_CPU: dict[str, WindowFunction] = {"FWD": _forward, "BWD_INPUT": _by_input, "BWD_KERNEL": _by_kernel}


def convolve_volumes(op: ConvolutionOp, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Compute the convolution, or its gradient by one operand; 16-bit operands are multiplied in float32."""
    # XLA for CPUs has a fast routine only for convolutions of images. So a convolution of volumes is the sum,
    # over the depth of the kernel, of convolutions of images, the slices of the volumes. 4 x 16 x 16 x 16 x 8
    # -> 16, 3 x 3 x 3, takes as one convolution of volumes and in this form: forward 32 and 7 ms, by the
    # input 114 and 9, by the kernel 272 and 4.
    left, right = lhs.astype(jnp.float32), rhs.astype(jnp.float32)
    return _OF_VOLUMES[op.conv_pass_direction](op, left, right).astype(lhs.dtype)


def _volumes_forward(op: ConvolutionOp, x: jax.Array, kernel: jax.Array) -> jax.Array:
    count = result_shape(op)[1]
    slices = _slices(op, x, count, kernel.shape[0])
    terms = [_of_images(op, image, kernel[i]) for i, image in enumerate(slices)]
    return sum(terms[1:], terms[0]).reshape(result_shape(op))


def _volumes_by_kernel(op: ConvolutionOp, x: jax.Array, grad: jax.Array) -> jax.Array:
    depth, *shape = result_shape(op)
    images = grad.reshape(-1, *grad.shape[2:])
    slices = _slices(op, x, grad.shape[1], depth)
    return jnp.stack([_of_images(op, image, images, shape) for image in slices])


def _volumes_by_input(op: ConvolutionOp, grad: jax.Array, kernel: jax.Array) -> jax.Array:
    """Add the gradients for each depth of the kernel to the slices that it was multiplied with."""
    out_shape = result_shape(op)
    batch, count = grad.shape[:2]
    images = grad.reshape(batch * count, *grad.shape[2:])
    parts = [_of_images(op, images, tap, (batch * count, *out_shape[2:])) for tap in kernel]
    x = jnp.zeros(out_shape, grad.dtype)
    return apply_transpose(lambda value: _slices(op, value, count, len(parts)), x, parts)


_OF_VOLUMES = {"FWD": _volumes_forward, "BWD_INPUT": _volumes_by_input, "BWD_KERNEL": _volumes_by_kernel}


def _slices(op: ConvolutionOp, x: jax.Array, count: int, depth: int) -> list[jax.Array]:
    """Return for each depth of the kernel the slices of all volumes under it: `[N * D', H, W, C]`."""
    front, back = op.padding[:2]
    padded = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (front, back, 0), *[(0, 0, 0)] * 3])
    found = []
    for tap in range(depth):
        start = tap * op.dilation[0]
        slices = lax.slice_in_dim(padded, start, start + (count - 1) * op.stride[0] + 1, op.stride[0], 1)
        found.append(slices.reshape(-1, *slices.shape[2:]))
    return found


def _of_images(op: ConvolutionOp, left: jax.Array, right: jax.Array, shape: Sizes | None = None) -> jax.Array:
    """Convolve over height and width in the same direction; `shape` is that of a backward result."""
    block = Block(arg_types=[tensor_type(value.shape, "float32") for value in (left, right)])
    lhs, rhs = block.args
    inner = ConvolutionOp(
        lhs,
        rhs,
        stride=op.stride[1:],
        padding=op.padding[2:],
        dilation=op.dilation[1:],
        groups=op.groups,
        conv_pass_direction=op.conv_pass_direction,
        shape=shape,
    )
    return convolve_images(inner, left, right)


LOWERINGS: Table = {ops.ConvolutionOp: on_volumes(convolve_images, convolve_volumes)}
