"""Ops that take or place elements by position."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import gather, gather_nd
from cgc.importers.composed.slices import Slicing, spread_slices, take_slices
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow import slicing
from cgc.importers.tensorflow.node import NodeContext, Table


def _slice(node: NodeContext) -> SSAValue:
    x = node.x(0)
    shape = shape_of(x)
    begin, size = node.ints(1, "begin"), node.ints(2, "size")
    limit = [
        whole if count < 0 else start + count for whole, start, count in zip(shape, begin, size, strict=True)
    ]
    return node.emit.slice(x, begin, limit, [1] * len(shape))


def resolve_slices(node: NodeContext, shape: Sequence[int], begin_at: int) -> Slicing:
    """What the inputs begin, end and strides, from `begin_at` on, and the masks take of a shape."""
    begin, end, strides = (
        node.ints(begin_at + i, what) for i, what in enumerate(("begin", "end", "strides"))
    )
    masks = {name: int(node.attr(name)) for name in slicing.MASKS}
    try:
        return slicing.resolve(shape, begin, end, strides, masks)
    except IndexError as error:
        raise RefusedError(Kind.SHAPE, f"slice of a tensor of shape {list(shape)}: {error}") from None


def _strided_slice(node: NodeContext) -> SSAValue:
    x = node.x(0)
    return take_slices(node.emit, x, resolve_slices(node, shape_of(x), 1))


def _strided_slice_grad(node: NodeContext) -> SSAValue:
    """The gradient of a slice: its elements back in their places, zero elsewhere."""
    shape = node.ints(0, "shape")
    return spread_slices(node.emit, node.x(4), resolve_slices(node, shape, 1), shape)


def _gather(node: NodeContext) -> SSAValue:
    return node.emit.take(node.x(0), node.x(1), 0)


def _gather_v2(node: NodeContext) -> SSAValue:
    x, indices = node.x(0), node.x(1)
    axis = node.axis(2, "axis", len(shape_of(x)))
    batch_dims = node.attr("batch_dims") % (len(shape_of(indices)) + 1)
    return gather(node.emit, x, indices, axis, batch_dims)


def _one_hot(node: NodeContext) -> SSAValue:
    (depth,) = node.ints(1, "depth")
    indices, on, off = node.x(0), node.x(2), node.x(3)
    axis = node.attr("axis")
    rank = len(shape_of(indices))
    return node.emit.emit(ops.OneHotOp(indices, on, off, depth, rank if axis < 0 else axis))


def _band_part(node: NodeContext) -> SSAValue:
    (lower,), (upper,) = node.ints(1, "num_lower"), node.ints(2, "num_upper")
    return node.emit.emit(ops.MatrixBandPartOp(node.x(0), lower, upper))


def _gather_nd(node: NodeContext) -> SSAValue:
    return gather_nd(node.emit, node.x(0), node.x(1))


def _resource_gather_nd(node: NodeContext) -> SSAValue:
    return gather_nd(node.emit, node.read(), node.x(1))


TABLE: Table = {
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "StridedSliceGrad": _strided_slice_grad,
    "Gather": _gather,
    "GatherV2": _gather_v2,
    "OneHot": _one_hot,
    "MatrixBandPart": _band_part,
    "GatherNd": _gather_nd,
    "ResourceGatherNd": _resource_gather_nd,
}
