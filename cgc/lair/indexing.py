"""Loop nests of ops that move elements, or pick them by position."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    BroadcastInDimOp,
    ConcatOp,
    GatherNdOp,
    GatherOp,
    MatrixBandPartOp,
    OneHotOp,
    PadOp,
    RepeatOp,
    ReshapeOp,
    SliceOp,
    SplitOp,
    StridedSliceGradOp,
    StridedSliceOp,
    TransposeOp,
    UnpadOp,
)
from cgc.cirh.types import shape_of
from cgc.lair.affine import affine_map, dim, identity, reshape_map
from cgc.lair.build import (
    Array,
    Builder,
    Read,
    Rule,
    Scalar,
    build_indexed,
    build_move,
    build_move_to,
    extract,
    loop_index,
    missing,
    write_part,
)


def reshape(builder: Builder, op: ReshapeOp, x: Array) -> Array:
    """Keep elements in row-major order."""
    return build_move(builder, op, x, reshape_map(x.shape, shape_of(op.result)).results)


def transpose(builder: Builder, op: TransposeOp, x: Array) -> Array:
    """Read dimension `permutation[i]` of x by loop i."""
    return build_move(builder, op, x, [dim(op.permutation.index(d)) for d in range(x.rank)])


def broadcast_in_dim(builder: Builder, op: BroadcastInDimOp, x: Array) -> Array:
    """Read dimensions of size 1 at 0."""
    places = zip(x.shape, op.broadcast_dimensions, strict=True)
    return build_move(builder, op, x, [0 if size == 1 else dim(d) for size, d in places])


def pad(builder: Builder, op: PadOp, x: Array, value: Array) -> Array:
    """Fill with the value, then write x over its part."""
    whole = builder.fill_from(shape_of(op.result), value)
    return write_part(builder, x, whole, [dim(d) + low for d, low in enumerate(op.low)])


def concat(builder: Builder, op: ConcatOp, *parts: Array) -> Array:
    """Write every part over its place."""
    whole = builder.empty(shape_of(op.result), parts[0].dtype)
    begin = 0
    for part in parts:
        places = [dim(d) + begin if d == op.axis else dim(d) for d in range(part.rank)]
        whole = write_part(builder, part, whole, places)
        begin += part.shape[op.axis]
    return whole


def split(builder: Builder, op: SplitOp, x: Array) -> Sequence[Array]:
    """Read each piece from its start."""
    pieces, begin = [], 0
    for size, result in zip(op.sizes, op.results, strict=True):
        places = [dim(d) + begin if d == op.axis else dim(d) for d in range(x.rank)]
        pieces.append(build_move_to(builder, shape_of(result), x, places))
        begin += size
    return pieces


def one_hot(builder: Builder, op: OneHotOp, indices: Array, on: Array, off: Array) -> Array:
    """Return `on` where the position is the index."""
    rank = len(shape_of(op.result))
    reads = [
        Read(indices, affine_map(rank, [dim(d) for d in range(rank) if d != op.axis])),
        Read(on, affine_map(rank, [])),
        Read(off, affine_map(rank, [])),
    ]

    def body(block: Block, index: Scalar, yes: Scalar, no: Scalar, *_old: Scalar) -> Scalar:
        position = loop_index(block, op.axis).to("int32")
        return position.compare("EQ", index.to("int32")).select(yes, no)

    return build_indexed(builder, op, reads, body)


def gather(builder: Builder, op: GatherOp, x: Array, indices: Array) -> Array:
    """Compute `x[.., index, ..]`; out of range NaN, or the most extreme integer."""
    axis, rank = op.axis, len(shape_of(op.result))
    read = Read(indices, affine_map(rank, [dim(axis + d) for d in range(indices.rank)]))

    def body(block: Block, index: Scalar, *_old: Scalar) -> Scalar:
        rest = [loop_index(block, d) for d in range(rank) if not axis <= d < axis + indices.rank]
        return _pick(block, x, rest[:axis], [index], rest[axis:])

    return build_indexed(builder, op, [read], body)


def gather_nd(builder: Builder, op: GatherNdOp, x: Array, indices: Array) -> Array:
    """Compute `x[index 0, index 1, .., rest]`; out of range as `gather`."""
    rank, depth, lead = len(shape_of(op.result)), indices.shape[-1], indices.rank - 1
    reads = [
        Read(indices, affine_map(rank, [*(dim(d) for d in range(lead)), number])) for number in range(depth)
    ]

    def body(block: Block, *values: Scalar) -> Scalar:
        rest = [loop_index(block, d) for d in range(lead, rank)]
        return _pick(block, x, [], values[:depth], rest)

    return build_indexed(builder, op, reads, body)


def _pick(
    block: Block, x: Array, before: Sequence[Scalar], indices: Sequence[Scalar], after: Sequence[Scalar]
) -> Scalar:
    """Read the element at computed indices, which may be out of range, between places that are not."""
    in_range: Scalar | None = None
    places = []
    for axis, index in enumerate(indices, len(before)):
        last = x.shape[axis] - 1
        places.append(index.max(0).min(last).to("index"))
        fits = index.compare("GE", 0) & index.compare("LE", last)
        in_range = fits if in_range is None else in_range & fits
    found = extract(block, x, [*before, *places, *after])
    return found if in_range is None else in_range.select(found, missing(x.dtype))


def strided_slice(builder: Builder, op: StridedSliceOp, x: Array) -> Array:
    """Compute `begin + stride * i` in every dimension."""
    places = [dim(d) * step + begin for d, (begin, step) in enumerate(zip(op.begin, op.strides, strict=True))]
    return build_move(builder, op, x, places)


def strided_slice_grad(builder: Builder, op: StridedSliceGradOp, grad: Array) -> Array:
    """Fill with zeros, then write the gradient at the places of the slice."""
    whole = builder.fill(shape_of(op.result), grad.dtype, 0)
    places = [dim(d) * step + begin for d, (begin, step) in enumerate(zip(op.begin, op.strides, strict=True))]
    return write_part(builder, grad, whole, places)


def unpad(builder: Builder, op: UnpadOp, x: Array) -> Array:
    """Read from `low` on."""
    return build_move(builder, op, x, [dim(d) + low for d, low in enumerate(op.low)])


def repeat(builder: Builder, op: RepeatOp, x: Array) -> Array:
    """Read place `i / repeats` of x for place i of the result."""
    return build_move(
        builder, op, x, [dim(d) // op.repeats if d == op.axis else dim(d) for d in range(x.rank)]
    )


def matrix_band_part(builder: Builder, op: MatrixBandPartOp, x: Array) -> Array:
    """Set elements to zero where the row is too far from the column."""
    largest = max(x.shape[-2:])

    def body(block: Block, element: Scalar, *_old: Scalar) -> Scalar:
        row, column = (loop_index(block, x.rank - 2 + d).to("int32") for d in (0, 1))
        if 0 <= op.num_lower < largest:
            element = (row - column).compare("LE", op.num_lower).select(element, 0)
        if 0 <= op.num_upper < largest:
            element = (column - row).compare("LE", op.num_upper).select(element, 0)
        return element

    return build_indexed(builder, op, [Read(x, identity(x.rank))], body)


def slice_(builder: Builder, op: SliceOp, x: Array) -> Array:
    """Compute `start + stride * i` in every dimension."""
    bounds = zip(op.start_indices, op.strides, strict=True)
    return build_move(builder, op, x, [dim(d) * stride + start for d, (start, stride) in enumerate(bounds)])


RULES: dict[type[CirhOp], Rule] = {
    ops.ReshapeOp: reshape,
    ops.TransposeOp: transpose,
    ops.BroadcastInDimOp: broadcast_in_dim,
    ops.SplitOp: split,
    ops.PadOp: pad,
    ops.ConcatOp: concat,
    ops.OneHotOp: one_hot,
    ops.GatherOp: gather,
    ops.GatherNdOp: gather_nd,
    ops.StridedSliceOp: strided_slice,
    ops.StridedSliceGradOp: strided_slice_grad,
    ops.UnpadOp: unpad,
    ops.SliceOp: slice_,
    ops.RepeatOp: repeat,
    ops.MatrixBandPartOp: matrix_band_part,
}
