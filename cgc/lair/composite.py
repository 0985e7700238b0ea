"""CIRH ops that are several loop nests: softmax, cross entropy, norms; the formulas of `cgc.lowering`.

16-bit floats are computed in float32 and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir.affine import AffineMap

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.composite import COMPOSITES
from cgc.cirh.nn import PADDING_LABEL
from cgc.cirh.ops import (
    CompositeOp,
    LayerNormOp,
    LogSoftmaxOp,
    SoftmaxGradOp,
    SoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
)
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.build import Array, Body, Builder, Read
from cgc.lair.elementwise import FORMULAS, gelu
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


def l2_norm(builder: Builder, _op: CirhOp, *xs: Array) -> Array:
    """The root of the sum of all squares."""
    sums = []
    for x in xs:
        squares = builder.pointwise([x], "float32", lambda value: value.to("float32") * value.to("float32"))
        sums.append(sum_of(builder, squares, range(x.rank)))
    return builder.pointwise(sums, "float32", lambda first, *rest: sum(rest, start=first).apply("sqrt"))


def layer_norm(builder: Builder, op: LayerNormOp, x: Array, scale: Array, offset: Array) -> Sequence[Array]:
    """(y, mean, rstd) over the last dimension."""
    axis, count = x.rank - 1, x.shape[-1]
    wide = widened(builder, x)
    total = sum_of(builder, wide, [axis], keep_dims=True)
    mean = builder.pointwise([total], "float32", lambda value: value / count)
    centred = _with_moments(builder, wide, [mean], lambda value, middle: value - middle)
    squares = builder.pointwise([centred], "float32", lambda value: value * value)
    spread = sum_of(builder, squares, [axis], keep_dims=True)
    rstd = builder.pointwise([spread], "float32", lambda value: (value / count + op.epsilon).apply("rsqrt"))
    reads = [
        Read(centred, identity(x.rank)),
        Read(rstd, _moments_map(x.rank)),
        Read(scale, affine_map(x.rank, [dim(axis)])),
        Read(offset, affine_map(x.rank, [dim(axis)])),
    ]

    def scaled(value: Scalar, root: Scalar, gain: Scalar, shift: Scalar) -> Scalar:
        return (value * root * gain.to("float32") + shift.to("float32")).to(x.dtype)

    return builder.parallel(x.shape, reads, x.dtype, scaled), mean, rstd


def layer_norm_grad(
    builder: Builder, _op: CirhOp, grad: Array, x: Array, scale: Array, mean: Array, rstd: Array
) -> Sequence[Array]:
    """(x_backprop, scale_backprop, offset_backprop)."""
    axis, count = x.rank - 1, x.shape[-1]
    wide = widened(builder, grad)
    normalized = _with_moments(
        builder, widened(builder, x), [mean, rstd], lambda value, middle, root: (value - middle) * root
    )
    reads = [Read(wide, identity(x.rank)), Read(scale, affine_map(x.rank, [dim(axis)]))]
    scaled = builder.parallel(x.shape, reads, "float32", lambda slope, gain: slope * gain.to("float32"))
    along = builder.pointwise([scaled, normalized], "float32", lambda slope, value: slope * value)
    sums = [sum_of(builder, array, [axis], keep_dims=True) for array in (scaled, along)]
    moments = [Read(array, _moments_map(x.rank)) for array in (*sums, rstd)]

    def centred(slope: Scalar, value: Scalar, total: Scalar, part: Scalar, root: Scalar) -> Scalar:
        return ((slope - total / count - value * (part / count)) * root).to(x.dtype)

    pair = [Read(array, identity(x.rank)) for array in (scaled, normalized)]
    x_backprop = builder.parallel(x.shape, [*pair, *moments], x.dtype, centred)
    terms = builder.pointwise([wide, normalized], "float32", lambda slope, value: slope * value)
    vectors = [sum_of(builder, array, range(axis)) for array in (terms, wide)]
    return x_backprop, *(narrowed(builder, vector, scale.dtype) for vector in vectors)


def bias_activation(builder: Builder, op: CompositeOp, x: Array, bias: Array) -> Array:
    """The activation of x plus bias."""
    activation, approximation = COMPOSITES[op.function]
    reads = [Read(x, identity(x.rank)), Read(bias, affine_map(x.rank, [dim(x.rank - 1)]))]
    if activation is ops.GeluOp:
        return builder.parallel(
            x.shape, reads, x.dtype, lambda element, term: gelu(element + term, approximation == "TANH")
        )
    formula = FORMULAS[activation]
    return builder.parallel(x.shape, reads, x.dtype, lambda element, term: formula(op, element + term))


def _moments_map(rank: int) -> AffineMap:
    """The place of a moment, whose last dimension has size 1."""
    return affine_map(rank, [*(dim(d) for d in range(rank - 1)), 0])


def _with_moments(builder: Builder, x: Array, moments: Sequence[Array], body: Body) -> Array:
    reads = [Read(x, identity(x.rank)), *(Read(moment, _moments_map(x.rank)) for moment in moments)]
    return builder.parallel(x.shape, reads, x.dtype, body)


RULES: dict[type[CirhOp], Rule] = {
    ops.SoftmaxOp: softmax,
    ops.LogSoftmaxOp: log_softmax,
    ops.SoftmaxCrossEntropyWithLogitsOp: softmax_cross_entropy,
    ops.SparseSoftmaxCrossEntropyWithLogitsOp: sparse_softmax_cross_entropy,
    ops.SoftmaxGradOp: softmax_grad,
    ops.L2NormOp: l2_norm,
    ops.LayerNormOp: layer_norm,
    ops.LayerNormGradOp: layer_norm_grad,
    ops.CompositeOp: bias_activation,
}
