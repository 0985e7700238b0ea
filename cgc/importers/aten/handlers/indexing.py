"""Reading, replacing and accumulating elements by index."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, INTEGERS, shape_of
from cgc.importers.aten.graph import Tensor
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, Shape, dtype_of


def _embedding(node: NodeContext) -> SSAValue:
    return node.emit.take(node.x("weight"), node.x("indices"), 0)


def _index_select(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x()
    x = x if shape_of(x) else e.reshape(x, (1,))  # a number is a row of one element
    return e.reshape(e.take(x, node.x("index"), node.axis()), node.shape)


def _gather(node: NodeContext) -> SSAValue:
    """Return one element of `self` per element of `index`, along an axis; whole rows if an index repeats."""
    e, x, index, axis = node.emit, node.x(), node.x("index"), node.axis()
    if not shape_of(x):
        return e.reshape(x, node.shape)
    flat, row = flat_rows(e, shape_of(x), index, axis)
    return e.reshape(e.take(e.reshape(x, (-1, *row)), flat, 0), node.shape)


def flat_rows(e: Emitter, shape: Shape, index: SSAValue, axis: int) -> tuple[SSAValue, Shape]:
    """Return the row numbers that an index along an axis refers to, and the shape of a row.

    A row consists of the axes after the last one along which the index differs.
    """
    while isinstance(index.owner, ops.CastOp) and dtype_of(index.owner.x) in INTEGERS:
        index = index.owner.x
    end = rank = len(shape)
    while end - 1 > axis and _repeats(index, end - 1) and shape_of(index)[end - 1] == shape[end - 1]:
        end -= 1
    sizes = shape_of(index)
    first = e.slice(index, [0] * rank, [*sizes[:end], *[1] * (rank - end)], [1] * rank)
    flat = _flat_index(e, shape[:end], e.reshape(first, sizes[:end]), axis)
    return e.reshape(flat, (-1,)), shape[end:]


def _repeats(index: SSAValue, axis: int) -> bool:
    """Return whether an index was repeated along an axis, as `index.unsqueeze(-1).expand(-1, -1, n)` is."""
    inner = index.owner
    if not isinstance(inner, ops.BroadcastInDimOp):
        return False
    places = inner.broadcast_dimensions
    return axis not in places or shape_of(inner.x)[places.index(axis)] == 1


def _flat_index(e: Emitter, shape: Shape, index: SSAValue, axis: int) -> SSAValue:
    """Return the place in a contiguous tensor of each element that an index along an axis names."""
    sizes = shape_of(index)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    other = np.zeros(sizes, np.int64)
    for i, size in enumerate(sizes):
        if i != axis:
            along = [1] * len(sizes)
            along[i] = size
            other = other + (np.arange(size) * strides[i]).reshape(along)
    index = e.cast(index, "int32")
    scale = index if strides[axis] == 1 else e.scale(index, strides[axis])
    return e.add(scale, e.compact(other.astype(np.int32)))


def _index(node: NodeContext) -> SSAValue:
    """`self[indices]`, where indices are integers of some of the axes; None takes a whole axis."""
    e, x = node.emit, node.x()
    flat, axes, first = places(node, shape_of(x))
    left = [i for i in range(len(shape_of(x))) if i not in axes]
    moved = e.transpose(x, [*axes, *left])
    kept = tuple(shape_of(x)[i] for i in left)
    rows = e.reshape(moved, (math.prod(shape_of(x)[i] for i in axes), *kept))
    found = e.take(rows, flat, 0)
    count = len(shape_of(flat))
    order = list(range(len(shape_of(found))))
    # indices of neighboring axes leave their result where they were, others put it first
    order = order[count : count + first] + order[:count] + order[count + first :]
    return e.transpose(found, order)


def places(node: NodeContext, shape: tuple[int, ...]) -> tuple[SSAValue, list[int], int]:
    """Return row numbers over the indexed axes, these axes, and the number of axes before their result."""
    e, given = node.emit, node.arg("indices")
    axes = [i for i, index in enumerate(given) if index is not None]
    if any(isinstance(given[i], Tensor) and given[i].dtype == "bool" for i in axes):
        raise RefusedError(
            Kind.SHAPE,
            "the number of elements that a mask selects depends on the data; use torch.where(mask, x, y)",
        )
    values = [e.cast(node.value(given[i]), "int32") for i in axes]
    total: SSAValue | None = None
    for axis, value in zip(axes, values, strict=True):
        size = shape[axis]
        value = e.select(e.compare("LT", value, e.like(0, value)), e.add(value, e.like(size, value)), value)
        total = value if total is None else e.add(e.scale(total, size), value)
    assert total is not None
    neighbors = axes == list(range(axes[0], axes[-1] + 1))
    return total, axes, axes[0] if neighbors else 0


def _bucketize(values: str, boundaries: str) -> Handler:
    """Return the number of rising boundaries of a row below each value (`right`: at most the value)."""

    def handler(node: NodeContext) -> SSAValue:
        e = node.emit
        x, bounds = node.promote(values, boundaries)
        right = node.arg("right", False) or node.arg("side") == "right"
        bounds = e.reshape(bounds, (*shape_of(bounds)[:-1], 1, shape_of(bounds)[-1]))
        below = e.compare("GE" if right else "GT", e.reshape(x, (*shape_of(x), 1)), bounds)
        counted = e.reduce("ADD", e.cast(below, "int32"), (len(shape_of(below)) - 1,))
        return e.cast(e.reshape(counted, node.shape), node.dtype)

    return handler


def _embedding_backward(node: NodeContext) -> SSAValue:
    """Return the gradients of each row summed; the padding row gets none."""
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
    """Return elements put at, or combined with, the places that an index along an axis names."""

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
        return e.reshape(_combine(node, table, flat, rows, kind or _kind(node)), node.shape)

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


def _combine(node: NodeContext, table: SSAValue, indices: SSAValue, rows: SSAValue, kind: str) -> SSAValue:
    """Return rows of a table with other rows put in their place or combined with them.

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
    """Return the result of a reduction of no elements."""
    if kind in ("MAX", "MIN"):
        sign = -1 if kind == "MAX" else 1
        if dtype in FLOATS:
            return sign * math.inf
        # 64 bits are computed as 32
        limits = np.iinfo("int32" if dtype == "int64" else dtype)
        return int(limits.min if sign < 0 else limits.max)
    return 1 if kind == "MUL" else 0


def _index_reduce(node: NodeContext) -> SSAValue:
    """Return slices along an axis combined with those of `source`, by their numbers."""
    e, x, axis = node.emit, node.x(), node.axis()
    order = [axis, *(i for i in range(len(shape_of(x))) if i != axis)]
    table, rows = e.transpose(x, order), e.transpose(node.cast("source"), order)
    found = _combine(node, table, e.reshape(node.x("index"), (-1,)), rows, _kind(node))
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
    """Put one value at the elements that a mask selects."""
    e, x = node.emit, node.x()
    mask, values = node.value(node.arg("indices")[0]), node.cast("values")
    if math.prod(shape_of(values)) != 1:
        raise RefusedError(
            Kind.SHAPE,
            "the number of elements that a mask selects depends on the data; use "
            "torch.where(mask, values, x)",
        )
    missing = len(shape_of(x)) - len(shape_of(mask))
    mask = e.reshape(mask, (*shape_of(mask), *(1,) * missing))
    value = e.reshape(values, ())
    return e.select(mask, e.add(x, value) if node.arg("accumulate") else value, x)


TABLE: Table = {
    "aten.bucketize.Tensor": _bucketize("self", "boundaries"),
    "aten.searchsorted.Tensor": _bucketize("self", "sorted_sequence"),
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
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
