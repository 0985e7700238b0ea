"""Resampling along one dimension of a tensor, as resizing of images and mirrored borders need it.

It is linear: each result is a weighted sum of few elements, whose places and weights are numbers by the time
of the import. What repeats elements, or mixes neighbors in the same way everywhere, becomes elementwise ops
and movement; the rest is gathered, and its gradient is a product with the matrix of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import cut
from cgc.importers.emit import Emitter, dtype_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_FEW = 2  # number of taps up to which elements are moved; more are a product with a matrix


class Taps(NamedTuple):
    """Weights to resize one dimension: result `i` is the sum of `weights[:, i] * x[places[:, i]]`.

    Attributes:
        places: `[taps, results]`.
        weights: `[taps, results]`.
        size: number of elements before resizing.
    """

    places: Ints
    weights: Floats
    size: int

    @property
    def factor(self) -> int | None:
        """Return the number of repetitions if each element is only repeated, else None."""
        results = self.places.shape[1]
        factor = max(1, results // self.size)
        repeats = len(self.places) == 1 and factor * self.size == results
        return factor if repeats and (self.places[0] == np.arange(results) // factor).all() else None

    def phases(self) -> list[list[tuple[int, float]]] | None:
        """Return (distance, weight) of the taps for each of n results per element, if they are alike.

        Beyond the borders the outermost elements count. None if the results are not alike.
        """
        results = self.places.shape[1]
        factor = results // self.size
        if factor * self.size != results or factor < 2 or self.size < 3:
            return None
        own = np.arange(self.size)
        places, weights = (part.reshape(len(part), self.size, factor) for part in (self.places, self.weights))
        distances = places[:, 1] - 1
        clipped = np.clip(own[None, :, None] + distances[:, None], 0, self.size - 1)
        alike = (places == clipped).all() and np.allclose(weights, weights[:, 1:2], rtol=0, atol=1e-6)
        if not alike or np.abs(distances).max() > 1:
            return None
        return [
            [(int(d), float(w)) for d, w in zip(distances[:, i], weights[:, 1, i], strict=True) if w]
            for i in range(factor)
        ]

    def matrix(self) -> Floats:
        """Return the weights as `[results, elements before]`."""
        dense = np.zeros((self.places.shape[1], self.size), np.float32)
        for places, weights in zip(self.places, self.weights, strict=True):
            np.add.at(dense, (np.arange(len(places)), places), weights)
        return dense


def nearest(size: int, results: int, align_corners: bool, half_pixel_centers: bool) -> Taps:
    """Return the one element that TensorFlow's ResizeNearestNeighbor takes, computed in float32 as there."""
    position = _positions(size, results, align_corners, 0.5 if half_pixel_centers else 0.0)
    # half away from zero, as C's roundf
    places = np.floor(position + np.float32(0.5)) if align_corners else np.floor(position)
    places = np.clip(places, 0, size - 1).astype(np.int64)
    return Taps(places[None], np.ones((1, results), np.float32), size)


def bilinear(size: int, results: int, align_corners: bool, half_pixel_centers: bool) -> Taps:
    """Return the two elements that TensorFlow's ResizeBilinear mixes, with their weights."""
    position = _positions(size, results, align_corners, 0.5 if half_pixel_centers else 0.0)
    if half_pixel_centers:
        position = position - np.float32(0.5)
    lower = np.floor(position)
    upper_share = (position - lower).astype(np.float32)
    places = np.stack([np.maximum(lower, 0), np.minimum(np.ceil(position), size - 1)]).astype(np.int64)
    return Taps(places, np.stack([1 - upper_share, upper_share]), size)


def bicubic(size: int, results: int, align_corners: bool, half_pixel_centers: bool) -> Taps:
    """Return the four taps of TensorFlow's ResizeBicubic, which rounds distances to 1/1024."""
    position = _positions(size, results, align_corners, 0.5 if half_pixel_centers else 0.0)
    if half_pixel_centers:
        position = position - np.float32(0.5)
    lower = np.floor(position)
    share = np.rint((position - lower) * 1024) / 1024
    weights = _keys(np.stack([1 + share, share, 1 - share, 2 - share]), -0.5 if half_pixel_centers else -0.75)
    places = lower.astype(np.int64) + np.arange(-1, 3)[:, None]
    clipped = np.clip(places, 0, size - 1)
    if half_pixel_centers:
        weights = np.where(places == clipped, weights, 0)
        weights = weights / weights.sum(0)
    return Taps(clipped, weights.astype(np.float32), size)


def _keys(distance: NDArray[Any], a: float = -0.5) -> NDArray[Any]:
    """Return Keys' cubic convolution kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _lanczos(distance: NDArray[Any], radius: int) -> NDArray[Any]:
    return np.where(distance <= radius, np.sinc(distance) * np.sinc(distance / radius), 0)


def _mitchell(distance: NDArray[Any]) -> NDArray[Any]:
    near = (7 / 6 * distance - 2) * distance**2 + 8 / 9
    far = ((-7 / 18 * distance + 2) * distance - 10 / 3) * distance + 16 / 9
    return np.where(distance < 1, near, np.where(distance < 2, far, 0))


# Radius and weights by distance, by TensorFlow's names.
KERNELS: Mapping[str, tuple[float, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "box": (0.5, lambda d: np.where(d < 0.5, 1.0, np.where(d == 0.5, 0.5, 0.0))),
    "gaussian": (1.5, lambda d: np.where(d < 1.5, np.exp(-2 * d**2), 0)),
    "keyscubic": (2, _keys),
    "lanczos1": (1, partial(_lanczos, radius=1)),
    "lanczos3": (3, partial(_lanczos, radius=3)),
    "lanczos5": (5, partial(_lanczos, radius=5)),
    "mitchellcubic": (2, _mitchell),
    "triangle": (1, lambda d: np.maximum(1 - d, 0)),
}


def scale_and_translate(
    size: int, results: int, kernel: str, antialias: bool, scale: float, translation: float
) -> Taps:
    """Return the elements that TensorFlow's ScaleAndTranslate mixes.

    Args:
        size: elements before.
        results: elements after.
        kernel: one of `KERNELS`.
        antialias: whether the kernel grows where the result is smaller.
        scale: of the result.
        translation: of the result, in its elements.
    """
    radius, weight = KERNELS[kernel]
    # In float32, as there: whether an element at the border of the kernel counts hangs on the rounding.
    one, half = np.float32(1), np.float32(0.5)
    step = one / np.float32(scale)
    center = (np.arange(results, dtype=np.float32) + half) * step - step * np.float32(translation)
    unit = max(step, one) if antialias else one
    reach = np.float32(radius) * unit
    first = np.clip(np.ceil(center - reach - half), 0, size - 1)
    last = np.clip(np.floor(center + reach - half), 0, size - 1)
    places = np.broadcast_to(np.arange(size)[:, None], (size, results))
    weights = np.where((places >= first) & (places <= last), weight(np.abs(places + half - center) / unit), 0)
    total = weights.sum(0)
    is_inside = (center >= 0) & (center <= size) & (np.abs(total) > 1e-35)
    weights = np.where(is_inside, weights / np.where(is_inside, total, 1), 0)
    return Taps(places, weights.astype(np.float32), size)


def _positions(size: int, results: int, align_corners: bool, offset: float) -> Floats:
    """Return the positions of the results among the elements before resizing."""
    if align_corners and results > 1:
        scale = np.float32(size - 1) / np.float32(results - 1)
    else:
        scale = np.float32(size) / np.float32(results)
    return (np.arange(results, dtype=np.float32) + np.float32(offset)) * scale


def resample(e: Emitter, x: SSAValue, axis: int, taps: Taps) -> SSAValue:
    """Resample one dimension of x."""
    if taps.factor is not None:
        return _repeat(e, x, axis, taps.factor)
    if len(taps.places) > _FEW:
        return _product(e, x, axis, taps.matrix().T)
    phases = taps.phases()
    if phases is not None:
        return _interleave(e, [_mix_neighbors(e, x, axis, phase) for phase in phases], axis)
    parts = [
        _weigh(e, e.take(x, e.constant(places.astype(np.int32)), axis), axis, weights)
        for places, weights in zip(taps.places, taps.weights, strict=True)
    ]
    return parts[0] if len(parts) == 1 else e.add(parts[0], parts[1])


def _mix_neighbors(e: Emitter, x: SSAValue, axis: int, phase: Sequence[tuple[int, float]]) -> SSAValue:
    """Return the weighted sum of x and its neighbors along an axis."""
    terms = [e.scale(_neighbor(e, x, axis, distance), weight) for distance, weight in phase]
    return terms[0] if len(terms) == 1 else e.add(terms[0], terms[1])


def _neighbor(e: Emitter, x: SSAValue, axis: int, distance: int) -> SSAValue:
    """Return for each element the previous one (-1) or the next one (1); the outermost is its own."""
    size = shape_of(x)[axis]
    if distance == 0:
        return x
    first, *_, last = cut(e, x, axis, [1, size - 2, 1])
    inner = cut(e, x, axis, [size - 1, 1])[0] if distance < 0 else cut(e, x, axis, [1, size - 1])[1]
    return e.emit(ops.ConcatOp([first, inner] if distance < 0 else [inner, last], axis))


def _from_neighbor(e: Emitter, grad: SSAValue, axis: int, distance: int) -> SSAValue:
    """Return the transpose of `_neighbor`."""
    shape = shape_of(grad)
    if distance == 0:
        return grad

    def pad_borders(part: SSAValue, before: int) -> SSAValue:
        low, high = [0] * len(shape), [0] * len(shape)
        low[axis], high[axis] = before, shape[axis] - before - shape_of(part)[axis]
        return e.pad(part, low, high)

    sizes = [1, shape[axis] - 1] if distance < 0 else [shape[axis] - 1, 1]
    front, back = cut(e, grad, axis, sizes)
    if distance < 0:
        return e.add(pad_borders(back, 0), pad_borders(front, 0))
    return e.add(pad_borders(front, 1), pad_borders(back, shape[axis] - 1))


def _interleave(e: Emitter, parts: Sequence[SSAValue], axis: int) -> SSAValue:
    """Return the first elements of all parts along an axis, then the second ones, and so on."""
    shape = shape_of(parts[0])
    columns = [e.reshape(part, (*shape[: axis + 1], 1, *shape[axis + 1 :])) for part in parts]
    joined = e.emit(ops.ConcatOp(columns, axis + 1))
    return e.reshape(joined, (*shape[:axis], shape[axis] * len(parts), *shape[axis + 1 :]))


def _weigh(e: Emitter, x: SSAValue, axis: int, weights: Floats) -> SSAValue:
    if (weights == 1).all():
        return x
    column = weights.reshape(-1, *[1] * (len(shape_of(x)) - axis - 1))
    return e.mul(x, e.constant(column.astype(dtype_of(x))))


def _repeat(e: Emitter, x: SSAValue, axis: int, factor: int) -> SSAValue:
    """Return every element along an axis `factor` times."""
    shape = shape_of(x)
    split = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    wide = (*shape[: axis + 1], factor, *shape[axis + 1 :])
    result = (*shape[:axis], shape[axis] * factor, *shape[axis + 1 :])
    return x if factor == 1 else e.reshape(e.broadcast(e.reshape(x, split), wide), result)


def resample_grad(e: Emitter, grad: SSAValue, axis: int, taps: Taps) -> SSAValue:
    """Return the transpose of `resample`: sums of repeated elements, else a product with the weights."""
    shape = shape_of(grad)
    factor = taps.factor
    if factor is not None:
        blocks = e.reshape(grad, (*shape[:axis], taps.size, factor, *shape[axis + 1 :]))
        return e.reduce("ADD", blocks, [axis + 1]) if factor > 1 else grad
    phases = taps.phases() if len(taps.places) <= _FEW else None
    if phases is not None:
        return _mix_neighbors_grad(e, grad, axis, phases)
    return _product(e, grad, axis, taps.matrix())


def _product(e: Emitter, x: SSAValue, axis: int, matrix: Floats) -> SSAValue:
    """Multiply one dimension of x by a matrix `[elements, results]`."""
    shape = shape_of(x)
    others = [other for other in range(len(shape)) if other != axis]
    rows = e.reshape(e.transpose(x, (*others, axis)), (-1, shape[axis]))
    product = e.emit(ops.MatMulOp(rows, e.constant(matrix.astype(dtype_of(x)))))
    back = list(range(len(others)))
    back.insert(axis, len(others))
    return e.transpose(e.reshape(product, (*(shape[other] for other in others), matrix.shape[1])), back)


def _mix_neighbors_grad(
    e: Emitter, grad: SSAValue, axis: int, phases: Sequence[Sequence[tuple[int, float]]]
) -> SSAValue:
    """Return the transpose of `_mix_neighbors` and `_interleave`; terms of one neighbor are summed first."""
    shape = shape_of(grad)
    size = shape[axis] // len(phases)
    split = e.reshape(grad, (*shape[:axis], size, len(phases), *shape[axis + 1 :]))
    own = (*shape[:axis], size, *shape[axis + 1 :])
    parts = [e.reshape(part, own) for part in cut(e, split, axis + 1, [1] * len(phases))]
    sums: dict[int, SSAValue] = {}
    for part, phase in zip(parts, phases, strict=True):
        for distance, weight in phase:
            term = e.scale(part, weight)
            sums[distance] = e.add(sums[distance], term) if distance in sums else term
    first, *others = (_from_neighbor(e, total, axis, distance) for distance, total in sums.items())
    for other in others:
        first = e.add(first, other)
    return first
