"""Softmax and the cross entropies as several loop nests; the formulas of `cgc.lowering`.

16-bit floats are computed in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    LogSoftmaxOp,
    SoftmaxGradOp,
    SoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
)
from cgc.cirh.softmax import PADDING_LABEL
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.build import Array, Body, Builder, Read
from cgc.lair.scalar import Scalar, loop_index, lowest
from cgc.lair.structure import Rule, narrowed, sum_of, widened


def softmax(builder: Builder, op: SoftmaxOp, x: Array) -> Array:
    """`exp(x - max) / sum`."""
    _, powers, total = _normalised(builder, x, op.axis)
    shares = _with_row(builder, powers, total, op.axis, lambda power, whole: power / whole)
    return narrowed(builder, shares, x.dtype)


def log_softmax(builder: Builder, op: LogSoftmaxOp, x: Array) -> Array:
    """`x - max - log(sum)`."""
    shifted, _, total = _normalised(builder, x, op.axis)
    shares = _with_row(builder, shifted, total, op.axis, lambda value, whole: value - whole.apply("log"))
    return narrowed(builder, shares, x.dtype)


def softmax_cross_entropy(builder: Builder, _op: CirhOp, logits: Array, labels: Array) -> Sequence[Array]:
    """(loss of every row, its gradient) for labels that are a distribution."""
    axis = logits.rank - 1
    shifted, powers, total = _normalised(builder, logits, axis)
    wide = widened(builder, labels)
    logs = _with_row(builder, shifted, total, axis, lambda value, whole: whole.apply("log") - value)
    terms = builder.pointwise([wide, logs], "float32", lambda label, log: label * log)
    shares = _with_row(builder, powers, total, axis, lambda power, whole: power / whole)
    backprop = builder.pointwise([shares, wide], "float32", lambda share, label: share - label)
    loss = sum_of(builder, terms, [axis])
    return narrowed(builder, loss, logits.dtype), narrowed(builder, backprop, logits.dtype)


def sparse_softmax_cross_entropy(
    builder: Builder, op: SparseSoftmaxCrossEntropyWithLogitsOp, logits: Array, labels: Array
) -> Sequence[Array]:
    """(loss of every row, its gradient) for class numbers; 0 for rows that do not count, NaN for no class."""
    axis, classes = op.axis, logits.shape[op.axis]
    shifted, powers, total = _normalised(builder, logits, axis)

    def hit(label: Scalar) -> Scalar:
        return loop_index(label.block, axis).to("int32").compare("EQ", label.to("int32"))

    def counted(row_label: Scalar, value: Scalar) -> Scalar:
        label = row_label.to("int32")
        known = label.compare("GE", 0) & label.compare("LT", classes)
        if op.ignore_out_of_range:
            return known.select(value, 0)
        skipped = label.compare("EQ", PADDING_LABEL)
        return skipped.select(value.constant(0), known.select(value, math.nan))

    chosen = _with_row(builder, shifted, labels, axis, lambda value, label: hit(label).select(value, 0))
    loss = builder.pointwise(
        [sum_of(builder, chosen, [axis]), total, labels],
        "float32",
        lambda value, whole, label: counted(label, whole.apply("log") - value),
    )
    shares = _with_row(builder, powers, total, axis, lambda power, whole: power / whole)
    backprop = _with_row(
        builder,
        shares,
        labels,
        axis,
        lambda share, label: counted(label, share - hit(label).select(share.constant(1), 0)),
    )
    return narrowed(builder, loss, logits.dtype), narrowed(builder, backprop, logits.dtype)


def _normalised(builder: Builder, x: Array, axis: int) -> tuple[Array, Array, Array]:
    """(x less the largest element of its row, the exponential of that, its sum along the axis), float32."""
    wide = widened(builder, x)
    largest = builder.reduced(wide, [axis], lowest("float32"), lambda element, top: top.max(element))
    shifted = _with_row(builder, wide, largest, axis, lambda element, top: element - top)
    powers = builder.pointwise([shifted], "float32", lambda value: value.apply("exp"))
    return shifted, powers, sum_of(builder, powers, [axis])


def _with_row(builder: Builder, x: Array, row: Array, axis: int, body: Body) -> Array:
    """`body(element of x, element of row)`, where row lacks dimension `axis`."""
    reads = [Read(x, identity(x.rank)), _row_read(row, x.rank, axis)]
    return builder.parallel(x.shape, reads, x.dtype, body)


def _row_read(row: Array, rank: int, axis: int) -> Read:
    return Read(row, affine_map(rank, [dim(d) for d in range(rank) if d != axis]))


def softmax_grad(builder: Builder, op: SoftmaxGradOp, probabilities: Array, grad: Array) -> Array:
    """`(grad - sum(grad * probabilities)) * probabilities`."""
    terms = builder.pointwise(
        [probabilities, grad],
        "float32",
        lambda share, slope: share.to("float32") * slope.to("float32"),
    )
    row = _row_read(sum_of(builder, terms, [op.axis]), probabilities.rank, op.axis)
    reads = [Read(array, identity(array.rank)) for array in (probabilities, grad)]
    return builder.parallel(
        probabilities.shape,
        [*reads, row],
        probabilities.dtype,
        lambda share, slope, total: ((slope.to("float32") - total) * share.to("float32")).to(
            probabilities.dtype
        ),
    )


RULES: dict[type[CirhOp], Rule] = {
    ops.SoftmaxOp: softmax,
    ops.LogSoftmaxOp: log_softmax,
    ops.SoftmaxCrossEntropyWithLogitsOp: softmax_cross_entropy,
    ops.SparseSoftmaxCrossEntropyWithLogitsOp: sparse_softmax_cross_entropy,
    ops.SoftmaxGradOp: softmax_grad,
}
