"""Rows of a tensor that are named by number: found, added up, put in the place of others."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.rows import INDEX_DTYPES
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import named_rows, scatter_rows
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import Handler, NodeContext, PaddedRows, Table, Value


def _scatter_nd(node: NodeContext) -> SSAValue:
    """Updates added into zeros."""
    e, shape = node.emit, node.ints(2, "shape")
    rows = named_rows(e, node.x(0), shape)
    return e.reshape(scatter_rows(e, rows.numbers, e.reshape(node.x(1), rows.updates), rows.table), shape)


def _placed(e: Emitter, x: SSAValue, indices: SSAValue, updates: SSAValue, kind: str) -> SSAValue:
    """A tensor with updates put in the place of what is there (SET) or combined with it."""
    shape = shape_of(x)
    rows = named_rows(e, indices, shape)
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


def _unique(node: NodeContext) -> tuple[Value, Value]:
    """The different values, padded to as many as there are values, and the place of each among them."""
    x = node.x(0)
    if dtype_of(x) not in INDEX_DTYPES or len(shape_of(x)) != 1:
        raise RefusedError(
            Kind.USAGE,
            f"it is applied to {dtype_of(x)}{list(shape_of(x))}, expected int32 or int64 of rank 1",
        )
    values, places = node.emit.emit_all(ops.UniqueOp(x, node.out_dtype(1)))
    return PaddedRows(values, values), places


def _unsorted_segment_sum(node: NodeContext) -> SSAValue:
    e, data, ids = node.emit, node.x(0), node.x(1)
    (count,) = node.ints(2, "number of segments")
    return scatter_rows(e, ids, data, (count, *shape_of(data)[len(shape_of(ids)) :]))


TABLE: Table = {
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
    "Unique": _unique,
    "UnsortedSegmentSum": _unsorted_segment_sum,
}
