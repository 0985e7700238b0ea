"""Rows of tensors, named by numbers: taken, and added up."""

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


def gather(e: Emitter, x: SSAValue, indices: SSAValue, axis: int, batch_dims: int) -> SSAValue:
    """Rows of x along an axis by number, for each element of the first `batch_dims` axes its own numbers.

    Leading axes that belong together become one axis of rows numbered through.
    """
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
    """What indices of several numbers each name in x."""
    rows = named_rows(e, indices, shape_of(x))
    taken = e.take(e.reshape(x, rows.table), rows.numbers, 0)
    return e.reshape(taken, (*rows.batch, *rows.table[1:]))


def scatter_rows(e: Emitter, indices: SSAValue, updates: SSAValue, shape: Sequence[int]) -> SSAValue:
    """Rows added into zeros at `indices`, which may have any rank."""
    count = math.prod(shape_of(indices))
    flat = e.reshape(indices, (count,))
    return e.emit(ops.ScatterNdOp(flat, e.reshape(updates, (count, *shape[1:])), tuple(shape)))
