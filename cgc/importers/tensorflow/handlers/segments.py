"""Sums and means of rows that belong together, by segment ids."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.tensorflow.emit import Emitter, dtype_of
from cgc.importers.tensorflow.faults import Kind, RefusedError
from cgc.importers.tensorflow.handlers.indexing import scatter_rows
from cgc.importers.tensorflow.node import Handler, NodeContext, Table

_POWERS = {"Sum": 0.0, "Mean": 1.0, "SqrtN": 0.5}
"""A segment's sum is divided by its number of rows to this power."""


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


def _known_count(node: NodeContext, position: int) -> int:
    """As many segments as the ids, which rise, name."""
    ids = node.known(position)
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
    "SegmentSum": _segment(_POWERS["Sum"]),
    "SegmentMean": _segment(_POWERS["Mean"]),
    **{f"SparseSegment{name}": _sparse_segment(p, with_count=False) for name, p in _POWERS.items()},
    **{
        f"SparseSegment{name}WithNumSegments": _sparse_segment(p, with_count=True)
        for name, p in _POWERS.items()
    },
    **{f"SparseSegment{name}Grad": _sparse_segment_grad(p) for name, p in _POWERS.items()},
}
