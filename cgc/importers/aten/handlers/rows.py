"""Elements put, or added, where indices say."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.graph import Tensor
from cgc.importers.aten.handlers.indexing import flat_rows, places
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.faults import Kind, RefusedError


def _embedding_backward(node: NodeContext) -> SSAValue:
    """The gradients of each row summed; the padding row gets none."""
    if node.arg("scale_grad_by_freq"):
        raise RefusedError(Kind.USAGE, "scale_grad_by_freq is True, expected False")
    e, grad, indices = node.emit, node.x("grad_output"), node.x("indices")
    padding = node.arg("padding_idx", -1)
    count = math.prod(shape_of(indices))
    indices = e.reshape(indices, (count,))
    if padding >= 0:
        ignored = e.compare("EQ", indices, e.like(padding, indices))
        indices = e.select(ignored, e.like(-1, indices), indices)
    rows = e.reshape(grad, (count, *node.shape[1:]))
    return e.emit(ops.ScatterNdOp(indices, rows, node.shape))


def _scatter(kind: str | None = None) -> Handler:
    """Elements put at, or added to, the places that an index along an axis names."""

    def handler(node: NodeContext) -> SSAValue:
        e, x, index, axis = node.emit, node.x(), node.x("index"), node.axis()
        shape, sizes = shape_of(x), shape_of(index)
        if "src" in node.node.arguments:
            source = e.slice(node.cast("src"), [0] * len(sizes), sizes, [1] * len(sizes))
        else:
            source = e.broadcast(node.cast("value"), sizes)
        how = kind or _kind(node)
        flat, row = flat_rows(e, shape, index, axis)
        table, rows = e.reshape(x, (-1, *row)), e.reshape(source, (-1, *row))
        return e.reshape(e.emit(ops.ScatterOp(table, flat, rows, how)), shape)

    return handler


def _kind(node: NodeContext) -> str:
    wanted, include = node.arg("reduce"), node.arg("include_self", True)
    if wanted not in _KINDS or not include:
        raise RefusedError(
            Kind.USAGE,
            f"reduce is {wanted!r} with include_self={include}, expected {', '.join(_KINDS)} with True",
        )
    return _KINDS[wanted]


_KINDS = {"add": "ADD", "multiply": "MUL", "sum": "ADD", "prod": "MUL", "amax": "MAX", "amin": "MIN"}


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
    "aten.scatter_add.default": _scatter("ADD"),
    "aten.index_put.default": _index_put,
    "aten._unsafe_index_put.default": _index_put,
}
