"""Resizing and transforms of images, mirrored borders, and moves of pixel blocks to channels or batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.resampling import (
    Taps,
    bicubic,
    bilinear,
    nearest,
    resample,
    resample_grad,
    scale_and_translate,
)
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.tensorflow.handlers.convolution import to_channels_last, to_own_format
from cgc.importers.tensorflow.node import Handler, NodeContext, Table

SPACE = (1, 2)  # height and width of NHWC


def _taps(node: NodeContext, kind: Any, sizes: Sequence[int], results: Sequence[int]) -> list[Taps]:
    flags = node.attr("align_corners"), node.attr("half_pixel_centers")
    return [kind(size, count, *flags) for size, count in zip(sizes, results, strict=True)]


def _resize(kind: Any) -> Handler:
    """Inputs: images NHWC, the new height and width."""

    def handler(node: NodeContext) -> SSAValue:
        x = node.emit.cast(node.x(0), node.out_dtype())
        sizes, results = shape_of(x)[1:3], node.ints(1, "size")
        for axis, taps in zip(SPACE, _taps(node, kind, sizes, results), strict=True):
            x = resample(node.emit, x, axis, taps)
        return x

    return handler


def _resize_nearest_grad(node: NodeContext) -> SSAValue:
    """Inputs: the gradient, height and width of the images."""
    return _resize_grad(node, nearest, node.ints(1, "size"))


def _resize_images_grad(kind: Any) -> Handler:
    """Inputs: the gradient, the images."""
    return lambda node: _resize_grad(node, kind, node.shape(1)[1:3])


def _resize_grad(node: NodeContext, kind: Any, sizes: Sequence[int]) -> SSAValue:
    grad = node.x(0)
    for axis, taps in zip(SPACE, _taps(node, kind, sizes, shape_of(grad)[1:3]), strict=True):
        grad = resample_grad(node.emit, grad, axis, taps)
    return node.emit.cast(grad, node.out_dtype())


def _scaled_taps(node: NodeContext, sizes: Sequence[int], results: Sequence[int]) -> list[Taps]:
    kernel, antialias = node.attr("kernel_type").decode(), bool(node.attr("antialias"))
    scale, translation = (node.static(i, what).reshape(-1) for i, what in ((2, "scale"), (3, "translation")))
    return [
        scale_and_translate(size, count, kernel, antialias, float(factor), float(offset))
        for size, count, factor, offset in zip(sizes, results, scale, translation, strict=True)
    ]


def _scale_and_translate(node: NodeContext) -> SSAValue:
    """Inputs: images NHWC, the new height and width, a scale and a translation for each."""
    x = node.emit.cast(node.x(0), node.out_dtype())
    taps = _scaled_taps(node, shape_of(x)[1:3], node.ints(1, "size"))
    for axis, of_axis in zip(SPACE, taps, strict=True):
        x = resample(node.emit, x, axis, of_axis)
    return x


def _scale_and_translate_grad(node: NodeContext) -> SSAValue:
    """Inputs: the gradient, the images, scale and translation."""
    grad = node.x(0)
    for axis, taps in zip(SPACE, _scaled_taps(node, node.shape(1)[1:3], shape_of(grad)[1:3]), strict=True):
        grad = resample_grad(node.emit, grad, axis, taps)
    return node.emit.cast(grad, node.out_dtype())


def _mirror_pad(node: NodeContext) -> SSAValue:
    """Return borders that repeat the elements in reverse order; REFLECT leaves the outermost out."""
    e, x = node.emit, node.x(0)
    for axis, (low, high) in enumerate(_mirror_paddings(node)):
        if low or high:
            places = np.pad(np.arange(shape_of(x)[axis], dtype=np.int32), (low, high), _mirror_mode(node))
            x = e.take(x, e.constant(places), axis)
    return x


def _mirror_pad_grad(node: NodeContext) -> SSAValue:
    """Add each border, reversed, to the elements that it repeats."""
    e, grad = node.emit, node.x(0)
    for axis, (low, high) in enumerate(_mirror_paddings(node)):
        if low or high:
            size = shape_of(grad)[axis] - low - high
            places = np.pad(np.arange(size), (low, high), _mirror_mode(node))[None]
            taps = Taps(places, np.ones(places.shape, np.float32), size)
            grad = resample_grad(e, grad, axis, taps)
    return grad


def _mirror_paddings(node: NodeContext) -> list[tuple[int, int]]:
    return [(int(low), int(high)) for low, high in node.static(1, "paddings").reshape(-1, 2)]


def _mirror_mode(node: NodeContext) -> Any:
    return {b"REFLECT": "reflect", b"SYMMETRIC": "symmetric"}[node.attr("mode")]


def _depth_to_space(node: NodeContext) -> SSAValue:
    """`[N, H, W, b * b * C]` -> `[N, H * b, W * b, C]`."""
    e, x, block = node.emit, to_channels_last(node, _image(node)), node.attr("block_size")
    batch, height, width, channels = shape_of(x)
    split = e.reshape(x, (batch, height, width, block, block, channels // block**2))
    mixed = e.transpose(split, (0, 1, 3, 2, 4, 5))
    return to_own_format(node, e.reshape(mixed, (batch, height * block, width * block, -1)))


def _space_to_depth(node: NodeContext) -> SSAValue:
    """Return the inverse of `_depth_to_space`."""
    e, x, block = node.emit, to_channels_last(node, _image(node)), node.attr("block_size")
    batch, height, width, channels = shape_of(x)
    split = e.reshape(x, (batch, height // block, block, width // block, block, channels))
    mixed = e.transpose(split, (0, 1, 3, 2, 4, 5))
    return to_own_format(node, e.reshape(mixed, (batch, height // block, width // block, -1)))


def _image(node: NodeContext) -> SSAValue:
    x = node.x(0)
    if len(shape_of(x)) != 4:
        raise RefusedError(
            Kind.USAGE, f"its input has shape {list(shape_of(x))}, expected four dimensions: NHWC or NCHW"
        )
    return x


def _space_to_batch(node: NodeContext) -> SSAValue:
    """Inputs: x, block sizes `[M]`, paddings `[M, 2]`; places in a block go to the batch, first."""
    e, x, blocks = node.emit, node.x(0), node.ints(1, "block_shape")
    amounts = node.ints(2, "paddings")
    rest = [0] * (len(shape_of(x)) - 1 - len(blocks))
    x = e.pad(x, [0, *amounts[::2], *rest], [0, *amounts[1::2], *rest])
    batch, *sizes = shape_of(x)
    counts = [size // block for size, block in zip(sizes, blocks, strict=False)]
    tail = sizes[len(blocks) :]
    split = e.reshape(x, [batch, *itertools.chain.from_iterable(zip(counts, blocks, strict=True)), *tail])
    dims = range(len(blocks))
    order = [*(2 + 2 * i for i in dims), 0, *(1 + 2 * i for i in dims)]
    mixed = e.transpose(split, [*order, *range(len(order), len(order) + len(tail))])
    return e.reshape(mixed, [batch * math.prod(blocks), *counts, *tail])


def _batch_to_space(node: NodeContext) -> SSAValue:
    """Inputs: x, block sizes `[M]`, crops `[M, 2]`; the inverse of `_space_to_batch`."""
    e, x, blocks = node.emit, node.x(0), node.ints(1, "block_shape")
    crops = node.ints(2, "crops")
    batch, *sizes = shape_of(x)
    counts, tail = sizes[: len(blocks)], sizes[len(blocks) :]
    whole = batch // math.prod(blocks)
    split = e.reshape(x, [*blocks, whole, *counts, *tail])
    dims = range(len(blocks))
    order = [len(blocks), *(place for i in dims for place in (len(blocks) + 1 + i, i))]
    mixed = e.transpose(split, [*order, *range(len(order), len(order) + len(tail))])
    y = e.reshape(mixed, [whole, *(n * b for n, b in zip(counts, blocks, strict=True)), *tail])
    shape = shape_of(y)
    start = [0, *crops[::2], *[0] * len(tail)]
    cut = [0, *crops[1::2], *[0] * len(tail)]
    return e.slice(y, start, [size - end for size, end in zip(shape, cut, strict=True)], [1] * len(shape))


def _extract_patches(node: NodeContext) -> SSAValue:
    """Return the pixels of windows, concatenated along the channels."""
    e, x = node.emit, node.x(0)
    ksizes, strides, rates = (node.attr(name)[1:3] for name in ("ksizes", "strides", "rates"))
    reach = [(size - 1) * rate + 1 for size, rate in zip(ksizes, rates, strict=True)]
    sizes, low, high, counts = shape_of(x)[1:3], [0, 0], [0, 0], [0, 0]
    for axis, (size, extent, stride) in enumerate(zip(sizes, reach, strides, strict=True)):
        if node.attr("padding") in ("SAME", b"SAME"):
            counts[axis] = -(-size // stride)
            total = max(0, (counts[axis] - 1) * stride + extent - size)
            low[axis], high[axis] = total // 2, total - total // 2
        else:
            counts[axis] = (size - extent) // stride + 1
    x = e.pad(x, (0, *low, 0), (0, *high, 0))
    count, _, _, channels = shape_of(x)
    parts = []
    for place in itertools.product(*map(range, ksizes)):
        starts = [at * rate for at, rate in zip(place, rates, strict=True)]
        ends = [at + (n - 1) * step + 1 for at, n, step in zip(starts, counts, strides, strict=True)]
        parts.append(e.slice(x, (0, *starts, 0), (count, *ends, channels), (1, *strides, 1)))
    return parts[0] if len(parts) == 1 else e.emit(ops.ConcatOp(parts, 3))


def _projective_transform(node: NodeContext) -> SSAValue:
    """Return images whose pixels are read where a projective transform of their places says.

    Inputs: images `[N, H, W, C]`, eight numbers for each of them or for all, height and width of the result,
    and in the third version the value of pixels outside of the image.
    """
    e, images, transforms = node.emit, node.x(0), node.x(1)
    height, width = node.ints(2, "output_shape")
    dtype = dtype_of(images)
    fill = e.cast(node.x(3), dtype) if len(node.inputs) > 3 else e.scalar(0, dtype)
    count = shape_of(transforms)[0]
    t = [e.reshape(e.slice(transforms, (0, i), (count, i + 1), (1, 1)), (count, 1, 1)) for i in range(8)]
    row = e.cast(e.reshape(e.emit(ops.ArangeOp(height)), (1, height, 1)), "float32")
    column = e.cast(e.reshape(e.emit(ops.ArangeOp(width)), (1, 1, width)), "float32")

    def linear(by_column: SSAValue, by_row: SSAValue, offset: SSAValue) -> SSAValue:
        return e.add(e.add(e.mul(by_column, column), e.mul(by_row, row)), offset)

    scale = linear(t[6], t[7], e.scalar(1, "float32"))
    mode = node.attr("fill_mode").decode()
    sizes = shape_of(images)[1:3]
    x, y = (
        _map_pixels(e, e.div(linear(*t[i : i + 3]), scale), size, mode)
        for i, size in ((0, sizes[1]), (3, sizes[0]))
    )
    read = partial(_pixels, e, images, fill)
    nearest_only = node.attr("interpolation") == b"NEAREST"
    found = (
        read(_round_positions(e, y), _round_positions(e, x)) if nearest_only else _interpolate(e, read, y, x)
    )
    finite = e.compare("NE", e.reshape(scale, (*shape_of(scale), 1)), e.scalar(0, "float32"))
    return e.select(finite, e.cast(found, dtype), fill)


def _map_pixels(e: Emitter, place: SSAValue, size: int, mode: str) -> SSAValue:
    """Return coordinates outside of an axis, by where the pixels lie that continue it."""
    if mode == "CONSTANT":
        return place
    last = e.scalar(size - 1, "float32")
    zero = e.scalar(0, "float32")
    below, above = e.compare("LT", place, zero), e.compare("GT", place, last)

    def turns(x: SSAValue, period: int) -> SSAValue:
        return e.unary(ops.FloorOp, e.div(x, e.scalar(period, "float32")))

    if size > 1 and mode == "REFLECT":
        both = e.scalar(2 * size, "float32")
        low = e.add(place, e.mul(both, turns(e.unary(ops.NegOp, place), 2 * size)))
        mirrored = e.sub(e.unary(ops.NegOp, low), e.scalar(1, "float32"))
        low = e.select(e.compare("LT", low, e.scalar(-size, "float32")), e.add(low, both), mirrored)
        high = e.sub(place, e.mul(both, turns(place, 2 * size)))
        mirrored = e.sub(e.sub(both, high), e.scalar(1, "float32"))
        high = e.select(e.compare("GE", high, e.scalar(size, "float32")), mirrored, high)
        place = e.select(below, low, e.select(above, high, place))
    elif size > 1 and mode == "WRAP":
        # The period of TensorFlow's kernel: turns are counted with one pixel less than they add.
        whole = e.scalar(size, "float32")
        back = e.add(turns(e.unary(ops.NegOp, place), size - 1), e.scalar(1, "float32"))
        low, high = e.add(place, e.mul(whole, back)), e.sub(place, e.mul(whole, turns(place, size - 1)))
        place = e.select(below, low, e.select(above, high, place))
    return e.binary(ops.MinOp, e.binary(ops.MaxOp, place, zero), last)


def _round_positions(e: Emitter, x: SSAValue) -> SSAValue:
    """Return the nearest integer, halves away from zero."""
    half = e.scalar(0.5, "float32")
    return e.mul(e.unary(ops.SignOp, x), e.unary(ops.FloorOp, e.add(e.unary(ops.AbsOp, x), half)))


def _pixels(e: Emitter, images: SSAValue, fill: SSAValue, y: SSAValue, x: SSAValue) -> SSAValue:
    """`[N, h, w, C]`: the pixels at whole coordinates `[N or 1, h, w]`, `fill` outside of the images."""
    count, height, width, channels = shape_of(images)
    zero = e.scalar(0, "float32")
    inside = [e.compare("GE", place, zero) for place in (y, x)]
    inside += [e.compare("LT", p, e.scalar(n, "float32")) for p, n in ((y, height), (x, width))]
    is_inside = reduce(partial(e.binary, ops.AndOp), inside)
    row, column = (e.cast(e.select(is_inside, place, zero), "int32") for place in (y, x))
    first = e.reshape(e.emit(ops.ArangeOp(count, 0, height * width)), (count, 1, 1))
    numbers = e.add(first, e.add(e.mul(row, e.scalar(width, "int32")), column))
    found = e.take(e.reshape(images, (count * height * width, channels)), numbers, 0)
    return e.select(e.reshape(is_inside, (*shape_of(is_inside), 1)), found, fill)


def _interpolate(e: Emitter, read: Callable[..., SSAValue], y: SSAValue, x: SSAValue) -> SSAValue:
    """Return the four pixels around each place, by how near they are, in float32."""
    one = e.scalar(1, "float32")

    def sides(place: SSAValue) -> list[tuple[SSAValue, SSAValue]]:
        low = e.unary(ops.FloorOp, place)
        part = e.reshape(e.sub(place, low), (*shape_of(place), 1))
        return [(low, e.sub(one, part)), (e.add(low, one), part)]

    def line(row: SSAValue) -> SSAValue:
        terms = [e.mul(weight, e.cast(read(row, at), "float32")) for at, weight in sides(x)]
        return e.add(*terms)

    return e.add(*(e.mul(weight, line(at)) for at, weight in sides(y)))


def _adjust_contrast(node: NodeContext) -> SSAValue:
    """Return distances from the mean of each channel of an image, times a factor."""
    e, x = node.emit, node.x(0)
    rank = len(shape_of(x))
    mean = e.reduce("MEAN", x, (rank - 3, rank - 2), keep_dims=True)
    return e.add(e.mul(e.sub(x, mean), e.cast(node.x(1), dtype_of(x))), mean)


TABLE: Table = {
    "AdjustContrastv2": _adjust_contrast,
    "ImageProjectiveTransformV2": _projective_transform,
    "ImageProjectiveTransformV3": _projective_transform,
    "ExtractImagePatches": _extract_patches,
    "ResizeNearestNeighbor": _resize(nearest),
    "ResizeNearestNeighborGrad": _resize_nearest_grad,
    "ResizeBilinear": _resize(bilinear),
    "ResizeBilinearGrad": _resize_images_grad(bilinear),
    "ResizeBicubic": _resize(bicubic),
    "ResizeBicubicGrad": _resize_images_grad(bicubic),
    "ScaleAndTranslate": _scale_and_translate,
    "ScaleAndTranslateGrad": _scale_and_translate_grad,
    "MirrorPad": _mirror_pad,
    "MirrorPadGrad": _mirror_pad_grad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "SpaceToBatchND": _space_to_batch,
    "BatchToSpaceND": _batch_to_space,
}
