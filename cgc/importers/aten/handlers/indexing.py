"""Elements by index."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import INTEGERS, shape_of
from cgc.importers.aten.graph import Tensor
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.emit import Emitter, Shape, dtype_of
from cgc.importers.faults import Kind, RefusedError


def _embedding(node: NodeContext) -> SSAValue:
    return node.emit.take(node.x("weight"), node.x("indices"), 0)


def _index_select(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x()
    x = x if shape_of(x) else e.reshape(x, (1,))  # a number is a row of one element
    return e.reshape(e.take(x, node.x("index"), node.axis()), node.shape)


def _gather(node: NodeContext) -> SSAValue:
    """One element of `self` for each element of `index`, along an axis; whole rows where an index repeats."""
    e, x, index, axis = node.emit, node.x(), node.x("index"), node.axis()
    if not shape_of(x):
        return e.reshape(x, node.shape)
    flat, row = flat_rows(e, shape_of(x), index, axis)
    return e.reshape(e.take(e.reshape(x, (-1, *row)), flat, 0), node.shape)


def flat_rows(e: Emitter, shape: Shape, index: SSAValue, axis: int) -> tuple[SSAValue, Shape]:
    """Numbers of the rows that an index along an axis names, and the shape of a row.

    A row is what lies behind the last axis along which the index differs.
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
    """Whether an index was repeated along an axis, as `index.unsqueeze(-1).expand(-1, -1, n)` is."""
    inner = index.owner
    if not isinstance(inner, ops.BroadcastInDimOp):
        return False
    places = inner.broadcast_dimensions
    return axis not in places or shape_of(inner.x)[places.index(axis)] == 1


def _flat_index(e: Emitter, shape: Shape, index: SSAValue, axis: int) -> SSAValue:
    """The place in a contiguous tensor of each element that an index along an axis names."""
    sizes = shape_of(index)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    other = np.zeros(sizes, np.int64)
    for i, size in enumerate(sizes):
        if i != axis:
            along = [1] * len(sizes)
            along[i] = size
            other = other + (np.arange(size) * strides[i]).reshape(along)
    index = e.cast(index, "int32")
    scaled = index if strides[axis] == 1 else e.scaled(index, strides[axis])
    return e.add(scaled, e.compact(other.astype(np.int32)))


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
    # indices of neighbouring axes leave their result where they were, others put it first
    order = order[count : count + first] + order[:count] + order[count + first :]
    return e.transpose(found, order)


def places(node: NodeContext, shape: tuple[int, ...]) -> tuple[SSAValue, list[int], int]:
    """Row numbers over the indexed axes, these axes, and how many axes come before the result of them."""
    e, given = node.emit, node.arg("indices")
    axes = [i for i, index in enumerate(given) if index is not None]
    if any(isinstance(given[i], Tensor) and given[i].dtype == "bool" for i in axes):
        raise RefusedError(
            Kind.SHAPE, "a mask takes as many elements as it holds; use torch.where(mask, x, y) instead"
        )
    values = [e.cast(node.value(given[i]), "int32") for i in axes]
    total: SSAValue | None = None
    for axis, value in zip(axes, values, strict=True):
        size = shape[axis]
        value = e.select(e.compare("LT", value, e.like(0, value)), e.add(value, e.like(size, value)), value)
        total = value if total is None else e.add(e.scaled(total, size), value)
    assert total is not None
    neighbours = axes == list(range(axes[0], axes[-1] + 1))
    return total, axes, axes[0] if neighbours else 0


def _bucketize(values: str, boundaries: str) -> Handler:
    """How many boundaries of a rising row are below each value, or with `right` at most that."""

    def handler(node: NodeContext) -> SSAValue:
        e = node.emit
        x, bounds = node.promoted(values, boundaries)
        right = node.arg("right", False) or node.arg("side") == "right"
        bounds = e.reshape(bounds, (*shape_of(bounds)[:-1], 1, shape_of(bounds)[-1]))
        below = e.compare("GE" if right else "GT", e.reshape(x, (*shape_of(x), 1)), bounds)
        counted = e.reduce("ADD", e.cast(below, "int32"), (len(shape_of(below)) - 1,))
        return e.cast(e.reshape(counted, node.shape), node.dtype)

    return handler


TABLE: Table = {
    "aten.bucketize.Tensor": _bucketize("self", "boundaries"),
    "aten.searchsorted.Tensor": _bucketize("self", "sorted_sequence"),
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
}
