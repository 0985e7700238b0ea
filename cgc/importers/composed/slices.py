"""Parts of tensors along their axes: cut, reversed, taken in steps, and put back in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh.types import shape_of
from cgc.importers.emit import Emitter


@dataclass(frozen=True)
class AxisRange:
    """What is taken of one axis: `count` elements from `start`, `step` apart (negative: backwards)."""

    start: int
    count: int
    step: int

    @property
    def indices(self) -> range:
        """The positions taken, in the order of the result."""
        return range(self.start, self.start + self.count * self.step, self.step)


@dataclass(frozen=True)
class Slicing:
    """A resolved strided slice.

    Attributes:
        axes: one range per axis of the input.
        shape: the shape of the result, after axes were dropped and added.
    """

    axes: tuple[AxisRange, ...]
    shape: tuple[int, ...]

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape after slicing, before axes are dropped or added."""
        return tuple(axis.count for axis in self.axes)


def cut(e: Emitter, x: SSAValue, axis: int, sizes: Sequence[int]) -> list[SSAValue]:
    """Pieces of the given sizes, one after the other along an axis."""
    shape = shape_of(x)
    parts: list[SSAValue] = []
    begin = 0
    for size in sizes:
        start, limit = [0] * len(shape), list(shape)
        start[axis], limit[axis] = begin, begin + size
        parts.append(e.slice(x, start, limit, [1] * len(shape)))
        begin += size
    return parts


def reverse(e: Emitter, x: SSAValue, axis: int) -> SSAValue:
    """The elements along an axis in reverse order."""
    size = shape_of(x)[axis]
    return e.take(x, e.constant(np.arange(size - 1, -1, -1, dtype=np.int32)), axis)


def take_slices(e: Emitter, x: SSAValue, found: Slicing) -> SSAValue:
    """A slice of a tensor, with axes dropped and added."""
    ranges = [_forward(axis) for axis in found.axes]
    limit = [a.start + (a.count - 1) * a.step + 1 if a.count else a.start for a in ranges]
    taken = e.slice(x, [a.start for a in ranges], limit, [a.step for a in ranges])
    return e.reshape(_reversed_axes(e, taken, found), found.shape)


def _forward(axis: AxisRange) -> AxisRange:
    """The same elements in rising order."""
    if axis.step > 0 or not axis.count:
        return AxisRange(axis.start, axis.count, abs(axis.step))
    return AxisRange(axis.start + (axis.count - 1) * axis.step, axis.count, -axis.step)


def _reversed_axes(e: Emitter, x: SSAValue, found: Slicing) -> SSAValue:
    for axis, entry in enumerate(found.axes):
        if entry.step < 0 and entry.count > 1:
            x = reverse(e, x, axis)
    return x


def spread_slices(e: Emitter, x: SSAValue, found: Slicing, shape: Sequence[int]) -> SSAValue:
    """The elements of a slice in their places in a tensor of a shape, zero elsewhere."""
    x = _reversed_axes(e, e.reshape(x, found.kept_shape), found)
    for axis, entry in enumerate(found.axes):
        x = _spread(e, x, axis, _forward(entry), shape[axis])
    return x


def _spread(e: Emitter, x: SSAValue, axis: int, entry: AxisRange, size: int) -> SSAValue:
    """Places the elements along an axis `entry.step` apart from `entry.start` in an axis of `size`.

    CIRH pads at the ends only, so gaps come from an axis of their own: [n] is seen as [n, 1], padded to
    [n, step] and read as [n * step].
    """
    shape = shape_of(x)
    rank = len(shape)
    if entry.step > 1 and entry.count:
        wide = e.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        after = [0] * (rank + 1)
        after[axis + 1] = entry.step - 1
        wide = e.pad(wide, [0] * (rank + 1), after)
        x = e.reshape(wide, (*shape[:axis], entry.count * entry.step, *shape[axis + 1 :]))
        # The gap after the last element may reach beyond the axis.
        limit = list(shape_of(x))
        limit[axis] = min(limit[axis], size - entry.start)
        x = e.slice(x, [0] * rank, limit, [1] * rank)
    before, behind = [0] * rank, [0] * rank
    before[axis] = entry.start
    behind[axis] = size - entry.start - shape_of(x)[axis]
    return e.pad(x, before, behind)
