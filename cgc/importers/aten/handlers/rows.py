"""Elements put, or added, where indices say."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, shape_of
from cgc.importers.aten.graph import Tensor
from cgc.importers.aten.handlers.indexing import flat_rows, places
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.faults import Kind, RefusedError


def _embedding_backward(node: NodeContext) -> SSAValue:
    """The gradients of each row summed; the padding row gets none."""
    e, grad, indices = node.emit, node.x("grad_output"), node.x("indices")
    padding = node.arg("padding_idx", -1)
    count = math.prod(shape_of(indices))
    indices = e.reshape(indices, (count,))
    if padding >= 0:
        ignored = e.compare("EQ", indices, e.like(padding, indices))
        indices = e.select(ignored, e.like(-1, indices), indices)
    rows = e.reshape(grad, (count, *node.shape[1:]))
    if node.arg("scale_grad_by_freq"):
        ones = e.full(1, (count,), node.dtype)
        found = e.take(e.emit(ops.ScatterNdOp(indices, ones, node.shape[:1])), indices, 0)
        rows = e.div(rows, e.reshape(found, (count, *[1] * (len(node.shape) - 1))))
    return e.emit(ops.ScatterNdOp(indices, rows, node.shape))


def _scatter(kind: str | None = None) -> Handler:
    """Elements put at, or combined with, the places that an index along an axis names."""

    def handler(node: NodeContext) -> SSAValue:
        e, x, index, axis = node.emit, node.x(), node.x("index"), node.axis()
        shape, sizes = shape_of(x), shape_of(index)
        if not shape:  # numbers are rows of one element
            x, index, shape, sizes = e.reshape(x, (1,)), e.reshape(index, (1,)), (1,), (1,)
        if "src" in node.node.arguments:
            source = e.reshape(node.cast("src"), shape_of(node.x("src")) or (1,))
            source = e.slice(source, [0] * len(sizes), sizes, [1] * len(sizes))
        else:
            source = e.broadcast(node.cast("value"), sizes)
        flat, row = flat_rows(e, shape, index, axis)
        table, rows = e.reshape(x, (-1, *row)), e.reshape(source, (-1, *row))
        return e.reshape(_combined(node, table, flat, rows, kind or _kind(node)), node.shape)

    return handler


def _kind(node: NodeContext) -> str:
    wanted = node.arg("reduce")
    if wanted not in _KINDS:
        raise RefusedError(Kind.USAGE, f"reduce is {wanted!r}, expected {', '.join(_KINDS)}")
    return _KINDS[wanted]


_KINDS = {
    "add": "ADD",
    "multiply": "MUL",
    "sum": "ADD",
    "prod": "MUL",
    "amax": "MAX",
    "amin": "MIN",
    "mean": "MEAN",
}


def _combined(node: NodeContext, table: SSAValue, indices: SSAValue, rows: SSAValue, kind: str) -> SSAValue:
    """Rows of a table with other rows put in their place or combined with them.

    Without `include_self` the rows of the table that are named do not count.
    """
    e, dtype = node.emit, node.dtype
    include = node.arg("include_self", True)
    if not include:
        neutral = e.like(_neutral(kind, dtype), rows)
        table = e.emit(ops.ScatterOp(table, indices, neutral, "SET"))
    if kind != "MEAN":
        return e.emit(ops.ScatterOp(table, indices, rows, kind))
    total = e.emit(ops.ScatterOp(table, indices, rows, "ADD"))
    counts = e.emit(ops.ScatterOp(e.like(int(include), table), indices, e.like(1, rows), "ADD"))
    counts = e.binary(ops.MaxOp, counts, e.like(1, counts))
    return e.div(total, counts) if dtype in FLOATS else e.binary(ops.FloorDivOp, total, counts)


def _neutral(kind: str, dtype: str) -> float:
    """What a reduction of no elements gives."""
    if kind in ("MAX", "MIN"):
        sign = -1 if kind == "MAX" else 1
        if dtype in FLOATS:
            return sign * math.inf
        # 64 bits are computed as 32
        limits = np.iinfo("int32" if dtype == "int64" else dtype)
        return int(limits.min if sign < 0 else limits.max)
    return 1 if kind == "MUL" else 0


def _index_reduce(node: NodeContext) -> SSAValue:
    """Slices along an axis combined with those of `source`, by their numbers."""
    e, x, axis = node.emit, node.x(), node.axis()
    order = [axis, *(i for i in range(len(shape_of(x))) if i != axis)]
    table, rows = e.transpose(x, order), e.transpose(node.cast("source"), order)
    found = _combined(node, table, e.reshape(node.x("index"), (-1,)), rows, _kind(node))
    return e.transpose(found, np.argsort(order).tolist())


def _index_put(node: NodeContext) -> SSAValue:
    """`self[indices] = values`, or `+=` with `accumulate`."""
    e, x, given = node.emit, node.x(), node.arg("indices")
    shape = shape_of(x)
    if len(given) == 1 and isinstance(given[0], Tensor) and given[0].dtype == "bool":
        return _masked_put(node)
    flat, axes, first = places(node, shape)
    left = [i for i in range(len(shape)) if i not in axes]
    order = [*axes, *left]
    kept = tuple(shape[i] for i in left)
    rows = e.reshape(e.transpose(x, order), (math.prod(shape[i] for i in axes), *kept))
    sizes = shape_of(flat)
    wanted = (*kept[:first], *sizes, *kept[first:])
    values = e.broadcast(node.cast("values"), wanted)
    count = len(sizes)
    front = [*range(first, first + count), *range(first), *range(first + count, len(wanted))]
    values = e.reshape(e.transpose(values, front), (math.prod(sizes), *kept))
    how = "ADD" if node.arg("accumulate") else "SET"
    found = e.emit(ops.ScatterOp(rows, e.reshape(flat, (-1,)), values, how))
    back = e.reshape(found, (*(shape[i] for i in axes), *kept))
    return e.transpose(back, np.argsort(order).tolist())


def _masked_put(node: NodeContext) -> SSAValue:
    """One value wherever a mask holds."""
    e, x = node.emit, node.x()
    mask, values = node.value(node.arg("indices")[0]), node.cast("values")
    if math.prod(shape_of(values)) != 1:
        raise RefusedError(
            Kind.SHAPE, "a mask takes as many values as it holds; use torch.where(mask, values, x) instead"
        )
    behind = len(shape_of(x)) - len(shape_of(mask))
    mask = e.reshape(mask, (*shape_of(mask), *(1,) * behind))
    value = e.reshape(values, ())
    return e.select(mask, e.add(x, value) if node.arg("accumulate") else value, x)


TABLE: Table = {
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten.scatter.src": _scatter("SET"),
    "aten.scatter.value": _scatter("SET"),
    "aten.scatter.reduce": _scatter(),
    "aten.scatter.value_reduce": _scatter(),
    "aten.scatter_reduce.two": _scatter(),
    "aten.index_reduce.default": _index_reduce,
    "aten.scatter_add.default": _scatter("ADD"),
    "aten.index_put.default": _index_put,
    "aten._unsafe_index_put.default": _index_put,
}
