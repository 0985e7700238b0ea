"""Counting: how often numbers occur, and between which bounds they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import scatter_rows
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import NodeContext, Table


def _bincount(node: NodeContext) -> SSAValue:
    """Bincount. Inputs: numbers, how many different ones count, weights (of no element: 1 each)."""
    return _counts(node, node.x(0), node.x(2), is_binary=False)


def _dense_bincount(node: NodeContext) -> SSAValue:
    """DenseBincount: as Bincount, of one row of numbers or of each row of a matrix."""
    return _counts(node, node.x(0), node.x(2), is_binary=bool(node.attr("binary_output")))


def _counts(node: NodeContext, numbers: SSAValue, weights: SSAValue, *, is_binary: bool) -> SSAValue:
    """Numbers of `size` and above are left out; `is_binary`: 1 for each number that occurs."""
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
    """How many numbers count: known, or held at one value by equal minlength and maxlength."""
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
    """The least and the largest value of a number, as far as Maximum and Minimum of constants tell."""
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
    """How many of the boundaries, which rise, each element has reached."""
    e, x = node.emit, node.x(0)
    bounds = np.asarray(node.attr("boundaries"), np.float32)
    if dtype_of(x) != "float32":
        x = e.cast(x, "float32")
    return _reached(e, x, e.constant(bounds), "GE", node.out_dtype())


def _reached(e: Emitter, x: SSAValue, bounds: SSAValue, direction: str, dtype: str) -> SSAValue:
    """For each element: of how many bounds, along their last axis, the comparison with them holds."""
    column = e.reshape(x, (*shape_of(x), 1))
    return e.reduce("ADD", e.cast(e.compare(direction, column, bounds), dtype), (len(shape_of(x)),))


def _search(direction: str) -> Any:
    """LowerBound and UpperBound of (rows that rise, values for each row)."""

    def handler(node: NodeContext) -> SSAValue:
        e, ordered, values = node.emit, node.x(0), node.x(1)
        rows, length = shape_of(ordered)
        return _reached(e, values, e.reshape(ordered, (rows, 1, length)), direction, node.out_dtype())

    return handler


def _histogram(node: NodeContext) -> SSAValue:
    """HistogramFixedWidth of (values, [low, high], number of bins); the outermost bins take all beyond."""
    e, x = node.emit, node.x(0)
    low, high = (float(v) for v in node.static(1, "range"))
    (bins,) = node.ints(2, "number of bins")
    place = e.scaled(e.sub(x, e.scalar(low, dtype_of(x))), bins / (high - low))
    place = e.unary(ops.FloorOp, place)
    last = e.scalar(bins - 1, dtype_of(x))
    inside = e.binary(ops.MinOp, e.binary(ops.MaxOp, place, e.scalar(0, dtype_of(x))), last)
    numbers = e.reshape(e.cast(inside, "int32"), (-1,))
    return scatter_rows(e, numbers, e.full(1, shape_of(numbers), node.out_dtype()), (bins,))


TABLE: Table = {
    "Bincount": _bincount,
    "DenseBincount": _dense_bincount,
    "Bucketize": _bucketize,
    "LowerBound": _search("GT"),
    "UpperBound": _search("GE"),
    "HistogramFixedWidth": _histogram,
}
