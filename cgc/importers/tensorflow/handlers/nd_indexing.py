"""Elements and slices that are named by several numbers each, one for every leading axis.

The leading axes are taken as one axis of rows, numbered through, so that one number names a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.tensorflow.emit import Emitter, Shape
from cgc.importers.tensorflow.faults import Kind, RefusedError
from cgc.importers.tensorflow.handlers.indexing import scatter_rows
from cgc.importers.tensorflow.node import Handler, NodeContext, Table


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


def _rows(e: Emitter, indices: SSAValue, shape: Sequence[int]) -> Rows:
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
    rows = _rows(e, indices, shape_of(x))
    taken = e.take(e.reshape(x, rows.table), rows.numbers, 0)
    return e.reshape(taken, (*rows.batch, *rows.table[1:]))


def _gather_nd(node: NodeContext) -> SSAValue:
    return gather_nd(node.emit, node.x(0), node.x(1))


def _resource_gather_nd(node: NodeContext) -> SSAValue:
    return gather_nd(node.emit, node.read(), node.x(1))


def _scatter_nd(node: NodeContext) -> SSAValue:
    """Updates added into zeros."""
    e, shape = node.emit, node.ints(2, "shape")
    rows = _rows(e, node.x(0), shape)
    return e.reshape(scatter_rows(e, rows.numbers, e.reshape(node.x(1), rows.updates), rows.table), shape)


def _placed(e: Emitter, x: SSAValue, indices: SSAValue, updates: SSAValue, kind: str) -> SSAValue:
    """A tensor with updates put in the place of what is there (SET) or combined with it."""
    shape = shape_of(x)
    rows = _rows(e, indices, shape)
    wide = e.broadcast(updates, (*rows.batch, *rows.table[1:]))
    table, updates = e.reshape(x, rows.table), e.reshape(wide, rows.updates)
    return e.reshape(e.emit(ops.ScatterOp(table, rows.numbers, updates, kind)), shape)


def _tensor_scatter(kind: str, *, negate: bool = False) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e, (x, indices, updates) = node.emit, node.all()
        return _placed(e, x, indices, e.unary(ops.NegOp, updates) if negate else updates, kind)

    return handler


def _resource_scatter(kind: str, *, negate: bool = False) -> Handler:
    def handler(node: NodeContext) -> None:
        e, updates = node.emit, node.x(2)
        updates = e.unary(ops.NegOp, updates) if negate else updates
        node.write(0, _placed(e, node.read(), node.x(1), updates, kind))

    return handler


TABLE: Table = {
    "GatherNd": _gather_nd,
    "ResourceGatherNd": _resource_gather_nd,
    "ScatterNd": _scatter_nd,
    "TensorScatterUpdate": _tensor_scatter("SET"),
    "TensorScatterAdd": _tensor_scatter("ADD"),
    "TensorScatterSub": _tensor_scatter("ADD", negate=True),
    "TensorScatterMax": _tensor_scatter("MAX"),
    "TensorScatterMin": _tensor_scatter("MIN"),
    "ResourceScatterNdMax": _resource_scatter("MAX"),
    "ResourceScatterNdMin": _resource_scatter("MIN"),
    "ResourceScatterNdUpdate": _resource_scatter("SET"),
    "ResourceScatterNdAdd": _resource_scatter("ADD"),
    "ResourceScatterNdSub": _resource_scatter("ADD", negate=True),
}
