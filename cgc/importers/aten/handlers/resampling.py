"""Antialiased resampling of images, and the gradients of resampling and repeated borders, as linear maps.

The weights are those of ATen: half-pixel centers unless `align_corners`, cubic convolution with a = -0.75.
On a CPU it ignores a scale that was given where it copies an axis, or repeats every element of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.emit import Emitter

# `[out, in]`: the weight of each element of an axis in each element of the result.
Matrix: TypeAlias = NDArray[np.float32]
# Returns the map of an axis, given its size, the size of the result, the scale, and `align_corners`.
Kind: TypeAlias = Callable[[int, int, float, bool], Matrix]

_CUBIC = -0.75


def apply_transposed(e: Emitter, grad: SSAValue, matrices: Sequence[Matrix]) -> SSAValue:
    """Apply the transposed maps of the last axes, axis by axis."""
    rank = len(shape_of(grad))
    for axis, matrix in enumerate(matrices, start=rank - len(matrices)):
        order = [i for i in range(rank) if i != axis] + [axis]
        moved = e.transpose(grad, order)
        rows = e.reshape(moved, (-1, shape_of(moved)[-1]))
        found = e.emit(ops.MatMulOp(rows, e.constant(matrix)))
        moved = e.reshape(found, (*shape_of(moved)[:-1], matrix.shape[1]))
        grad = e.transpose(moved, np.argsort(order).tolist())
    return grad


def _scale(given: float | None, size: int, count: int, align: bool) -> float:
    if align:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / given if given else size / count


def _nearest(size: int, count: int, scale: float, align: bool) -> Matrix:
    scale = size / count if count in (size, 2 * size) else scale
    source = np.minimum(np.floor(np.arange(count) * np.float32(scale)).astype(int), size - 1)
    return _pick(source, size)


def _exact(size: int, count: int, scale: float, align: bool) -> Matrix:
    source = np.floor((np.arange(count) + 0.5) * np.float32(scale)).astype(int)
    return _pick(np.minimum(source, size - 1), size)


def _pick(source: NDArray[np.intp], size: int) -> Matrix:
    matrix = np.zeros((len(source), size), np.float32)
    matrix[np.arange(len(source)), source] = 1
    return matrix


def _positions(count: int, scale: float, align: bool) -> NDArray[np.float64]:
    places = np.arange(count, dtype=np.float64)
    return places * scale if align else (places + 0.5) * scale - 0.5


def _linear(size: int, count: int, scale: float, align: bool) -> Matrix:
    scale = 1.0 if count == size else scale
    place = np.maximum(_positions(count, scale, align), 0)
    low = np.minimum(place.astype(int), size - 1)
    part = place - low
    matrix = np.zeros((count, size), np.float32)
    rows = np.arange(count)
    np.add.at(matrix, (rows, low), 1 - part)
    np.add.at(matrix, (rows, np.minimum(low + 1, size - 1)), part)
    return matrix


def _cubic(size: int, count: int, scale: float, align: bool) -> Matrix:
    place = _positions(count, scale, align)
    low = np.floor(place).astype(int)
    part = place - low
    matrix = np.zeros((count, size), np.float32)
    for offset in range(-1, 3):
        weight = _cubic_weight(np.abs(part - offset))
        np.add.at(matrix, (np.arange(count), np.clip(low + offset, 0, size - 1)), weight)
    return matrix


def _cubic_weight(distance: NDArray[np.float64], a: float = _CUBIC) -> NDArray[np.float64]:
    """Return Keys' cubic convolution kernel for distances up to 2."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, far)


def _antialias(reach: int, weight: Callable[[NDArray[Any]], NDArray[np.float64]]) -> Kind:
    """Return means over as much of the axis as an element of the result covers.

    Args:
        reach: the distance, in elements of the coarser side, from which on a weight is 0.
        weight: of a distance.
    """

    def kind(size: int, count: int, scale: float, align: bool) -> Matrix:
        unit = max(scale, 1.0)
        center = scale * (np.arange(count, dtype=np.float64)[:, None] + 0.5)
        place = np.arange(size)[None]
        first = (center - reach * unit + 0.5).astype(int).clip(min=0)
        last = (center + reach * unit + 0.5).astype(int).clip(max=size)
        weights = np.where((place >= first) & (place < last), weight(np.abs(place + 0.5 - center) / unit), 0)
        found: Matrix = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
        return found

    return kind


def _triangle(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1 - distance, 0)


def _smooth(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cubic kernel of ATen where it antialiases, which is the one of image libraries."""
    return np.where(distance < 2, _cubic_weight(distance, -0.5), 0)


def _matrices(node: NodeContext, kind: Kind, sizes: Sequence[int], counts: Sequence[int]) -> list[Matrix]:
    dimensions = len(counts)
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[dimensions]
    align = bool(node.arg("align_corners", False))
    return [
        kind(size, count, _scale(node.arg(name), size, count, align), align)
        for size, count, name in zip(sizes[-dimensions:], counts, names, strict=True)
    ]


def _upsample_grad(kind: Kind) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        matrices = _matrices(node, kind, node.arg("input_size"), node.arg("output_size"))
        return apply_transposed(node.emit, node.x("grad_output"), matrices)

    return handler


def _upsample(kind: Kind) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.x()
        matrices = _matrices(node, kind, shape_of(x), node.arg("output_size"))
        # An axis that keeps its size is copied, whatever its scale; its gradient goes by the scale.
        kept = [np.eye(len(m), dtype=np.float32) if m.shape[0] == m.shape[1] else m for m in matrices]
        return apply_transposed(node.emit, x, [matrix.T for matrix in kept])

    return handler


def _repeat_border(places: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    return np.clip(places, 0, size - 1)


def _reflect_border(places: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    last = size - 1
    found: NDArray[np.intp] = last - np.abs(last - np.abs(places))
    return found


def _pad_grad(source: Callable[[NDArray[np.intp], int], NDArray[np.intp]], dimensions: int) -> Handler:
    """Return the gradient of a padding; `source` has the place that a padded place is a copy of."""

    def handler(node: NodeContext) -> SSAValue:
        pad, space = node.arg("padding"), node.shape[-dimensions:]
        matrices = []
        for axis, size in enumerate(space):
            low, high = pad[2 * (dimensions - 1 - axis)], pad[2 * (dimensions - 1 - axis) + 1]
            matrices.append(_pick(source(np.arange(-low, size + high), size), size))
        return apply_transposed(node.emit, node.x("grad_output"), matrices)

    return handler


_SPACES = {1: "1d", 2: "2d", 3: "3d"}

TABLE: Table = {
    **{
        f"aten.{kind}{name}_backward.default": _upsample_grad(matrix)
        for kind, matrix in (("upsample_nearest", _nearest), ("_upsample_nearest_exact", _exact))
        for name in _SPACES.values()
    },
    "aten._upsample_bilinear2d_aa.default": _upsample(_antialias(1, _triangle)),
    "aten._upsample_bicubic2d_aa.default": _upsample(_antialias(2, _smooth)),
    "aten._upsample_bilinear2d_aa_backward.default": _upsample_grad(_antialias(1, _triangle)),
    "aten._upsample_bicubic2d_aa_backward.default": _upsample_grad(_antialias(2, _smooth)),
    "aten.upsample_linear1d_backward.default": _upsample_grad(_linear),
    "aten.upsample_bilinear2d_backward.default": _upsample_grad(_linear),
    "aten.upsample_trilinear3d_backward.default": _upsample_grad(_linear),
    "aten.upsample_bicubic2d_backward.default": _upsample_grad(_cubic),
    **{
        f"aten.{kind}_pad{name}_backward.default": _pad_grad(source, dimensions)
        for kind, source in (("reflection", _reflect_border), ("replication", _repeat_border))
        for dimensions, name in _SPACES.items()
    },
}
