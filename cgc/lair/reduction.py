"""Loop nests that carry a sum, a maximum or a scan: reductions, products, softmax, layer normalization.

16-bit floats are computed in float32 and rounded at the end, as in `cgc.lowering`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.ir.affine import AffineExpr, AffineMap

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    ArgMaxOp,
    BiasAddOp,
    DotGeneralOp,
    LayerNormOp,
    LogSoftmaxOp,
    MatMulOp,
    ReduceBiasOp,
    ReduceOp,
    SoftmaxGradOp,
    SoftmaxOp,
    SparseSoftmaxCrossEntropyWithLogitsOp,
)
from cgc.cirh.reduction import ScanOp
from cgc.cirh.softmax import PADDING_LABEL
from cgc.cirh.types import shape_of
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.build import (
    FLOAT_NAMES,
    Array,
    Body,
    Builder,
    Read,
    Rule,
    Scalar,
    highest,
    loop_index,
    lowest,
    narrow,
    result_dtype,
    same,
    sum_of,
    widen,
)


def reduce(builder: Builder, op: ReduceOp, x: Array) -> Array:
    """Reduce over dimensions; sums and products of 16-bit floats are computed in float32."""
    kind, dtype = op.reduce_kind, x.dtype
    wide = widen(builder, x) if kind in ("ADD", "MUL", "MEAN") else x
    combine, start = _REDUCTIONS["ADD" if kind == "MEAN" else kind]
    total = builder.reduce(wide, op.dimensions, start(wide.dtype), combine, op.keep_dims)
    if kind == "MEAN":
        count = math.prod(x.shape[d] for d in op.dimensions)
        total = builder.pointwise([total], total.dtype, lambda element: element / count)
    return narrow(builder, total, dtype)


def argmax(builder: Builder, op: ArgMaxOp, x: Array) -> Array:
    """Return the first place of the largest element; NaN is the largest."""
    combine, start = _REDUCTIONS["MAX"]
    largest = builder.reduce(x, [op.axis], start(x.dtype), combine)
    kept = affine_map(x.rank, [dim(d) for d in range(x.rank) if d != op.axis])
    dtype = result_dtype(op)
    initial = builder.fill(largest.shape, dtype, highest(dtype))

    def body(element: Scalar, top: Scalar, first: Scalar) -> Scalar:
        hit = element.compare("EQ", top)
        if element.is_float:
            hit = hit | element.is_nan()
        place = loop_index(element.block, op.axis).to(dtype)
        return first.min(hit.select(place, first))

    reads = [Read(x, identity(x.rank)), Read(largest, kept)]
    return builder.loops(x.rank, [op.axis], reads, [Read(initial, kept)], body)[0]


def scan(combine: Callable[[Scalar, Scalar], Scalar], start: Callable[[str], float]) -> Rule:
    """Return a rule for running sums, products and maxima: all partial results, and the running value."""

    def rule(builder: Builder, op: ScanOp, x: Array) -> Array:
        kept = affine_map(x.rank, [dim(d) for d in range(x.rank) if d != op.axis])
        sizes = [size for d, size in enumerate(x.shape) if d != op.axis]
        running = builder.fill(sizes, x.dtype, start(x.dtype))
        writes = [Read(builder.empty(x.shape, x.dtype), identity(x.rank)), Read(running, kept)]

        def body(element: Scalar, _old: Scalar, so_far: Scalar) -> Sequence[Scalar]:
            new = combine(so_far, element)
            return (so_far if op.exclusive else new), new

        # A reverse scan runs forward over reversed x, and its result is reversed again.
        places = _reverse_map(x, op.axis) if op.reverse else identity(x.rank)
        scanned = builder.loops(x.rank, [op.axis], [Read(x, places)], writes, body)[0]
        if not op.reverse:
            return scanned
        return builder.parallel(x.shape, [Read(scanned, places)], x.dtype, same)

    return rule


def _reverse_map(x: Array, axis: int) -> AffineMap:
    """Return the map that reverses dimension `axis`."""
    return affine_map(x.rank, [dim(d) * -1 + (n - 1) if d == axis else dim(d) for d, n in enumerate(x.shape)])


# Combining function and start value for each reduce_kind.
_REDUCTIONS: dict[str, tuple[Callable[[Scalar, Scalar], Scalar], Callable[[str], float]]] = {
    "ADD": (lambda element, total: total + element, lambda _dtype: 0),
    "MUL": (lambda element, total: total * element, lambda _dtype: 1),
    "MAX": (lambda element, total: total.max(element), lowest),
    "MIN": (lambda element, total: total.min(element), highest),
    "AND": (lambda element, total: total & element, lambda dtype: 1 if dtype == "bool" else -1),
    "OR": (lambda element, total: total | element, lambda _dtype: 0),
}


def l2_norm(builder: Builder, _op: CirhOp, *xs: Array) -> Array:
    """Return the root of the sum of all squares."""
    sums = []
    for x in xs:
        squares = builder.pointwise([x], "float32", lambda value: value.to("float32") * value.to("float32"))
        sums.append(sum_of(builder, squares, range(x.rank)))
    return builder.pointwise(sums, "float32", lambda first, *rest: sum(rest, start=first).apply("sqrt"))


def bias_add(builder: Builder, _op: BiasAddOp, x: Array, bias: Array) -> Array:
    """Add the bias along the last loop."""
    reads = [Read(x, identity(x.rank)), Read(bias, affine_map(x.rank, [dim(x.rank - 1)]))]
    return builder.parallel(x.shape, reads, x.dtype, lambda element, term: element + term)


def bias_add_grad(builder: Builder, _op: CirhOp, grad: Array) -> Array:
    """Sum over all loops but the last."""
    return narrow(builder, sum_of(builder, grad, range(grad.rank - 1)), grad.dtype)


def reduce_bias(builder: Builder, op: ReduceBiasOp, grad: Array) -> Array:
    """Sum over all loops but one."""
    others = [d for d in range(grad.rank) if d != op.dim]
    return narrow(builder, sum_of(builder, grad, others), grad.dtype)


def matmul(builder: Builder, op: MatMulOp, a: Array, b: Array) -> Array:
    """Loop over batch, rows, columns and the summed dimension; 16-bit floats are summed in float32."""
    batch = a.rank - 2
    row, column, inner = dim(batch), dim(batch + 1), dim(batch + 2)
    lead = [dim(d) for d in range(batch)]
    left = [*lead, inner, row] if op.transpose_a else [*lead, row, inner]
    right = [*lead, column, inner] if op.transpose_b else [*lead, inner, column]
    return product(builder, op, (a, left), (b, right), batch + 3)


def dot_general(builder: Builder, op: DotGeneralOp, lhs: Array, rhs: Array) -> Array:
    """Loop over the batch, the rest of both sides, and the summed dimensions."""
    batch = len(op.lhs_batching_dimensions)
    count = len(shape_of(op.result))
    next_free = iter(range(batch, count))
    sides = []
    for array, batching, contracting in (
        (lhs, op.lhs_batching_dimensions, op.lhs_contracting_dimensions),
        (rhs, op.rhs_batching_dimensions, op.rhs_contracting_dimensions),
    ):
        loops = {d: number for number, d in enumerate(batching)}
        loops |= {d: count + number for number, d in enumerate(contracting)}
        sides.append((array, [dim(loops[d] if d in loops else next(next_free)) for d in range(array.rank)]))
    return product(builder, op, sides[0], sides[1], count + len(op.lhs_contracting_dimensions))


def product(
    builder: Builder,
    op: CirhOp,
    left: tuple[Array, Sequence[AffineExpr]],
    right: tuple[Array, Sequence[AffineExpr]],
    loops: int,
) -> Array:
    """Sum the products of two arrays over the loops after those of the result."""
    shape, dtype = shape_of(op.results[0]), left[0].dtype
    wide = "float32" if dtype in FLOAT_NAMES else dtype
    reads = [Read(array, affine_map(loops, places)) for array, places in (left, right)]
    write = Read(builder.fill(shape, wide, 0), affine_map(loops, [dim(d) for d in range(len(shape))]))

    def body(x: Scalar, y: Scalar, total: Scalar) -> Scalar:
        return total + x.to(wide) * y.to(wide)

    total = builder.loops(loops, range(len(shape), loops), reads, [write], body)[0]
    return narrow(builder, total, dtype)


def softmax(builder: Builder, op: SoftmaxOp, x: Array) -> Array:
    """Compute `exp(x - max) / sum`."""
    _, powers, total = _normalize(builder, x, op.axis)
    shares = _with_row(builder, powers, total, op.axis, lambda power, whole: power / whole)
    return narrow(builder, shares, x.dtype)


def log_softmax(builder: Builder, op: LogSoftmaxOp, x: Array) -> Array:
    """Compute `x - max - log(sum)`."""
    shifted, _, total = _normalize(builder, x, op.axis)
    shares = _with_row(builder, shifted, total, op.axis, lambda value, whole: value - whole.apply("log"))
    return narrow(builder, shares, x.dtype)


def softmax_cross_entropy(builder: Builder, _op: CirhOp, logits: Array, labels: Array) -> Sequence[Array]:
    """Return (loss of every row, its gradient) for labels that are a distribution."""
    axis = logits.rank - 1
    shifted, powers, total = _normalize(builder, logits, axis)
    wide = widen(builder, labels)
    logs = _with_row(builder, shifted, total, axis, lambda value, whole: whole.apply("log") - value)
    terms = builder.pointwise([wide, logs], "float32", lambda label, log: label * log)
    shares = _with_row(builder, powers, total, axis, lambda power, whole: power / whole)
    backprop = builder.pointwise([shares, wide], "float32", lambda share, label: share - label)
    loss = sum_of(builder, terms, [axis])
    return narrow(builder, loss, logits.dtype), narrow(builder, backprop, logits.dtype)


def sparse_softmax_cross_entropy(
    builder: Builder, op: SparseSoftmaxCrossEntropyWithLogitsOp, logits: Array, labels: Array
) -> Sequence[Array]:
    """Return (loss of every row, its gradient) for class numbers; 0 for padding, NaN for invalid classes."""
    axis, classes = op.axis, logits.shape[op.axis]
    shifted, powers, total = _normalize(builder, logits, axis)

    def hit(label: Scalar) -> Scalar:
        return loop_index(label.block, axis).to("int32").compare("EQ", label.to("int32"))

    def mask_padding(row_label: Scalar, value: Scalar) -> Scalar:
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
        lambda value, whole, label: mask_padding(label, whole.apply("log") - value),
    )
    shares = _with_row(builder, powers, total, axis, lambda power, whole: power / whole)
    backprop = _with_row(
        builder,
        shares,
        labels,
        axis,
        lambda share, label: mask_padding(label, share - hit(label).select(share.constant(1), 0)),
    )
    return narrow(builder, loss, logits.dtype), narrow(builder, backprop, logits.dtype)


def _normalize(builder: Builder, x: Array, axis: int) -> tuple[Array, Array, Array]:
    """Return x less the maximum of its row, the exponential of that, and its sum along the axis: float32."""
    wide = widen(builder, x)
    largest = builder.reduce(wide, [axis], lowest("float32"), lambda element, top: top.max(element))
    shifted = _with_row(builder, wide, largest, axis, lambda element, top: element - top)
    powers = builder.pointwise([shifted], "float32", lambda value: value.apply("exp"))
    return shifted, powers, sum_of(builder, powers, [axis])


def _with_row(builder: Builder, x: Array, row: Array, axis: int, body: Body) -> Array:
    """Compute `body(element of x, element of row)`, where row lacks dimension `axis`."""
    reads = [Read(x, identity(x.rank)), _row_read(row, x.rank, axis)]
    return builder.parallel(x.shape, reads, x.dtype, body)


def _row_read(row: Array, rank: int, axis: int) -> Read:
    return Read(row, affine_map(rank, [dim(d) for d in range(rank) if d != axis]))


def softmax_grad(builder: Builder, op: SoftmaxGradOp, probabilities: Array, grad: Array) -> Array:
    """Compute `(grad - sum(grad * probabilities)) * probabilities`."""
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


def layer_norm(builder: Builder, op: LayerNormOp, x: Array, scale: Array, offset: Array) -> Sequence[Array]:
    """Return (y, mean, rstd) over the last dimension."""
    axis, count = x.rank - 1, x.shape[-1]
    wide = widen(builder, x)
    total = sum_of(builder, wide, [axis], keep_dims=True)
    mean = builder.pointwise([total], "float32", lambda value: value / count)
    centered = _with_moments(builder, wide, [mean], lambda value, middle: value - middle)
    squares = builder.pointwise([centered], "float32", lambda value: value * value)
    spread = sum_of(builder, squares, [axis], keep_dims=True)
    rstd = builder.pointwise([spread], "float32", lambda value: (value / count + op.epsilon).apply("rsqrt"))
    reads = [
        Read(centered, identity(x.rank)),
        Read(rstd, _moments_map(x.rank)),
        Read(scale, affine_map(x.rank, [dim(axis)])),
        Read(offset, affine_map(x.rank, [dim(axis)])),
    ]

    def scale_and_shift(value: Scalar, root: Scalar, gain: Scalar, shift: Scalar) -> Scalar:
        return (value * root * gain.to("float32") + shift.to("float32")).to(x.dtype)

    return builder.parallel(x.shape, reads, x.dtype, scale_and_shift), mean, rstd


def layer_norm_grad(
    builder: Builder, _op: CirhOp, grad: Array, x: Array, scale: Array, mean: Array, rstd: Array
) -> Sequence[Array]:
    """Return (x_backprop, scale_backprop, offset_backprop)."""
    axis, count = x.rank - 1, x.shape[-1]
    wide = widen(builder, grad)
    normalized = _with_moments(
        builder, widen(builder, x), [mean, rstd], lambda value, middle, root: (value - middle) * root
    )
    reads = [Read(wide, identity(x.rank)), Read(scale, affine_map(x.rank, [dim(axis)]))]
    scaled = builder.parallel(x.shape, reads, "float32", lambda slope, gain: slope * gain.to("float32"))
    along = builder.pointwise([scaled, normalized], "float32", lambda slope, value: slope * value)
    sums = [sum_of(builder, array, [axis], keep_dims=True) for array in (scaled, along)]
    moments = [Read(array, _moments_map(x.rank)) for array in (*sums, rstd)]

    def center(slope: Scalar, value: Scalar, total: Scalar, part: Scalar, root: Scalar) -> Scalar:
        return ((slope - total / count - value * (part / count)) * root).to(x.dtype)

    pair = [Read(array, identity(x.rank)) for array in (scaled, normalized)]
    x_backprop = builder.parallel(x.shape, [*pair, *moments], x.dtype, center)
    terms = builder.pointwise([wide, normalized], "float32", lambda slope, value: slope * value)
    vectors = [sum_of(builder, array, range(axis)) for array in (terms, wide)]
    return x_backprop, *(narrow(builder, vector, scale.dtype) for vector in vectors)


def _moments_map(rank: int) -> AffineMap:
    """Return the place of a moment, whose last dimension has size 1."""
    return affine_map(rank, [*(dim(d) for d in range(rank - 1)), 0])


def _with_moments(builder: Builder, x: Array, moments: Sequence[Array], body: Body) -> Array:
    reads = [Read(x, identity(x.rank)), *(Read(moment, _moments_map(x.rank)) for moment in moments)]
    return builder.parallel(x.shape, reads, x.dtype, body)


RULES: dict[type[CirhOp], Rule] = {
    ops.ReduceOp: reduce,
    ops.ArgMaxOp: argmax,
    ops.CumSumOp: scan(lambda total, element: total + element, lambda _dtype: 0),
    ops.CumProdOp: scan(lambda total, element: total * element, lambda _dtype: 1),
    ops.CumMaxOp: scan(lambda total, element: total.max(element), lowest),
    ops.L2NormOp: l2_norm,
    ops.BiasAddOp: bias_add,
    ops.BiasAddGradOp: bias_add_grad,
    ops.ReduceBiasOp: reduce_bias,
    ops.MatMulOp: matmul,
    ops.DotGeneralOp: dot_general,
    ops.SoftmaxOp: softmax,
    ops.LogSoftmaxOp: log_softmax,
    ops.SoftmaxCrossEntropyWithLogitsOp: softmax_cross_entropy,
    ops.SparseSoftmaxCrossEntropyWithLogitsOp: sparse_softmax_cross_entropy,
    ops.SoftmaxGradOp: softmax_grad,
    ops.LayerNormOp: layer_norm,
    ops.LayerNormGradOp: layer_norm_grad,
}
