"""CIRH ops that move, repeat, pick, sum or scan elements, as loop nests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from xdsl.dialects.tensor import ExtractOp
from xdsl.ir import Block
from xdsl.ir.affine import AffineExpr, AffineMap

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    ArangeOp,
    ArgMaxOp,
    BiasAddOp,
    BroadcastInDimOp,
    ConcatOp,
    CumSumOp,
    DotGeneralOp,
    MatMulOp,
    PadOp,
    ReduceBiasOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
)
from cgc.cirh.types import shape_of, tensor_of
from cgc.lair.affine import affine_map, dim, identity, partial, reshape_map
from cgc.lair.build import Array, Builder, Read
from cgc.lair.scalar import FLOAT_NAMES, Scalar, dtype_of, highest, loop_index, lowest

Rule = Callable[..., Array | Sequence[Array]]
"""(builder, op, its operands) -> its results."""


def result_dtype(op: CirhOp, index: int = 0) -> str:
    """The device type of a result."""
    return dtype_of(tensor_of(op.results[index]))


def _same(element: Scalar) -> Scalar:
    return element


def moved(builder: Builder, op: CirhOp, x: Array, results: Sequence[AffineExpr | int]) -> Array:
    """An element of the result is that of x at the place that the expressions name."""
    return moved_to(builder, shape_of(op.results[0]), x, results)


def moved_to(builder: Builder, shape: Sequence[int], x: Array, results: Sequence[AffineExpr | int]) -> Array:
    """`moved` for a result of a given shape."""
    places = partial(affine_map(len(shape), results), shape, x.shape)
    return builder.parallel(shape, [Read(x, places)], x.dtype, _same)


def reshape(builder: Builder, op: ReshapeOp, x: Array) -> Array:
    """Row-major order stays."""
    return moved(builder, op, x, reshape_map(x.shape, shape_of(op.result)).results)


def transpose(builder: Builder, op: TransposeOp, x: Array) -> Array:
    """Dimension `permutation[i]` of x is loop i."""
    return moved(builder, op, x, [dim(op.permutation.index(d)) for d in range(x.rank)])


def broadcast_in_dim(builder: Builder, op: BroadcastInDimOp, x: Array) -> Array:
    """Dimensions of size 1 are read at 0."""
    places = zip(x.shape, op.broadcast_dimensions, strict=True)
    return moved(builder, op, x, [0 if size == 1 else dim(d) for size, d in places])


def slice_(builder: Builder, op: SliceOp, x: Array) -> Array:
    """`start + stride * i` in every dimension."""
    bounds = zip(op.start_indices, op.strides, strict=True)
    return moved(builder, op, x, [dim(d) * stride + start for d, (start, stride) in enumerate(bounds)])


def pad(builder: Builder, op: PadOp, x: Array, value: Array) -> Array:
    """The value everywhere, then x over its part."""
    whole = builder.filled_from(shape_of(op.result), value)
    return written(builder, x, whole, [dim(d) + low for d, low in enumerate(op.low)])


def concat(builder: Builder, op: ConcatOp, *parts: Array) -> Array:
    """Every part over its own."""
    whole = builder.empty(shape_of(op.result), parts[0].dtype)
    begin = 0
    for part in parts:
        places = [dim(d) + begin if d == op.axis else dim(d) for d in range(part.rank)]
        whole = written(builder, part, whole, places)
        begin += part.shape[op.axis]
    return whole


def written(builder: Builder, part: Array, whole: Array, places: Sequence[AffineExpr]) -> Array:
    """`whole` with the elements of `part` at the places that expressions of their indices name."""
    targets = partial(affine_map(part.rank, places), part.shape, whole.shape)
    reads, writes = [Read(part, identity(part.rank))], [Read(whole, targets)]
    return builder.loops(part.rank, (), reads, writes, lambda element, _old: element)[0]


def arange(builder: Builder, op: ArangeOp) -> Array:
    """`start + step * i`."""
    dtype = result_dtype(op)
    unsigned = dtype.startswith("u")
    counted = "uint32" if unsigned else "int32"
    start, step = (
        int(np.array(n, np.int64).astype(counted)) for n in (op.start, op.step)
    )  # wraps, as the sum

    def body(block: Block, *_old: Scalar) -> Scalar:
        return (loop_index(block, 0).to(counted) * step + start).to(dtype)

    return indexed(builder, op, [], body)


def extract(block: Block, x: Array, places: Sequence[Scalar]) -> Scalar:
    """An element of a tensor at places that the body computes."""
    op = ExtractOp(x.value, [place.value for place in places], tensor_of(x.value).element_type)
    block.add_op(op)
    return Scalar(block, op.result, x.dtype)


def missing(dtype: str) -> float:
    """What a gather out of range gives."""
    if dtype in FLOAT_NAMES:
        return math.nan
    return lowest(dtype) if dtype.startswith("int") else highest(dtype)


def indexed(builder: Builder, op: CirhOp, reads: Sequence[Read], body: Callable[..., Scalar]) -> Array:
    """A parallel nest over the result; `body(block, elements ..)` may use the indices of the loops."""
    shape, dtype = shape_of(op.results[0]), result_dtype(op)
    write = Read(builder.empty(shape, dtype), identity(len(shape)))
    return builder.loops(len(shape), (), reads, [write], lambda *values: body(values[-1].block, *values))[0]


def reduce(builder: Builder, op: ReduceOp, x: Array) -> Array:
    """Sums and products of 16-bit floats run in float32."""
    kind, dtype = op.reduce_kind, x.dtype
    wide = widened(builder, x) if kind in ("ADD", "MUL", "MEAN") else x
    combine, start = _REDUCTIONS["ADD" if kind == "MEAN" else kind]
    total = builder.reduced(wide, op.dimensions, start(wide.dtype), combine, op.keep_dims)
    if kind == "MEAN":
        count = math.prod(x.shape[d] for d in op.dimensions)
        total = builder.pointwise([total], total.dtype, lambda element: element / count)
    return narrowed(builder, total, dtype)


def widened(builder: Builder, x: Array) -> Array:
    """float32 of 16-bit floats."""
    if x.dtype not in ("float16", "bfloat16"):
        return x
    return builder.pointwise([x], "float32", lambda element: element.to("float32"))


def narrowed(builder: Builder, x: Array, dtype: str) -> Array:
    """The inverse of `widened`."""
    return x if x.dtype == dtype else builder.pointwise([x], dtype, lambda element: element.to(dtype))


def sum_of(builder: Builder, x: Array, dimensions: Sequence[int], keep_dims: bool = False) -> Array:
    """Sum over dimensions, of float32 where x has 16 bits."""
    combine, start = _REDUCTIONS["ADD"]
    return builder.reduced(widened(builder, x), dimensions, start(x.dtype), combine, keep_dims)


def bias_add(builder: Builder, _op: BiasAddOp, x: Array, bias: Array) -> Array:
    """The bias along the last loop."""
    reads = [Read(x, identity(x.rank)), Read(bias, affine_map(x.rank, [dim(x.rank - 1)]))]
    return builder.parallel(x.shape, reads, x.dtype, lambda element, term: element + term)


def bias_add_grad(builder: Builder, _op: CirhOp, grad: Array) -> Array:
    """Sum over all loops but the last."""
    return narrowed(builder, sum_of(builder, grad, range(grad.rank - 1)), grad.dtype)


def reduce_bias(builder: Builder, op: ReduceBiasOp, grad: Array) -> Array:
    """Sum over all loops but one."""
    others = [d for d in range(grad.rank) if d != op.dim]
    return narrowed(builder, sum_of(builder, grad, others), grad.dtype)


def argmax(builder: Builder, op: ArgMaxOp, x: Array) -> Array:
    """The first place of the largest element; NaN is the largest."""
    combine, start = _REDUCTIONS["MAX"]
    largest = builder.reduced(x, [op.axis], start(x.dtype), combine)
    kept = affine_map(x.rank, [dim(d) for d in range(x.rank) if d != op.axis])
    dtype = result_dtype(op)
    initial = builder.filled(largest.shape, dtype, highest(dtype))

    def body(element: Scalar, top: Scalar, first: Scalar) -> Scalar:
        hit = element.compare("EQ", top)
        if element.is_float:
            hit = hit | element.is_nan()
        place = loop_index(element.block, op.axis).to(dtype)
        return first.min(hit.select(place, first))

    reads = [Read(x, identity(x.rank)), Read(largest, kept)]
    return builder.loops(x.rank, [op.axis], reads, [Read(initial, kept)], body)[0]


def scan(combine: Callable[[Scalar, Scalar], Scalar], start: float) -> Rule:
    """Running sums and products: the result of every iteration, and the running value beside it."""

    def rule(builder: Builder, op: CumSumOp, x: Array) -> Array:
        kept = affine_map(x.rank, [dim(d) for d in range(x.rank) if d != op.axis])
        running = builder.filled([size for d, size in enumerate(x.shape) if d != op.axis], x.dtype, start)
        writes = [Read(builder.empty(x.shape, x.dtype), identity(x.rank)), Read(running, kept)]

        def body(element: Scalar, _old: Scalar, so_far: Scalar) -> Sequence[Scalar]:
            new = combine(so_far, element)
            return (so_far if op.exclusive else new), new

        # from the end: the loop runs forward over x turned round, and its result is turned back
        places = _turned(x, op.axis) if op.reverse else identity(x.rank)
        scanned = builder.loops(x.rank, [op.axis], [Read(x, places)], writes, body)[0]
        if not op.reverse:
            return scanned
        return builder.parallel(x.shape, [Read(scanned, places)], x.dtype, _same)

    return rule


def _turned(x: Array, axis: int) -> AffineMap:
    """Dimension `axis` from its end."""
    return affine_map(x.rank, [dim(d) * -1 + (n - 1) if d == axis else dim(d) for d, n in enumerate(x.shape)])


def matmul(builder: Builder, op: MatMulOp, a: Array, b: Array) -> Array:
    """Loops over the batch, rows, columns and what is summed over; 16-bit floats are summed in float32."""
    batch = a.rank - 2
    row, column, inner = dim(batch), dim(batch + 1), dim(batch + 2)
    lead = [dim(d) for d in range(batch)]
    left = [*lead, inner, row] if op.transpose_a else [*lead, row, inner]
    right = [*lead, column, inner] if op.transpose_b else [*lead, inner, column]
    return product(builder, op, (a, left), (b, right), batch + 3)


def dot_general(builder: Builder, op: DotGeneralOp, lhs: Array, rhs: Array) -> Array:
    """Loops over the batch, the rest of both sides, and what is summed over."""
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
    """Sum of the products of two arrays; the loops after those of the result are summed over."""
    shape, dtype = shape_of(op.results[0]), left[0].dtype
    wide = "float32" if dtype in FLOAT_NAMES else dtype
    reads = [Read(array, affine_map(loops, places)) for array, places in (left, right)]
    write = Read(builder.filled(shape, wide, 0), affine_map(loops, [dim(d) for d in range(len(shape))]))

    def body(x: Scalar, y: Scalar, total: Scalar) -> Scalar:
        return total + x.to(wide) * y.to(wide)

    total = builder.loops(loops, range(len(shape), loops), reads, [write], body)[0]
    return narrowed(builder, total, dtype)


_REDUCTIONS: dict[str, tuple[Callable[[Scalar, Scalar], Scalar], Callable[[str], float]]] = {
    "ADD": (lambda element, total: total + element, lambda _dtype: 0),
    "MUL": (lambda element, total: total * element, lambda _dtype: 1),
    "MAX": (lambda element, total: total.max(element), lowest),
    "MIN": (lambda element, total: total.min(element), highest),
    "AND": (lambda element, total: total & element, lambda dtype: 1 if dtype == "bool" else -1),
    "OR": (lambda element, total: total | element, lambda _dtype: 0),
}
"""reduce_kind -> how to combine, and the value to start from."""

RULES: dict[type[CirhOp], Rule] = {
    ops.ReshapeOp: reshape,
    ops.TransposeOp: transpose,
    ops.BroadcastInDimOp: broadcast_in_dim,
    ops.SliceOp: slice_,
    ops.PadOp: pad,
    ops.ConcatOp: concat,
    ops.ArangeOp: arange,
    ops.ReduceOp: reduce,
    ops.BiasAddOp: bias_add,
    ops.BiasAddGradOp: bias_add_grad,
    ops.ReduceBiasOp: reduce_bias,
    ops.ArgMaxOp: argmax,
    ops.CumSumOp: scan(lambda total, element: total + element, 0),
    ops.CumProdOp: scan(lambda total, element: total * element, 1),
    ops.MatMulOp: matmul,
    ops.DotGeneralOp: dot_general,
}
