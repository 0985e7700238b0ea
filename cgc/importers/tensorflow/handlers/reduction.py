"""Reductions, scans, sorting, counting, and reductions by segment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, shape_of
from cgc.importers.decompositions.indexing import gather, scatter_rows
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, Maker, dtype_of
from cgc.importers.tensorflow.node import Handler, NodeContext, Table

_KINDS = {"Sum": "ADD", "Mean": "MEAN", "Prod": "MUL", "Max": "MAX", "Min": "MIN", "All": "AND", "Any": "OR"}


def _axes(node: NodeContext, rank: int) -> list[int]:
    return sorted({axis % rank for axis in node.ints(1, "axis")}) if rank else []


def _reduction(kind: str) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.x(0)
        if kind == "MEAN" and dtype_of(x) not in FLOATS:
            raise RefusedError(Kind.USAGE, "Mean of integers drops the fraction; cast to float32 first")
        return node.emit.reduce(kind, x, _axes(node, len(shape_of(x))), node.attr("keep_dims"))

    return handler


def _l2_loss(node: NodeContext) -> SSAValue:
    """sum(x**2) / 2."""
    e, x = node.emit, node.x(0)
    return e.scale(e.reduce("ADD", e.mul(x, x), range(len(shape_of(x)))), 0.5)


def _euclidean_norm(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x(0)
    total = e.reduce("ADD", e.mul(x, x), _axes(node, len(shape_of(x))), node.attr("keep_dims"))
    return e.unary(ops.SqrtOp, total)


def _arg_max(node: NodeContext) -> SSAValue:
    return _position(node, node.x(0))


def _arg_min(node: NodeContext) -> SSAValue:
    return _position(node, node.emit.unary(ops.NegOp, node.x(0)))


def _position(node: NodeContext, x: SSAValue) -> SSAValue:
    axis = node.axis(1, "axis", len(shape_of(x)))
    return node.emit.emit(ops.ArgMaxOp(x, axis, node.out_dtype()))


def _scan(op_type: Maker) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.x(0)
        axis = node.axis(1, "axis", len(shape_of(x)))
        return node.emit.emit(op_type(x, axis, node.attr("exclusive"), node.attr("reverse")))

    return handler


def _top_k(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """Return the k largest, in order whatever the attribute `sorted` says: without it any order is right."""
    (k,) = node.ints(1, "k")
    values, indices = node.emit.emit_all(ops.TopKOp(node.x(0), k))
    return values, node.emit.cast(indices, node.out_dtype(1))


def _in_top_k(node: NodeContext) -> SSAValue:
    """Import InTopKV2: k is the third input."""
    (k,) = node.ints(2, "k")
    return _is_among(node, k)


def _in_top_k_v1(node: NodeContext) -> SSAValue:
    return _is_among(node, node.attr("k"))


def _is_among(node: NodeContext, k: int) -> SSAValue:
    """Return whether fewer than k predictions are larger than that of the target: ties are all in.

    As in TensorFlow false for a row whose target is out of range or has a prediction that is not finite.
    """
    e, predictions, targets = node.emit, node.x(0), node.x(1)
    count, classes = shape_of(predictions)
    indices = e.cast(targets, "int32")
    last = e.scalar(classes - 1, "int32")
    inside = e.binary(ops.MinOp, e.binary(ops.MaxOp, indices, e.scalar(0, "int32")), last)
    wanted = e.reshape(gather(e, predictions, e.reshape(inside, (count, 1)), 1, 1), (count, 1))
    larger = e.reduce("ADD", e.cast(e.compare("GT", predictions, wanted), "int32"), (1,))
    few = e.compare("LT", larger, e.scalar(k, "int32"))
    finite = e.reduce("AND", e.unary(ops.IsFiniteOp, predictions), (1,))
    in_range = e.compare("EQ", indices, inside)
    return e.binary(ops.AndOp, few, e.binary(ops.AndOp, finite, in_range))


def _nth_element(node: NodeContext) -> SSAValue:
    """Return the n-th smallest, or largest, along the last axis."""
    (n,) = node.ints(1, "n")
    return node.emit.emit(ops.NthOrderStatisticOp(node.x(0), n, node.attr("reverse")))


def _bincount(node: NodeContext) -> SSAValue:
    """Import Bincount. Inputs: numbers, number of bins, weights (empty: 1 each)."""
    return _counts(node, node.x(0), node.x(2), is_binary=False)


def _dense_bincount(node: NodeContext) -> SSAValue:
    """Import DenseBincount: as Bincount, of one row of numbers or of each row of a matrix."""
    return _counts(node, node.x(0), node.x(2), is_binary=bool(node.attr("binary_output")))


def _counts(node: NodeContext, numbers: SSAValue, weights: SSAValue, *, is_binary: bool) -> SSAValue:
    """Count numbers below `size`; with `is_binary`, 1 for each number that occurs."""
    e, dtype, size = node.emit, node.out_dtype(), _size(node)
    shape = shape_of(numbers)
    ones = e.full(1, shape, dtype)
    amounts = ones if is_binary or shape_of(weights) != shape else weights
    places = e.cast(numbers, "int32")
    rows = shape[0] if len(shape) == 2 else 1
    if len(shape) == 2:
        first = e.constant(np.arange(rows, dtype=np.int32)[:, None] * size)
        inside = e.compare("LT", places, e.scalar(size, "int32"))
        places = e.select(inside, e.add(places, first), e.scalar(rows * size, "int32"))
    total = scatter_rows(e, places, amounts, (rows * size,))
    if is_binary:
        total = e.binary(ops.MinOp, total, e.scalar(1, dtype))
    return e.reshape(total, (*shape[:-1], size) if len(shape) == 2 else (size,))


def _size(node: NodeContext) -> int:
    """Return the number of bins: known, or fixed by equal minlength and maxlength."""
    known = node.known(1)
    if known is not None:
        return int(known.reshape(()))
    low, high = _bounds(node.op.inputs[1])
    if high is not None and low is not None and low >= high:
        return high
    raise RefusedError(
        Kind.SHAPE,
        "the number of its bins depends on the data; give tf.math.bincount minlength and maxlength of one "
        "value",
    )


def _bounds(tensor: Any) -> tuple[int | None, int | None]:
    """Return the least and the largest value of a number, as far as Maximum and Minimum of constants tell."""
    import tensorflow as tf

    value = tf.get_static_value(tensor)
    if value is not None:
        return int(value), int(value)
    op = tensor.op
    if op.type in ("Identity", "Cast"):
        return _bounds(op.inputs[0])
    if op.type not in ("Maximum", "Minimum"):
        return None, None
    lows, highs = zip(*(_bounds(side) for side in op.inputs), strict=True)
    take = max if op.type == "Maximum" else min
    one_suffices = lows if op.type == "Maximum" else highs
    found = [bound for bound in one_suffices if bound is not None]
    certain = take(found) if found else None
    others = highs if op.type == "Maximum" else lows
    complete = [bound for bound in others if bound is not None]
    other = take(complete) if len(complete) == len(others) else None
    return (certain, other) if op.type == "Maximum" else (other, certain)


def _bucketize(node: NodeContext) -> SSAValue:
    """Return the number of boundaries, which rise, that each element has reached."""
    e, x = node.emit, node.x(0)
    bounds = np.asarray(node.attr("boundaries"), np.float32)
    if dtype_of(x) != "float32":
        x = e.cast(x, "float32")
    return _count_reached(e, x, e.constant(bounds), "GE", node.out_dtype())


def _count_reached(e: Emitter, x: SSAValue, bounds: SSAValue, direction: str, dtype: str) -> SSAValue:
    """Return for each element the number of bounds, along their last axis, for which the comparison holds."""
    column = e.reshape(x, (*shape_of(x), 1))
    return e.reduce("ADD", e.cast(e.compare(direction, column, bounds), dtype), (len(shape_of(x)),))


def _search(direction: str) -> Any:
    """Import LowerBound and UpperBound of (rising rows, values for each row)."""

    def handler(node: NodeContext) -> SSAValue:
        e, ordered, values = node.emit, node.x(0), node.x(1)
        rows, length = shape_of(ordered)
        return _count_reached(e, values, e.reshape(ordered, (rows, 1, length)), direction, node.out_dtype())

    return handler


def _histogram(node: NodeContext) -> SSAValue:
    """Import HistogramFixedWidth of (values, [low, high], bins); the outermost bins take all beyond."""
    e, x = node.emit, node.x(0)
    low, high = (float(v) for v in node.static(1, "range"))
    (bins,) = node.ints(2, "number of bins")
    place = e.scale(e.sub(x, e.scalar(low, dtype_of(x))), bins / (high - low))
    place = e.unary(ops.FloorOp, place)
    last = e.scalar(bins - 1, dtype_of(x))
    inside = e.binary(ops.MinOp, e.binary(ops.MaxOp, place, e.scalar(0, dtype_of(x))), last)
    numbers = e.reshape(e.cast(inside, "int32"), (-1,))
    return scatter_rows(e, numbers, e.full(1, shape_of(numbers), node.out_dtype()), (bins,))


# A segment's sum is divided by its number of rows to this power.
_POWERS = {"Sum": 0.0, "Mean": 1.0, "SqrtN": 0.5}


# What follows "Segment" in the name -> the kind of `cirh.Scatter`.
_EXTREMES = {"Max": "MAX", "Min": "MIN", "Prod": "MUL"}


def _segment(power: float) -> Handler:
    """Import SegmentSum and SegmentMean of (data, ids)."""

    def handler(node: NodeContext) -> SSAValue:
        return _combine(node.emit, node.x(0), node.x(1), _segment_count(node, 1), power)

    return handler


def _sparse_segment(power: float, *, with_count: bool) -> Handler:
    """Inputs: data, indices, ids; reduces the rows of data at the indices."""

    def handler(node: NodeContext) -> SSAValue:
        e = node.emit
        count = node.ints(3, "number of segments")[0] if with_count else _segment_count(node, 2)
        return _combine(e, e.take(node.x(0), node.x(1), 0), node.x(2), count, power)

    return handler


def _sparse_segment_grad(power: float) -> Handler:
    """Inputs: grad, indices, ids, number of rows; spreads the gradient of each segment over its rows."""

    def handler(node: NodeContext) -> SSAValue:
        e, grad, ids = node.emit, node.x(0), node.x(2)
        (rows,) = node.ints(3, "number of rows")
        if power:
            grad = e.div(grad, _divisor(e, ids, shape_of(grad)[0], grad, power))
        return scatter_rows(e, node.x(1), e.take(grad, ids, 0), (rows, *shape_of(grad)[1:]))

    return handler


def _reduce_unsorted(kind: str) -> Handler:
    """Inputs: data, ids, number of segments; rows of negative ids are dropped."""

    def handler(node: NodeContext) -> SSAValue:
        (count,) = node.ints(2, "number of segments")
        return _extreme(node, kind, count)

    return handler


def _reduce_sorted(kind: str) -> Handler:
    """Inputs: data, ids, which rise; a segment without rows is 0, or 1 for a product."""

    def handler(node: NodeContext) -> SSAValue:
        e, count = node.emit, _segment_count(node, 1)
        result = _extreme(node, kind, count)
        is_empty = np.isin(np.arange(count), node.static(1, "segment ids"), invert=True)
        if kind == "MUL" or not is_empty.any():
            return result
        column = is_empty.reshape(-1, *(1,) * (len(shape_of(result)) - 1))
        return e.select(e.constant(column), e.scalar(0, dtype_of(result)), result)

    return handler


def _extreme(node: NodeContext, kind: str, count: int) -> SSAValue:
    """Return rows of each segment combined; a segment without a row has the value that `kind` starts from."""
    e, data, ids = node.emit, node.x(0), node.x(1)
    names, row = math.prod(shape_of(ids)), shape_of(data)[len(shape_of(ids)) :]
    start = e.full(_start(kind, dtype_of(data)), (count, *row), dtype_of(data))
    updates = e.reshape(data, (names, *row))
    return e.emit(ops.ScatterOp(start, e.reshape(ids, (names,)), updates, kind))


def _start(kind: str, dtype: str) -> float:
    """Return the neutral element: 1 of a product, the lowest finite number of a maximum."""
    if kind == "MUL":
        return 1
    limits: Any = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    return float(limits.min if kind == "MAX" else limits.max)


def _segment_count(node: NodeContext, position: int) -> int:
    """Return the number of segments of rising ids."""
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
    """Return the number of rows of each segment, at least 1, to a power; it broadcasts over a row."""
    ones = e.full(1, shape_of(ids), dtype_of(rows))
    sizes = scatter_rows(e, ids, ones, (count,))
    sizes = e.binary(ops.MaxOp, sizes, e.scalar(1, dtype_of(rows)))
    if power == 0.5:
        sizes = e.unary(ops.SqrtOp, sizes)
    return e.reshape(sizes, (count, *(1,) * (len(shape_of(rows)) - 1)))


TABLE: Table = {
    **{name: _reduction(kind) for name, kind in _KINDS.items()},
    "L2Loss": _l2_loss,
    "EuclideanNorm": _euclidean_norm,
    "ArgMax": _arg_max,
    "ArgMin": _arg_min,
    "Cumsum": _scan(ops.CumSumOp),
    "Cumprod": _scan(ops.CumProdOp),
    "CumulativeLogsumexp": _scan(ops.CumLogSumExpOp),
    "NthElement": _nth_element,
    "TopKV2": _top_k,
    "InTopKV2": _in_top_k,
    "InTopK": _in_top_k_v1,
    "Bincount": _bincount,
    "DenseBincount": _dense_bincount,
    "Bucketize": _bucketize,
    "LowerBound": _search("GT"),
    "UpperBound": _search("GE"),
    "HistogramFixedWidth": _histogram,
    **{f"Segment{name}": _reduce_sorted(kind) for name, kind in _EXTREMES.items()},
    **{f"UnsortedSegment{name}": _reduce_unsorted(kind) for name, kind in _EXTREMES.items()},
    "SegmentSum": _segment(_POWERS["Sum"]),
    "SegmentMean": _segment(_POWERS["Mean"]),
    **{f"SparseSegment{name}": _sparse_segment(p, with_count=False) for name, p in _POWERS.items()},
    **{
        f"SparseSegment{name}WithNumSegments": _sparse_segment(p, with_count=True)
        for name, p in _POWERS.items()
    },
    **{f"SparseSegment{name}Grad": _sparse_segment_grad(p) for name, p in _POWERS.items()},
}
