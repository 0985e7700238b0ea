"""Matrix products and biases as loop nests."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir.affine import AffineExpr

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    BiasAddOp,
    DotGeneralOp,
    MatMulOp,
    ReduceBiasOp,
)
from cgc.cirh.types import shape_of
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.build import Array, Builder, Read
from cgc.lair.scalar import FLOAT_NAMES, Scalar
from cgc.lair.structure import Rule, narrowed, sum_of


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


RULES: dict[type[CirhOp], Rule] = {
    ops.BiasAddOp: bias_add,
    ops.BiasAddGradOp: bias_add_grad,
    ops.ReduceBiasOp: reduce_bias,
    ops.MatMulOp: matmul,
    ops.DotGeneralOp: dot_general,
}
