"""Ops that read or replace elements by position: slices, rows, diagonals, sparse tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.indexing import INDEX_DTYPES
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import (
    Slicing,
    flatten_indices,
    gather,
    gather_nd,
    scatter_rows,
    spread_slices,
    take_slices,
)
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.tensorflow.constant_folding import MASKS, resolve_slice
from cgc.importers.tensorflow.node import Handler, NodeContext, PaddedRows, Table, Value
from cgc.importers.tensorflow.origin import CHOOSE


def _slice(node: NodeContext) -> SSAValue:
    x = node.x(0)
    shape = shape_of(x)
    begin, size = node.ints(1, "begin"), node.ints(2, "size")
    limit = [
        whole if count < 0 else start + count for whole, start, count in zip(shape, begin, size, strict=True)
    ]
    return node.emit.slice(x, begin, limit, [1] * len(shape))


def resolve_slices(node: NodeContext, shape: Sequence[int], begin_at: int) -> Slicing:
    """Resolve the inputs begin, end and strides, from `begin_at` on, and the masks for a shape."""
    begin, end, strides = (
        node.ints(begin_at + i, what) for i, what in enumerate(("begin", "end", "strides"))
    )
    masks = {name: int(node.attr(name)) for name in MASKS}
    try:
        return resolve_slice(shape, begin, end, strides, masks)
    except IndexError as error:
        raise RefusedError(Kind.SHAPE, f"slice of a tensor of shape {list(shape)}: {error}") from None


def _strided_slice(node: NodeContext) -> SSAValue:
    x = node.x(0)
    return take_slices(node.emit, x, resolve_slices(node, shape_of(x), 1))


def _strided_slice_grad(node: NodeContext) -> SSAValue:
    """Return the gradient of a slice: its elements back in their places, zero elsewhere."""
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


def _scatter_nd(node: NodeContext) -> SSAValue:
    """Update added into zeros."""
    e, shape = node.emit, node.ints(2, "shape")
    rows = flatten_indices(e, node.x(0), shape)
    return e.reshape(scatter_rows(e, rows.numbers, e.reshape(node.x(1), rows.updates), rows.table), shape)


def _scatter_updates(e: Emitter, x: SSAValue, indices: SSAValue, updates: SSAValue, kind: str) -> SSAValue:
    """Return a tensor with updates that replace its elements (SET) or are combined with them."""
    shape = shape_of(x)
    rows = flatten_indices(e, indices, shape)
    wide = e.broadcast(updates, (*rows.batch, *rows.table[1:]))
    table, updates = e.reshape(x, rows.table), e.reshape(wide, rows.updates)
    return e.reshape(e.emit(ops.ScatterOp(table, rows.numbers, updates, kind)), shape)


def _tensor_scatter(kind: str, *, negate: bool = False) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e, (x, indices, updates) = node.emit, node.all()
        return _scatter_updates(e, x, indices, e.unary(ops.NegOp, updates) if negate else updates, kind)

    return handler


def _resource_scatter(kind: str, *, negate: bool = False) -> Handler:
    def handler(node: NodeContext) -> None:
        e, updates = node.emit, node.x(2)
        updates = e.unary(ops.NegOp, updates) if negate else updates
        node.write(0, _scatter_updates(e, node.read(), node.x(1), updates, kind))

    return handler


def _unique(node: NodeContext) -> tuple[Value, Value]:
    """Return the distinct values, padded to the number of values, and the position of each value."""
    x = node.x(0)
    if dtype_of(x) not in INDEX_DTYPES or len(shape_of(x)) != 1:
        raise RefusedError(
            Kind.USAGE,
            f"it is applied to {dtype_of(x)}{list(shape_of(x))}, expected int32 or int64 of rank 1",
        )
    values, places = node.emit.emit_all(ops.UniqueOp(x, node.out_dtype(1)))
    return PaddedRows(values, values), places


def _unsorted_segment_sum(node: NodeContext) -> SSAValue:
    e, data, ids = node.emit, node.x(0), node.x(1)
    (count,) = node.ints(2, "number of segments")
    return scatter_rows(e, ids, data, (count, *shape_of(data)[len(shape_of(ids)) :]))


def _dynamic_stitch(node: NodeContext) -> SSAValue:
    """Merge rows of several tensors, each at the position of its index; the last of two at one position."""
    e, count = node.emit, len(node.inputs) // 2
    rows: list[SSAValue] = []
    places: list[int] = []
    for position in range(count):
        indices = node.static(position, "indices")
        data = node.x(count + position)
        rest = shape_of(data)[indices.ndim :]
        rows.append(e.reshape(data, (indices.size, *rest)))
        places += indices.reshape(-1).tolist()
    source = np.zeros(max(places) + 1, np.int32)
    source[places] = np.arange(len(places))
    joined = rows[0] if count == 1 else e.emit(ops.ConcatOp(rows, 0))
    return e.take(joined, e.constant(source), 0)


def _dynamic_partition(node: NodeContext) -> list[SSAValue]:
    """Return the rows of each number, in their order."""
    e, x, count = node.emit, node.x(0), int(node.attr("num_partitions"))
    numbers = node.constant(1)
    if numbers is None:
        raise RefusedError(
            Kind.SHAPE,
            "the number of rows of each part depends on the data",
            CHOOSE,
        )
    rows = e.reshape(x, (numbers.size, *shape_of(x)[numbers.ndim :]))
    places = [np.flatnonzero(numbers.reshape(-1) == part).astype(np.int32) for part in range(count)]
    return [e.take(rows, e.constant(place), 0) for place in places]


def _reverse_sequence(node: NodeContext) -> SSAValue:
    """Return the first `length` elements of every sequence in reverse order, the others as they are."""
    e, x, lengths = node.emit, node.x(0), node.x(1)
    batch, sequence = node.attr("batch_dim"), node.attr("seq_dim")
    rest = [axis for axis in range(len(shape_of(x))) if axis not in (batch, sequence)]
    order = [batch, sequence, *rest]
    steps = e.constant(np.arange(shape_of(x)[sequence], dtype=np.int32))
    length = e.reshape(e.cast(lengths, "int32"), (-1, 1))
    mirrored = e.sub(e.sub(length, e.scalar(1, "int32")), steps)
    places = e.select(e.compare("LT", steps, length), mirrored, steps)
    reversed_ = gather(e, e.transpose(x, order), places, axis=1, batch_dims=1)
    return e.transpose(reversed_, [order.index(axis) for axis in range(len(order))])


def _replace_slice(node: NodeContext, x: SSAValue, value: SSAValue) -> SSAValue:
    """Return a tensor with a value in the place of a slice of it; the inputs from 1 on say which."""
    e, shape = node.emit, shape_of(x)
    found = resolve_slices(node, shape, 1)
    whole = e.broadcast(value, found.shape)
    inside = np.zeros(shape, np.bool_)
    if math.prod(found.kept_shape):
        inside[np.ix_(*(axis.indices for axis in found.axes))] = True
    return e.select(e.constant(inside), spread_slices(e, whole, found, shape), x)


def _assign_slice(node: NodeContext) -> None:
    node.write(0, _replace_slice(node, node.read(), node.x(4)))


def _update_slice(node: NodeContext) -> SSAValue:
    return _replace_slice(node, node.x(0), node.x(4))


def _diag(node: NodeContext) -> SSAValue:
    """Return a matrix with the given diagonal, zero (MatrixDiagV3: a given value) elsewhere."""
    e, diagonal = node.emit, node.x(0)
    size = shape_of(diagonal)[-1]
    rows = columns = size
    filler = e.scalar(0, dtype_of(diagonal))
    if len(node.inputs) > 1:
        _require_main_diagonal(node, 1)
        (rows,), (columns,) = node.ints(2, "num_rows"), node.ints(3, "num_cols")
        rows, columns, filler = max(rows, size), max(columns, size), node.x(4)
    wide = _wider(e, diagonal, columns)
    return e.select(_on_diagonal(e, rows, columns), _as_columns(e, wide), filler)


def _diag_part(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x(0)
    if len(node.inputs) > 1:
        _require_main_diagonal(node, 1)
    rows, columns = shape_of(x)[-2:]
    kept = e.select(_on_diagonal(e, rows, columns), x, e.scalar(0, dtype_of(x)))
    total = e.reduce("ADD", kept, (len(shape_of(x)) - 1,))
    if rows <= columns:
        return total
    limit = (*shape_of(x)[:-2], columns)
    return e.slice(total, (0,) * len(limit), limit, (1,) * len(limit))


def _tensor_diag_part(node: NodeContext) -> SSAValue:
    """Return the diagonal of a matrix."""
    shape = node.shape(0)
    if len(shape) != 2:
        raise RefusedError(Kind.USAGE, f"its input has shape {list(shape)}, expected a matrix")
    return _diag_part(node)


def _set_diag(node: NodeContext) -> SSAValue:
    e, x, diagonal = node.emit, node.x(0), node.x(1)
    if len(node.inputs) > 2:
        _require_main_diagonal(node, 2)
    rows, columns = shape_of(x)[-2:]
    return e.select(_on_diagonal(e, rows, columns), _as_columns(e, _wider(e, diagonal, columns)), x)


def _wider(e: Emitter, diagonal: SSAValue, columns: int) -> SSAValue:
    """Return the diagonal with zeros after it, up to `columns` elements."""
    *leading, size = shape_of(diagonal)
    none = (0,) * len(leading)
    return e.pad(diagonal, (*none, 0), (*none, columns - size))


def _as_columns(e: Emitter, diagonal: SSAValue) -> SSAValue:
    """Return [..., n] as [..., 1, n]: element i is in every row of column i."""
    shape = shape_of(diagonal)
    return e.reshape(diagonal, (*shape[:-1], 1, shape[-1]))


def _on_diagonal(e: Emitter, rows: int, columns: int) -> SSAValue:
    """Return a condition [rows, columns], true where both positions are the same."""
    row, column = (e.emit(ops.ArangeOp(size, 0, 1, "int32")) for size in (rows, columns))
    return e.compare("EQ", e.reshape(row, (rows, 1)), e.reshape(column, (1, columns)))


def _require_main_diagonal(node: NodeContext, position: int) -> None:
    offsets = node.ints(position, "k")
    if any(offsets):
        raise RefusedError(Kind.USAGE, f"its diagonals k are {offsets}, expected the main diagonal, 0")


def _to_dense(node: NodeContext) -> SSAValue:
    """Import SparseToDense of (places, shape, values, default)."""
    e, shape = node.emit, tuple(node.ints(1, "shape"))
    places = node.static(0, "indices").reshape(-1, max(1, len(shape)))
    values, default = node.x(2), node.x(3)
    numbers = e.constant(np.asarray(np.ravel_multi_index(tuple(places.T), shape), np.int32))
    table = e.broadcast(default, (math.prod(shape),))
    updates = e.broadcast(values, (len(places),))
    return e.reshape(e.emit(ops.ScatterOp(table, numbers, updates, "SET")), shape)


def _matmul(node: NodeContext) -> SSAValue:
    """Import SparseTensorDenseMatMul of (places, values, shape of the sparse matrix, dense matrix)."""
    e, places = node.emit, node.static(0, "indices").astype(np.int32)
    rows, columns = places[:, 0], places[:, 1]
    height, width = node.ints(2, "shape")
    if node.attr("adjoint_a"):
        rows, columns, height = columns, rows, width
    dense = node.x(3)
    if node.attr("adjoint_b"):
        dense = e.transpose(dense, (1, 0))
    taken = e.take(dense, e.constant(columns), 0)
    terms = e.mul(taken, e.reshape(node.x(1), (len(places), 1)))
    return scatter_rows(e, e.constant(rows), terms, (height, shape_of(dense)[1]))


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
    "ScatterNd": _scatter_nd,
    "TensorScatterUpdate": _tensor_scatter("SET"),
    "TensorScatterAdd": _tensor_scatter("ADD"),
    "TensorScatterSub": _tensor_scatter("ADD", negate=True),
    "TensorScatterMax": _tensor_scatter("MAX"),
    "TensorScatterMin": _tensor_scatter("MIN"),
    "ResourceScatterNdMax": _resource_scatter("MAX"),
    "ResourceScatterNdMin": _resource_scatter("MIN"),
    "ResourceScatterNdUpdate": _resource_scatter("SET"),
    "ResourceScatterNdAdd": _resource_scatter("ADD"),
    "ResourceScatterNdSub": _resource_scatter("ADD", negate=True),
    "Unique": _unique,
    "UnsortedSegmentSum": _unsorted_segment_sum,
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), _dynamic_stitch),
    "DynamicPartition": _dynamic_partition,
    "ReverseSequence": _reverse_sequence,
    "ResourceStridedSliceAssign": _assign_slice,
    "TensorStridedSliceUpdate": _update_slice,
    **dict.fromkeys(("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3"), _diag),
    **dict.fromkeys(("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3"), _diag_part),
    "DiagPart": _tensor_diag_part,
    **dict.fromkeys(("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"), _set_diag),
    "SparseToDense": _to_dense,
    "SparseTensorDenseMatMul": _matmul,
}
