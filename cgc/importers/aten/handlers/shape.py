"""Constants, and ops that view, join, cut and rearrange tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.decompositions.indexing import repeat, reverse, roll, slice_axis
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter


def _fill_with(value: float) -> Handler:
    return lambda node: node.emit.full(value, node.shape, node.dtype)


def _full(node: NodeContext) -> SSAValue:
    return node.emit.full(node.arg("fill_value"), node.shape, node.dtype)


def _fill(node: NodeContext) -> SSAValue:
    return node.emit.broadcast(node.cast("value"), node.shape)


def _scalar(node: NodeContext) -> SSAValue:
    return node.emit.scalar(node.arg("s"), node.dtype)


def _arange(node: NodeContext) -> SSAValue:
    start, step = node.arg("start", 0), node.arg("step", 1)
    if isinstance(start, int) and isinstance(step, int):
        return node.emit.emit(ops.ArangeOp(node.shape[0], start, step, node.dtype))
    return node.emit.constant((start + step * np.arange(node.shape[0])).astype(node.dtype))


def _eye(node: NodeContext) -> SSAValue:
    rows, columns = node.shape
    return node.emit.constant(np.eye(rows, columns, dtype=node.dtype))


def _linspace(node: NodeContext) -> SSAValue:
    values = np.linspace(node.arg("start"), node.arg("end"), node.shape[0])
    return node.emit.constant(values.astype(node.dtype))


def _view(node: NodeContext) -> SSAValue:
    return node.emit.reshape(node.x(), node.shape)


def _transpose_matrix(node: NodeContext) -> SSAValue:
    """Transpose a matrix; a vector stays as it is."""
    rank = len(node.shape)
    return node.x() if rank < 2 else node.emit.transpose(node.x(), (1, 0))


def _transpose(node: NodeContext) -> SSAValue:
    order = list(range(len(node.shape)))
    if order:
        first, second = (node.positive(node.arg(name), len(order)) for name in ("dim0", "dim1"))
        order[first], order[second] = order[second], order[first]
    return node.emit.transpose(node.x(), order)


def _permute(node: NodeContext) -> SSAValue:
    rank = len(node.shape)
    return node.emit.transpose(node.x(), [node.positive(axis, rank) for axis in node.arg("dims")])


def _expand(node: NodeContext) -> SSAValue:
    return node.emit.broadcast(node.x(), node.shape)


def _cat(node: NodeContext) -> SSAValue:
    """Concatenate; tensors of shape [0] are left out, as in ATen."""
    e = node.emit
    parts = [e.cast(x, node.dtype) for x in node.xs("tensors") if shape_of(x) != (0,)]
    axis = node.positive(node.arg("dim", 0), len(node.shape))
    return parts[0] if len(parts) == 1 else e.emit(ops.ConcatOp(parts, axis))


def _stack(node: NodeContext) -> SSAValue:
    e, axis = node.emit, node.positive(node.arg("dim", 0), len(node.shape))
    parts = []
    for x in node.xs("tensors"):
        shape = shape_of(x)
        parts.append(e.cast(e.reshape(x, (*shape[:axis], 1, *shape[axis:])), node.dtype))
    return parts[0] if len(parts) == 1 else e.emit(ops.ConcatOp(parts, axis))


def _bounds(node: NodeContext, size: int) -> tuple[int, int, int]:
    """Return start, end and step of a slice, within the axis."""
    start, end = node.arg("start"), node.arg("end")
    start, end, step = slice(start, end, node.arg("step", 1)).indices(size)
    return start, max(start, end), step


def _slice(node: NodeContext) -> SSAValue:
    x, axis = node.x(), node.axis()
    return slice_axis(node.emit, x, axis, *_bounds(node, shape_of(x)[axis]))


def _select(node: NodeContext) -> SSAValue:
    e, x, axis = node.emit, node.x(), node.axis()
    index = node.positive(node.arg("index"), shape_of(x)[axis])
    return e.reshape(slice_axis(e, x, axis, index, index + 1), node.shape)


def _slice_scatter(node: NodeContext) -> SSAValue:
    x, axis = node.x(), node.axis()
    return _put(node.emit, x, node.cast("src"), axis, *_bounds(node, shape_of(x)[axis]))


def _select_scatter(node: NodeContext) -> SSAValue:
    e, x, axis = node.emit, node.x(), node.axis()
    shape = shape_of(x)
    index = node.positive(node.arg("index"), shape[axis])
    source = e.reshape(node.cast("src"), (*shape[:axis], 1, *shape[axis + 1 :]))
    return _put(e, x, source, axis, index, index + 1)


def _put(
    e: Emitter, x: SSAValue, source: SSAValue, axis: int, start: int, end: int, step: int = 1
) -> SSAValue:
    """Return x with a slice replaced by `source`."""
    size = shape_of(x)[axis]
    if step != 1:
        order = [axis, *(i for i in range(len(shape_of(x))) if i != axis)]
        rows = e.constant(np.arange(start, end, step, dtype=np.int32))
        moved = ops.ScatterOp(e.transpose(x, order), rows, e.transpose(source, order), "SET")
        return e.transpose(e.emit(moved), np.argsort(order).tolist())
    filling = x.owner
    if isinstance(filling, ops.BroadcastInDimOp) and not shape_of(filling.x):
        low, high = [0] * len(shape_of(x)), [0] * len(shape_of(x))
        low[axis], high[axis] = start, size - end
        return e.pad(source, low, high, filling.x)
    parts = [source]
    if start:
        parts.insert(0, slice_axis(e, x, axis, 0, start))
    if end < size:
        parts.append(slice_axis(e, x, axis, end, size))
    return source if len(parts) == 1 else e.emit(ops.ConcatOp(parts, axis))


def _split(node: NodeContext) -> Sequence[SSAValue]:
    axis = node.axis()
    sizes = [tensor.shape[axis] for tensor in node.node.results if tensor is not None]
    return node.emit.emit_all(ops.SplitOp(node.x(), sizes, axis))


def _unbind(node: NodeContext) -> Sequence[SSAValue]:
    e, x, axis = node.emit, node.x(), node.axis()
    parts = e.emit_all(ops.SplitOp(x, [1] * shape_of(x)[axis], axis))
    return [e.reshape(part, node.shape) for part in parts]


def _flip(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x()
    for axis in node.arg("dims"):
        x = reverse(e, x, node.positive(axis, len(node.shape)))
    return x


def _roll(node: NodeContext) -> SSAValue:
    e, x, dims = node.emit, node.x(), node.arg("dims") or []
    shape = shape_of(x)
    if not dims:
        x, dims = e.reshape(x, (-1,)), [0]
    for shift, axis in zip(node.arg("shifts"), dims, strict=True):
        x = roll(e, x, shift, axis % len(shape_of(x)))
    return e.reshape(x, shape)


def _repeat(node: NodeContext) -> SSAValue:
    e, x, times = node.emit, node.x(), node.arg("repeats")
    missing = len(times) - len(shape_of(x))
    return repeat(e, e.reshape(x, (*(1,) * missing, *shape_of(x))), times)


def _constant_pad(node: NodeContext) -> SSAValue:
    """Pad by `pad`: before and after, from the last axis backwards; a negative number cuts."""
    e, x, pad = node.emit, node.x(), node.arg("pad")
    rank = len(node.shape)
    low, high = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    sizes = shape_of(x)
    starts = [max(0, -n) for n in low]
    ends = [size - max(0, -n) for size, n in zip(sizes, high, strict=True)]
    x = e.slice(x, starts, ends, [1] * rank)
    filler = e.scalar(node.arg("value", 0), node.dtype)
    return e.pad(x, [max(0, n) for n in low], [max(0, n) for n in high], filler)


def _flat_places(node: NodeContext, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Return the positions of the elements of an as_strided view in a contiguous tensor."""
    sizes, strides = node.arg("size"), node.arg("stride")
    places = np.full([1] * len(sizes), node.arg("storage_offset") or 0, np.int64)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        shape = [1] * len(sizes)
        shape[axis] = size
        places = places + (np.arange(size) * stride).reshape(shape)
    if places.size and (places.min() < 0 or places.max() >= count):
        raise RefusedError(Kind.USAGE, f"reaches element {places.max()} of {count}")
    return places.astype(np.int32)


def _as_strided(node: NodeContext) -> SSAValue:
    e, flat = node.emit, node.emit.reshape(node.x(), (-1,))
    places = _flat_places(node, shape_of(flat)[0])
    return e.reshape(e.take(flat, e.constant(places.reshape(-1)), 0), node.shape)


def _as_strided_scatter(node: NodeContext) -> SSAValue:
    e, flat = node.emit, node.emit.reshape(node.x(), (-1,))
    places = _flat_places(node, shape_of(flat)[0])
    source = e.reshape(node.cast("src"), (-1,))
    return e.reshape(_set(e, flat, places.reshape(-1), source), node.shape)


def _set(
    e: Emitter, flat: SSAValue, places: np.ndarray[tuple[int, ...], np.dtype[np.int32]], source: SSAValue
) -> SSAValue:
    return e.emit(ops.ScatterOp(flat, e.constant(places), source, "SET"))


def _diagonal_places(
    node: NodeContext, shape: Sequence[int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    places = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    return np.diagonal(places, node.arg("offset", 0), node.arg("dim1", 0), node.arg("dim2", 1)).reshape(-1)


def _diagonal(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x()
    places = _diagonal_places(node, shape_of(x))
    return e.reshape(e.take(e.reshape(x, (-1,)), e.constant(places.copy()), 0), node.shape)


def _diagonal_scatter(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x()
    places = _diagonal_places(node, shape_of(x)).copy()
    source = e.reshape(node.cast("src"), (-1,))
    return e.reshape(_set(e, e.reshape(x, (-1,)), places, source), node.shape)


def _band(lower: bool) -> Handler:
    """Keep the elements on one side of a diagonal (tril and triu), zeros elsewhere."""

    def handler(node: NodeContext) -> SSAValue:
        e, x, diagonal = node.emit, node.x(), node.arg("diagonal", 0)
        rows, columns = node.shape[-2:]
        mask = e.lower_triangle(rows, columns, diagonal if lower else diagonal - 1)
        return e.select(mask, *((x, e.like(0, x)) if lower else (e.like(0, x), x)))

    return handler


_RESHAPED = (
    "view.default",
    "_unsafe_view.default",
    "reshape.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
    "view_copy.default",
    "_reshape_copy.default",
)


TABLE: Table = {
    **{
        f"aten.{name}.default": _fill_with(value)
        for start, value in (("zeros", 0), ("ones", 1), ("empty", 0))
        for name in (f"{start}_like", f"new_{start}")
    },
    "aten.zeros.default": _fill_with(0),
    "aten.ones.default": _fill_with(1),
    "aten.zero.default": _fill_with(0),
    "aten.empty.memory_format": _fill_with(0),
    "aten.empty_permuted.default": _fill_with(0),
    "aten.empty_strided.default": _fill_with(0),
    "aten.new_empty_strided.default": _fill_with(0),
    "aten.full.default": _full,
    "aten.full_like.default": _full,
    "aten.new_full.default": _full,
    "aten.fill.Scalar": _fill,
    "aten.fill.Tensor": _fill,
    "aten.scalar_tensor.default": _scalar,
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
    "aten.linspace.default": _linspace,
    **{f"aten.{name}": _view for name in _RESHAPED},
    "aten.t.default": _transpose_matrix,
    "aten.transpose.int": _transpose,
    "aten.permute.default": _permute,
    "aten.expand.default": _expand,
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.unbind.int": _unbind,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.repeat.default": _repeat,
    "aten.constant_pad_nd.default": _constant_pad,
    "aten.as_strided.default": _as_strided,
    "aten.as_strided_scatter.default": _as_strided_scatter,
    "aten.diagonal.default": _diagonal,
    "aten.diagonal_scatter.default": _diagonal_scatter,
    "aten.tril.default": _band(lower=True),
    "aten.triu.default": _band(lower=False),
}
