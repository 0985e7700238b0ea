"""Layer normalization as several loop nests; the formulas of `cgc.lowering`.

16-bit floats are computed in float32 and rounded at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir.affine import AffineMap

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    LayerNormOp,
)
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.build import Array, Body, Builder, Read
from cgc.lair.scalar import Scalar
from cgc.lair.structure import Rule, narrowed, sum_of, widened


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


def _moments_map(rank: int) -> AffineMap:
    """The place of a moment, whose last dimension has size 1."""
    return affine_map(rank, [*(dim(d) for d in range(rank - 1)), 0])


def _with_moments(builder: Builder, x: Array, moments: Sequence[Array], body: Body) -> Array:
    reads = [Read(x, identity(x.rank)), *(Read(moment, _moments_map(x.rank)) for moment in moments)]
    return builder.parallel(x.shape, reads, x.dtype, body)


RULES: dict[type[CirhOp], Rule] = {
    ops.LayerNormOp: layer_norm,
    ops.LayerNormGradOp: layer_norm_grad,
}
