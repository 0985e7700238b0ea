"""CIRH ops that sum, scan or search elements, as loop nests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.ir.affine import AffineMap

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import ArgMaxOp, ReduceOp
from cgc.cirh.reduction import ScanOp
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.build import Array, Builder, Read
from cgc.lair.scalar import Scalar, highest, loop_index, lowest
from cgc.lair.structure import Rule, narrowed, result_dtype, same, sum_of, widened


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


def scan(combine: Callable[[Scalar, Scalar], Scalar], start: Callable[[str], float]) -> Rule:
    """Running sums, products and maxima: the result of every iteration, and the running value beside it."""

    def rule(builder: Builder, op: ScanOp, x: Array) -> Array:
        kept = affine_map(x.rank, [dim(d) for d in range(x.rank) if d != op.axis])
        sizes = [size for d, size in enumerate(x.shape) if d != op.axis]
        running = builder.filled(sizes, x.dtype, start(x.dtype))
        writes = [Read(builder.empty(x.shape, x.dtype), identity(x.rank)), Read(running, kept)]

        def body(element: Scalar, _old: Scalar, so_far: Scalar) -> Sequence[Scalar]:
            new = combine(so_far, element)
            return (so_far if op.exclusive else new), new

        # from the end: the loop runs forward over x turned round, and its result is turned back
        places = _turned(x, op.axis) if op.reverse else identity(x.rank)
        scanned = builder.loops(x.rank, [op.axis], [Read(x, places)], writes, body)[0]
        if not op.reverse:
            return scanned
        return builder.parallel(x.shape, [Read(scanned, places)], x.dtype, same)

    return rule


def _turned(x: Array, axis: int) -> AffineMap:
    """Dimension `axis` from its end."""
    return affine_map(x.rank, [dim(d) * -1 + (n - 1) if d == axis else dim(d) for d, n in enumerate(x.shape)])


_REDUCTIONS: dict[str, tuple[Callable[[Scalar, Scalar], Scalar], Callable[[str], float]]] = {
    "ADD": (lambda element, total: total + element, lambda _dtype: 0),
    "MUL": (lambda element, total: total * element, lambda _dtype: 1),
    "MAX": (lambda element, total: total.max(element), lowest),
    "MIN": (lambda element, total: total.min(element), highest),
    "AND": (lambda element, total: total & element, lambda dtype: 1 if dtype == "bool" else -1),
    "OR": (lambda element, total: total | element, lambda _dtype: 0),
}
"""reduce_kind -> how to combine, and the value to start from."""


def l2_norm(builder: Builder, _op: CirhOp, *xs: Array) -> Array:
    """The root of the sum of all squares."""
    sums = []
    for x in xs:
        squares = builder.pointwise([x], "float32", lambda value: value.to("float32") * value.to("float32"))
        sums.append(sum_of(builder, squares, range(x.rank)))
    return builder.pointwise(sums, "float32", lambda first, *rest: sum(rest, start=first).apply("sqrt"))


RULES: dict[type[CirhOp], Rule] = {
    ops.ReduceOp: reduce,
    ops.ArgMaxOp: argmax,
    ops.CumSumOp: scan(lambda total, element: total + element, lambda _dtype: 0),
    ops.CumProdOp: scan(lambda total, element: total * element, lambda _dtype: 1),
    ops.CumMaxOp: scan(lambda total, element: total.max(element), lowest),
    ops.L2NormOp: l2_norm,
}
