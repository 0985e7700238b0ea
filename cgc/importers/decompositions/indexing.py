"""Moving elements, and reading and replacing them by position: layouts, slices, rows by index, windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, Shape, dtype_of


def gather(e: Emitter, x: SSAValue, indices: SSAValue, axis: int, batch_dims: int) -> SSAValue:
    """Gather rows of x along an axis, with separate indices for each element of the first axes.

    Leading axes that belong together become one axis of rows numbered through.
    """
    if batch_dims == 0:
        return e.take(x, indices, axis)
    if batch_dims < axis:
        return _gather_inner_axis(e, x, indices, axis, batch_dims)
    shape, wanted = shape_of(x), shape_of(indices)
    count, rows = math.prod(shape[:axis]), shape[axis]
    flat = e.reshape(x, (count * rows, *shape[axis + 1 :]))
    first = np.arange(count, dtype=np.int32).reshape((*shape[:axis], *(1,) * (len(wanted) - axis))) * rows
    return e.take(flat, e.add(e.cast(indices, "int32"), e.constant(first)), 0)


def _gather_inner_axis(e: Emitter, x: SSAValue, indices: SSAValue, axis: int, batch_dims: int) -> SSAValue:
    """Gather along an axis with others between it and the batch: these move to the end and back."""
    rank, count = len(shape_of(x)), len(shape_of(indices)) - batch_dims
    batch, between = list(range(batch_dims)), list(range(batch_dims, axis))
    taken = gather(
        e, e.transpose(x, [*batch, axis, *between, *range(axis + 1, rank)]), indices, batch_dims, batch_dims
    )
    moved = [batch_dims + count + position for position in range(len(between))]
    rest = range(batch_dims + count + len(between), len(shape_of(taken)))
    return e.transpose(taken, [*batch, *moved, *range(batch_dims, batch_dims + count), *rest])


def take_padded(e: Emitter, x: SSAValue, indices: SSAValue) -> SSAValue:
    """Return rows of x; an index beyond the last row, as padding has, takes the last row."""
    last = e.like(shape_of(x)[0] - 1, indices)
    return e.take(x, e.binary(ops.MinOp, indices, last), 0)


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor that `indices` of shape [..., depth] refer to.

    Attributes:
        numbers: int32 of shape [count]; the number of each row.
        table: shape of the tensor as [rows, ...].
        batch: leading axes of the indices.
    """

    numbers: SSAValue
    table: Shape
    batch: Shape

    @property
    def updates(self) -> Shape:
        """Shape of as many rows as are named."""
        return (math.prod(self.batch), *self.table[1:])


def flatten_indices(e: Emitter, indices: SSAValue, shape: Sequence[int]) -> Rows:
    """Flatten indices of several numbers each to row numbers: the leading axes become one axis of rows."""
    *batch, depth = shape_of(indices)
    if depth > len(shape):
        raise RefusedError(
            Kind.USAGE,
            f"indices have {depth} numbers each, the tensor of shape {list(shape)} has {len(shape)} axes",
        )
    leading, rest = shape[:depth], shape[depth:]
    strides = np.asarray([math.prod(leading[axis + 1 :]) for axis in range(depth)], np.int32)
    flat = e.cast(e.reshape(indices, (math.prod(batch), depth)), "int32")
    numbers = e.reduce("ADD", e.mul(flat, e.constant(strides)), [1])
    return Rows(numbers, (math.prod(leading), *rest), tuple(batch))


def gather_nd(e: Emitter, x: SSAValue, indices: SSAValue) -> SSAValue:
    """Gather the elements of x that indices of several numbers each refer to."""
    rows = flatten_indices(e, indices, shape_of(x))
    taken = e.take(e.reshape(x, rows.table), rows.numbers, 0)
    return e.reshape(taken, (*rows.batch, *rows.table[1:]))


def scatter_rows(e: Emitter, indices: SSAValue, updates: SSAValue, shape: Sequence[int]) -> SSAValue:
    """Return rows added into zeros at `indices`, which may have any rank."""
    count = math.prod(shape_of(indices))
    flat = e.reshape(indices, (count,))
    return e.emit(ops.ScatterNdOp(flat, e.reshape(updates, (count, *shape[1:])), tuple(shape)))


@dataclass(frozen=True)
class AxisRange:
    """A range of one axis: `count` elements from `start`, `step` apart (negative: backwards)."""

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


def channels_last(e: Emitter, x: SSAValue) -> SSAValue:
    """Transpose `[N, C, ...]` to `[N, ..., C]`, the order of CIRH."""
    return e.transpose(x, (0, *range(2, len(shape_of(x))), 1))


def channels_second(e: Emitter, x: SSAValue) -> SSAValue:
    """Transpose `[N, ..., C]` to `[N, C, ...]`."""
    rank = len(shape_of(x))
    return e.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def repeat(e: Emitter, x: SSAValue, times: Sequence[int]) -> SSAValue:
    """Return the whole tensor, repeated along each axis.

    [a, b] repeated [m, n] times is [1, a, 1, b] broadcast to [m, a, n, b], then reshaped.
    """
    shape = shape_of(x)
    if all(count == 1 for count in times):
        return x
    single = [size for axis in shape for size in (1, axis)]
    wide = [size for pair in zip(times, shape, strict=True) for size in pair]
    repeated = e.broadcast(e.reshape(x, single), wide)
    return e.reshape(repeated, [count * size for count, size in zip(times, shape, strict=True)])


def roll(e: Emitter, x: SSAValue, shift: int, axis: int) -> SSAValue:
    """Move elements along an axis; those that leave it at one end enter at the other."""
    size = shape_of(x)[axis]
    start = -shift % size if size else 0
    if not start:
        return x
    first, second = cut(e, x, axis, [start, size - start])
    return e.emit(ops.ConcatOp([second, first], axis))


def slice_axis(e: Emitter, x: SSAValue, axis: int, start: int, end: int, step: int = 1) -> SSAValue:
    """`x[start:end:step]` of one axis."""
    shape = shape_of(x)
    starts, ends, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], ends[axis], steps[axis] = start, end, step
    return e.slice(x, starts, ends, steps)


def cut(e: Emitter, x: SSAValue, axis: int, sizes: Sequence[int]) -> list[SSAValue]:
    """Cut a tensor into pieces of the given sizes along an axis."""
    ends = list(itertools.accumulate(sizes))
    return [slice_axis(e, x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def reverse(e: Emitter, x: SSAValue, axis: int) -> SSAValue:
    """Return the elements along an axis in reverse order."""
    size = shape_of(x)[axis]
    return e.take(x, e.constant(np.arange(size - 1, -1, -1, dtype=np.int32)), axis)


def take_slices(e: Emitter, x: SSAValue, found: Slicing) -> SSAValue:
    """Return a slice of a tensor, with axes dropped and added."""
    ranges = [_forward(axis) for axis in found.axes]
    limit = [a.start + (a.count - 1) * a.step + 1 if a.count else a.start for a in ranges]
    taken = e.slice(x, [a.start for a in ranges], limit, [a.step for a in ranges])
    return e.reshape(_reverse_axes(e, taken, found), found.shape)


def _forward(axis: AxisRange) -> AxisRange:
    """Return the same elements in rising order."""
    if axis.step > 0 or not axis.count:
        return AxisRange(axis.start, axis.count, abs(axis.step))
    return AxisRange(axis.start + (axis.count - 1) * axis.step, axis.count, -axis.step)


def _reverse_axes(e: Emitter, x: SSAValue, found: Slicing) -> SSAValue:
    for axis, entry in enumerate(found.axes):
        if entry.step < 0 and entry.count > 1:
            x = reverse(e, x, axis)
    return x


def spread_slices(e: Emitter, x: SSAValue, found: Slicing, shape: Sequence[int]) -> SSAValue:
    """Return the elements of a slice in their places in a tensor of a shape, zero elsewhere."""
    x = _reverse_axes(e, e.reshape(x, found.kept_shape), found)
    for axis, entry in enumerate(found.axes):
        x = _spread(e, x, axis, _forward(entry), shape[axis])
    return x


def _spread(e: Emitter, x: SSAValue, axis: int, entry: AxisRange, size: int) -> SSAValue:
    """Place the elements along an axis `entry.step` apart from `entry.start` in an axis of `size`.

    CIRH pads only at the ends, so gaps come from an extra axis: [n] becomes [n, 1], is padded to [n, step]
    and read as [n * step].
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
    before, after = [0] * rank, [0] * rank
    before[axis] = entry.start
    after[axis] = size - entry.start - shape_of(x)[axis]
    return e.pad(x, before, after)


def max_positions(
    e: Emitter,
    x: SSAValue,
    pooled: Shape,
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
) -> SSAValue:
    """Return the position of the first of the largest elements of each window, counted in the whole image.

    `[N, *pooled, C]` of int32 for `[N, *space, C]`.
    """
    space = shape_of(x)[1:-1]
    rows = [math.prod(space[axis + 1 :]) for axis in range(len(space))]
    x = e.pad(x, (0, *padding[::2], 0), (0, *padding[1::2], 0), e.scalar(-math.inf, dtype_of(x)))
    offsets = list(itertools.product(*map(range, ksize)))
    at_offsets = []
    for offset in offsets:
        ends = (at + (n - 1) * step + 1 for at, n, step in zip(offset, pooled[1:-1], strides, strict=True))
        limit = (pooled[0], *ends, pooled[-1])
        at_offsets.append(e.slice(x, (0, *offset, 0), limit, (1, *strides, 1)))
    columns = [e.reshape(found, (*pooled, 1)) for found in at_offsets]
    first = e.emit(ops.ArgMaxOp(e.emit(ops.ConcatOp(columns, len(pooled))), len(pooled), "int32"))
    starts = np.zeros((1, *pooled[1:-1], 1), np.int32)
    for axis, (count, step, low, row) in enumerate(
        zip(pooled[1:-1], strides, padding[::2], rows, strict=True)
    ):
        along = ((np.arange(count) * step - low) * row).astype(np.int32)
        starts = starts + along.reshape([-1 if i == axis + 1 else 1 for i in range(len(pooled))])
    within = (np.array(offsets) @ np.array(rows)).astype(np.int32)
    return e.add(e.take(e.constant(within), e.reshape(first, pooled), 0), e.constant(starts))
