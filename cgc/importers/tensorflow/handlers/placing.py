"""Elements put into other places: merged by number, reversed up to a length, assigned to slices."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import gather
from cgc.importers.composed.slices import spread_slices
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.faults import CHOOSE
from cgc.importers.tensorflow.handlers.indexing import resolve_slices
from cgc.importers.tensorflow.node import NodeContext, Table


def _dynamic_stitch(node: NodeContext) -> SSAValue:
    """Rows of several tensors in one, each at the place that its index names; of two at a place the last."""
    e, count = node.emit, len(node.inputs) // 2
    rows: list[SSAValue] = []
    places: list[int] = []
    for position in range(count):
        indices = node.static(position, "indices")
        data = node.x(count + position)
        rest = shape_of(data)[indices.ndim :]
        rows.append(e.reshape(data, (indices.size, *rest)))
        places += indices.reshape(-1).tolist()
    source = np.zeros(max(places) + 1, np.int32)
    source[places] = np.arange(len(places))
    joined = rows[0] if count == 1 else e.emit(ops.ConcatOp(rows, 0))
    return e.take(joined, e.constant(source), 0)


def _dynamic_partition(node: NodeContext) -> list[SSAValue]:
    """The rows of each number, in their order."""
    e, x, count = node.emit, node.x(0), int(node.attr("num_partitions"))
    numbers = node.constant(1)
    if numbers is None:
        raise RefusedError(
            Kind.SHAPE,
            "how many rows each of its parts has depends on the data",
            CHOOSE,
        )
    rows = e.reshape(x, (numbers.size, *shape_of(x)[numbers.ndim :]))
    places = [np.flatnonzero(numbers.reshape(-1) == part).astype(np.int32) for part in range(count)]
    return [e.take(rows, e.constant(place), 0) for place in places]


def _reverse_sequence(node: NodeContext) -> SSAValue:
    """The first `length` elements of every sequence in reverse order, the others as they are."""
    e, x, lengths = node.emit, node.x(0), node.x(1)
    batch, sequence = node.attr("batch_dim"), node.attr("seq_dim")
    rest = [axis for axis in range(len(shape_of(x))) if axis not in (batch, sequence)]
    order = [batch, sequence, *rest]
    steps = e.constant(np.arange(shape_of(x)[sequence], dtype=np.int32))
    length = e.reshape(e.cast(lengths, "int32"), (-1, 1))
    mirrored = e.sub(e.sub(length, e.scalar(1, "int32")), steps)
    places = e.select(e.compare("LT", steps, length), mirrored, steps)
    reversed_ = gather(e, e.transpose(x, order), places, axis=1, batch_dims=1)
    return e.transpose(reversed_, [order.index(axis) for axis in range(len(order))])


def _assigned(node: NodeContext, x: SSAValue, value: SSAValue) -> SSAValue:
    """A tensor with a value in the place of a slice of it; the inputs from 1 on say which."""
    e, shape = node.emit, shape_of(x)
    found = resolve_slices(node, shape, 1)
    whole = e.broadcast(value, found.shape)
    inside = np.zeros(shape, np.bool_)
    if math.prod(found.kept_shape):
        inside[np.ix_(*(axis.indices for axis in found.axes))] = True
    return e.select(e.constant(inside), spread_slices(e, whole, found, shape), x)


def _assign_slice(node: NodeContext) -> None:
    node.write(0, _assigned(node, node.read(), node.x(4)))


def _update_slice(node: NodeContext) -> SSAValue:
    return _assigned(node, node.x(0), node.x(4))


TABLE: Table = {
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), _dynamic_stitch),
    "DynamicPartition": _dynamic_partition,
    "ReverseSequence": _reverse_sequence,
    "ResourceStridedSliceAssign": _assign_slice,
    "TensorStridedSliceUpdate": _update_slice,
}
