"""Ops that take or place elements by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.emit import Emitter, Shape
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow import slicing
from cgc.importers.tensorflow.handlers.shape import reverse
from cgc.importers.tensorflow.node import NodeContext, Table
from cgc.importers.tensorflow.slicing import AxisRange, Slicing


def _slice(node: NodeContext) -> SSAValue:
    x = node.x(0)
    shape = shape_of(x)
    begin, size = node.ints(1, "begin"), node.ints(2, "size")
    limit = [
        whole if count < 0 else start + count for whole, start, count in zip(shape, begin, size, strict=True)
    ]
    return node.emit.slice(x, begin, limit, [1] * len(shape))


def resolve_slices(node: NodeContext, shape: Sequence[int], begin_at: int) -> Slicing:
    """What the inputs begin, end and strides, from `begin_at` on, and the masks take of a shape."""
    begin, end, strides = (
        node.ints(begin_at + i, what) for i, what in enumerate(("begin", "end", "strides"))
    )
    masks = {name: int(node.attr(name)) for name in slicing.MASKS}
    try:
        return slicing.resolve(shape, begin, end, strides, masks)
    except IndexError as error:
        raise RefusedError(Kind.SHAPE, f"slice of a tensor of shape {list(shape)}: {error}") from None


def _forward(axis: AxisRange) -> AxisRange:
    """The same elements in rising order."""
    if axis.step > 0 or not axis.count:
        return AxisRange(axis.start, axis.count, abs(axis.step))
    return AxisRange(axis.start + (axis.count - 1) * axis.step, axis.count, -axis.step)


def _strided_slice(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x(0)
    found = resolve_slices(node, shape_of(x), 1)
    ranges = [_forward(axis) for axis in found.axes]
    limit = [a.start + (a.count - 1) * a.step + 1 if a.count else a.start for a in ranges]
    taken = e.slice(x, [a.start for a in ranges], limit, [a.step for a in ranges])
    return e.reshape(_reversed_axes(e, taken, found), found.shape)


def _reversed_axes(e: Emitter, x: SSAValue, found: Slicing) -> SSAValue:
    for axis, entry in enumerate(found.axes):
        if entry.step < 0 and entry.count > 1:
            x = reverse(e, x, axis)
    return x


def _strided_slice_grad(node: NodeContext) -> SSAValue:
    """The gradient of a slice: its elements back in their places, zero elsewhere."""
    shape = node.ints(0, "shape")
    return spread_slices(node.emit, node.x(4), resolve_slices(node, shape, 1), shape)


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


def _gather(node: NodeContext) -> SSAValue:
    return node.emit.take(node.x(0), node.x(1), 0)


def _gather_v2(node: NodeContext) -> SSAValue:
    x, indices = node.x(0), node.x(1)
    axis = node.axis(2, "axis", len(shape_of(x)))
    batch_dims = node.attr("batch_dims") % (len(shape_of(indices)) + 1)
    return gather(node.emit, x, indices, axis, batch_dims)


def gather(e: Emitter, x: SSAValue, indices: SSAValue, axis: int, batch_dims: int) -> SSAValue:
    """tf.gather; leading axes that belong together become one axis of rows numbered through."""
    if batch_dims == 0:
        return e.take(x, indices, axis)
    if batch_dims < axis:
        return _gather_behind_others(e, x, indices, axis, batch_dims)
    shape, wanted = shape_of(x), shape_of(indices)
    count, rows = math.prod(shape[:axis]), shape[axis]
    flat = e.reshape(x, (count * rows, *shape[axis + 1 :]))
    first = np.arange(count, dtype=np.int32).reshape((*shape[:axis], *(1,) * (len(wanted) - axis))) * rows
    return e.take(flat, e.add(e.cast(indices, "int32"), e.constant(first)), 0)


def _gather_behind_others(e: Emitter, x: SSAValue, indices: SSAValue, axis: int, batch_dims: int) -> SSAValue:
    """Gathers along an axis with others between it and the batch: they go behind it and come back after."""
    rank, count = len(shape_of(x)), len(shape_of(indices)) - batch_dims
    batch, between = list(range(batch_dims)), list(range(batch_dims, axis))
    taken = gather(
        e, e.transpose(x, [*batch, axis, *between, *range(axis + 1, rank)]), indices, batch_dims, batch_dims
    )
    moved = [batch_dims + count + position for position in range(len(between))]
    rest = range(batch_dims + count + len(between), len(shape_of(taken)))
    return e.transpose(taken, [*batch, *moved, *range(batch_dims, batch_dims + count), *rest])


def take_padded(e: Emitter, x: SSAValue, indices: SSAValue) -> SSAValue:
    """Rows of x; an index behind the last row, as padding has, takes the last row."""
    last = e.like(shape_of(x)[0] - 1, indices)
    return e.take(x, e.binary(ops.MinOp, indices, last), 0)


def _one_hot(node: NodeContext) -> SSAValue:
    (depth,) = node.ints(1, "depth")
    indices, on, off = node.x(0), node.x(2), node.x(3)
    axis = node.attr("axis")
    rank = len(shape_of(indices))
    return node.emit.emit(ops.OneHotOp(indices, on, off, depth, rank if axis < 0 else axis))


def _band_part(node: NodeContext) -> SSAValue:
    (lower,), (upper,) = node.ints(1, "num_lower"), node.ints(2, "num_upper")
    return node.emit.emit(ops.MatrixBandPartOp(node.x(0), lower, upper))


@dataclass(frozen=True)
class Rows:
    """What `indices` of shape [..., depth] name in a tensor.

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


def named_rows(e: Emitter, indices: SSAValue, shape: Sequence[int]) -> Rows:
    """What indices of several numbers each name: the leading axes are one axis of rows, numbered through."""
    *batch, depth = shape_of(indices)
    if depth > len(shape):
        raise RefusedError(
            Kind.USAGE, f"indices name {depth} axes each, the tensor of shape {list(shape)} has {len(shape)}"
        )
    leading, rest = shape[:depth], shape[depth:]
    strides = np.asarray([math.prod(leading[axis + 1 :]) for axis in range(depth)], np.int32)
    flat = e.cast(e.reshape(indices, (math.prod(batch), depth)), "int32")
    numbers = e.reduce("ADD", e.mul(flat, e.constant(strides)), [1])
    return Rows(numbers, (math.prod(leading), *rest), tuple(batch))


def gather_nd(e: Emitter, x: SSAValue, indices: SSAValue) -> SSAValue:
    """tf.gather_nd without batch dimensions."""
    rows = named_rows(e, indices, shape_of(x))
    taken = e.take(e.reshape(x, rows.table), rows.numbers, 0)
    return e.reshape(taken, (*rows.batch, *rows.table[1:]))


def _gather_nd(node: NodeContext) -> SSAValue:
    return gather_nd(node.emit, node.x(0), node.x(1))


def _resource_gather_nd(node: NodeContext) -> SSAValue:
    return gather_nd(node.emit, node.read(), node.x(1))


TABLE: Table = {
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "StridedSliceGrad": _strided_slice_grad,
    "Gather": _gather,
    "GatherV2": _gather_v2,
    "OneHot": _one_hot,
    "MatrixBandPart": _band_part,
    "GatherNd": _gather_nd,
    "ResourceGatherNd": _resource_gather_nd,
}
