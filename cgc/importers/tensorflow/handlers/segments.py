"""Rows that belong together, by segment ids: sums, means, products, largest and smallest elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import scatter_rows
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import Handler, NodeContext, Table

_POWERS = {"Sum": 0.0, "Mean": 1.0, "SqrtN": 0.5}
"""A segment's sum is divided by its number of rows to this power."""


_EXTREMES = {"Max": "MAX", "Min": "MIN", "Prod": "MUL"}
"""What follows "Segment" in the name -> the kind of `cirh.Scatter`."""


def _segment(power: float) -> Handler:
    """SegmentSum and SegmentMean of (data, ids)."""

    def handler(node: NodeContext) -> SSAValue:
        return _combine(node.emit, node.x(0), node.x(1), _known_count(node, 1), power)

    return handler


def _sparse_segment(power: float, *, with_count: bool) -> Handler:
    """Of (data, indices, ids): the rows of data are taken at the indices first."""

    def handler(node: NodeContext) -> SSAValue:
        e = node.emit
        count = node.ints(3, "number of segments")[0] if with_count else _known_count(node, 2)
        return _combine(e, e.take(node.x(0), node.x(1), 0), node.x(2), count, power)

    return handler


def _sparse_segment_grad(power: float) -> Handler:
    """Of (grad, indices, ids, number of rows): each segment's gradient back to the rows it was made of."""

    def handler(node: NodeContext) -> SSAValue:
        e, grad, ids = node.emit, node.x(0), node.x(2)
        (rows,) = node.ints(3, "number of rows")
        if power:
            grad = e.div(grad, _divisor(e, ids, shape_of(grad)[0], grad, power))
        return scatter_rows(e, node.x(1), e.take(grad, ids, 0), (rows, *shape_of(grad)[1:]))

    return handler


def _unsorted(kind: str) -> Handler:
    """Of (data, ids, number of segments); rows of negative ids are dropped."""

    def handler(node: NodeContext) -> SSAValue:
        (count,) = node.ints(2, "number of segments")
        return _extreme(node, kind, count)

    return handler


def _sorted(kind: str) -> Handler:
    """Of (data, ids), where the ids rise; a segment that no row has is 0, of a product 1."""

    def handler(node: NodeContext) -> SSAValue:
        e, count = node.emit, _known_count(node, 1)
        result = _extreme(node, kind, count)
        is_empty = np.isin(np.arange(count), node.static(1, "segment ids"), invert=True)
        if kind == "MUL" or not is_empty.any():
            return result
        column = is_empty.reshape(-1, *(1,) * (len(shape_of(result)) - 1))
        return e.select(e.constant(column), e.scalar(0, dtype_of(result)), result)

    return handler


def _extreme(node: NodeContext, kind: str, count: int) -> SSAValue:
    """Rows of each segment combined; a segment without a row has the value that `kind` starts from."""
    e, data, ids = node.emit, node.x(0), node.x(1)
    names, row = math.prod(shape_of(ids)), shape_of(data)[len(shape_of(ids)) :]
    start = e.full(_start(kind, dtype_of(data)), (count, *row), dtype_of(data))
    updates = e.reshape(data, (names, *row))
    return e.emit(ops.ScatterOp(start, e.reshape(ids, (names,)), updates, kind))


def _start(kind: str, dtype: str) -> float:
    """What changes nothing: 1 of a product, the lowest finite number for the largest element."""
    if kind == "MUL":
        return 1
    limits: Any = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    return float(limits.min if kind == "MAX" else limits.max)


def _known_count(node: NodeContext, position: int) -> int:
    """As many segments as the ids, which rise, name."""
    ids = node.constant(position)
    if ids is None:
        raise RefusedError(
            Kind.SHAPE,
            "the number of its segments depends on the data; use tf.math.unsorted_segment_sum or "
            "num_segments with a fixed number",
        )
    return int(ids.max()) + 1 if ids.size else 0


def _combine(e: Emitter, rows: SSAValue, ids: SSAValue, count: int, power: float) -> SSAValue:
    total = scatter_rows(e, ids, rows, (count, *shape_of(rows)[1:]))
    return e.div(total, _divisor(e, ids, count, rows, power)) if power else total


def _divisor(e: Emitter, ids: SSAValue, count: int, rows: SSAValue, power: float) -> SSAValue:
    """The number of rows of each segment, at least 1, to a power; it broadcasts over a row."""
    ones = e.full(1, shape_of(ids), dtype_of(rows))
    sizes = scatter_rows(e, ids, ones, (count,))
    sizes = e.binary(ops.MaxOp, sizes, e.scalar(1, dtype_of(rows)))
    if power == 0.5:
        sizes = e.unary(ops.SqrtOp, sizes)
    return e.reshape(sizes, (count, *(1,) * (len(shape_of(rows)) - 1)))


TABLE: Table = {
    **{f"Segment{name}": _sorted(kind) for name, kind in _EXTREMES.items()},
    **{f"UnsortedSegment{name}": _unsorted(kind) for name, kind in _EXTREMES.items()},
    "SegmentSum": _segment(_POWERS["Sum"]),
    "SegmentMean": _segment(_POWERS["Mean"]),
    **{f"SparseSegment{name}": _sparse_segment(p, with_count=False) for name, p in _POWERS.items()},
    **{
        f"SparseSegment{name}WithNumSegments": _sparse_segment(p, with_count=True)
        for name, p in _POWERS.items()
    },
    **{f"SparseSegment{name}Grad": _sparse_segment_grad(p) for name, p in _POWERS.items()},
}
