"""CIRH ops of another shape, as loop nests."""

from __future__ import annotations

from collections.abc import Sequence

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    BroadcastInDimOp,
    ConcatOp,
    PadOp,
    ReshapeOp,
    SplitOp,
    TransposeOp,
)
from cgc.cirh.types import shape_of
from cgc.lair.affine import dim, reshape_map
from cgc.lair.build import Array, Builder
from cgc.lair.structure import Rule, moved, moved_to, written


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


def split(builder: Builder, op: SplitOp, x: Array) -> Sequence[Array]:
    """Each piece from its begin on."""
    pieces, begin = [], 0
    for size, result in zip(op.sizes, op.results, strict=True):
        places = [dim(d) + begin if d == op.axis else dim(d) for d in range(x.rank)]
        pieces.append(moved_to(builder, shape_of(result), x, places))
        begin += size
    return pieces


RULES: dict[type[CirhOp], Rule] = {
    ops.ReshapeOp: reshape,
    ops.TransposeOp: transpose,
    ops.BroadcastInDimOp: broadcast_in_dim,
    ops.SplitOp: split,
    ops.PadOp: pad,
    ops.ConcatOp: concat,
}
