"""Constants, shapes as values, and ops that rearrange, join, cut, pad or repeat tensors."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import cut, repeat, reverse, roll
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Array
from cgc.importers.tensorflow.node import NodeContext, Table


def _const(node: NodeContext) -> Array:
    array: Array = tf.make_ndarray(node.attr("value"))
    return array


def _range(node: NodeContext) -> SSAValue:
    """Return a range that is too long to be folded."""
    start, limit, step = (node.static(i, what) for i, what in enumerate(("start", "limit", "delta")))
    values = np.arange(start.item(), limit.item(), step.item(), dtype=start.dtype)
    if start.dtype.kind not in "iu":
        return node.emit.constant(values)
    return node.emit.emit(ops.ArangeOp(len(values), int(start), int(step), node.out_dtype()))


def _as_output(node: NodeContext, value: object, position: int = 0) -> Array:
    return np.asarray(value, node.op.outputs[position].dtype.as_numpy_dtype)


def _shape(node: NodeContext) -> Array:
    return _as_output(node, node.shape(0))


def _shape_n(node: NodeContext) -> list[Array]:
    return [_as_output(node, node.shape(i), i) for i in range(len(node.inputs))]


def _size(node: NodeContext) -> Array:
    return _as_output(node, math.prod(node.shape(0)))


def _rank(node: NodeContext) -> Array:
    return _as_output(node, len(node.shape(0)))


def _reshape(node: NodeContext) -> SSAValue:
    return node.emit.reshape(node.x(0), node.ints(1, "shape"))


def _expand_dims(node: NodeContext) -> SSAValue:
    x = node.x(0)
    shape = list(shape_of(x))
    shape.insert(node.axis(1, "axis", len(shape) + 1), 1)
    return node.emit.reshape(x, shape)


def _squeeze(node: NodeContext) -> SSAValue:
    x = node.x(0)
    shape = shape_of(x)
    axes = {axis % len(shape) for axis in node.attr("squeeze_dims")}
    axes = axes or {axis for axis, size in enumerate(shape) if size == 1}
    return node.emit.reshape(x, [size for axis, size in enumerate(shape) if axis not in axes])


def _transpose(node: NodeContext) -> SSAValue:
    return node.emit.transpose(node.x(0), node.ints(1, "permutation"))


def _concat(node: NodeContext) -> SSAValue:
    """Import ConcatV2: the axis is the last input."""
    return _join(node, node.all(0, -1), len(node.inputs) - 1)


def _concat_v1(node: NodeContext) -> SSAValue:
    return _join(node, node.all(1), 0)


def _join(node: NodeContext, parts: list[SSAValue], axis_at: int) -> SSAValue:
    axis = node.axis(axis_at, "axis", len(shape_of(parts[0])))
    return parts[0] if len(parts) == 1 else node.emit.emit(ops.ConcatOp(parts, axis))


def _pack(node: NodeContext) -> SSAValue:
    """tf.stack: a new axis on each part, then joined along it."""
    e, parts = node.emit, node.all()
    shape = shape_of(parts[0])
    axis = node.attr("axis")
    axis += len(shape) + 1 if axis < 0 else 0
    rows = [e.reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts]
    return rows[0] if len(rows) == 1 else e.emit(ops.ConcatOp(rows, axis))


def _unpack(node: NodeContext) -> list[SSAValue]:
    """tf.unstack: slices of size 1 along the axis, which then goes."""
    e, x = node.emit, node.x(0)
    shape = shape_of(x)
    axis = node.attr("axis") % len(shape)
    rest = (*shape[:axis], *shape[axis + 1 :])
    return [e.reshape(part, rest) for part in cut(e, x, axis, [1] * shape[axis])]


def _split(node: NodeContext) -> list[SSAValue]:
    x = node.x(1)
    axis = node.axis(0, "axis", len(shape_of(x)))
    count = node.attr("num_split")
    return cut(node.emit, x, axis, [shape_of(x)[axis] // count] * count)


def _split_v(node: NodeContext) -> list[SSAValue]:
    x, sizes = node.x(0), node.ints(1, "sizes")
    axis = node.axis(2, "axis", len(shape_of(x)))
    rest = shape_of(x)[axis] - sum(size for size in sizes if size >= 0)
    return cut(node.emit, x, axis, [rest if size < 0 else size for size in sizes])


def _pad(node: NodeContext) -> SSAValue:
    amounts = node.static(1, "paddings").reshape(-1, 2).tolist()
    value = node.x(2) if len(node.inputs) > 2 else None
    return node.emit.pad(node.x(0), [a for a, _ in amounts], [b for _, b in amounts], value)


def _fill(node: NodeContext) -> SSAValue:
    return node.emit.broadcast(node.x(1), node.ints(0, "dims"))


def _empty(node: NodeContext) -> SSAValue:
    """Return a tensor that is filled later; until then zero, which `init` asks for."""
    return node.emit.full(0, tuple(node.ints(0, "shape")), node.out_dtype())


def _broadcast_to(node: NodeContext) -> SSAValue:
    return node.emit.broadcast(node.x(0), node.ints(1, "shape"))


def _tile(node: NodeContext) -> SSAValue:
    return repeat(node.emit, node.x(0), node.ints(1, "multiples"))


def _reverse(node: NodeContext) -> SSAValue:
    x = node.x(0)
    for axis in node.ints(1, "axis"):
        x = reverse(node.emit, x, axis)
    return x


def _roll(node: NodeContext) -> SSAValue:
    x = node.x(0)
    for shift, axis in zip(node.ints(1, "shift"), node.ints(2, "axis"), strict=True):
        x = roll(node.emit, x, shift, axis % len(shape_of(x)))
    return x


def _invert_permutation(node: NodeContext) -> None:
    raise RefusedError(Kind.SHAPE, "a permutation must be known while the graph is imported")


TABLE: Table = {
    "Const": _const,
    "Range": _range,
    "Shape": _shape,
    "ShapeN": _shape_n,
    "Size": _size,
    "Rank": _rank,
    "VariableShape": _shape,
    "Reshape": _reshape,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "ConjugateTranspose": _transpose,
    "ConcatV2": _concat,
    "Concat": _concat_v1,
    "Pack": _pack,
    "Unpack": _unpack,
    "Split": _split,
    "SplitV": _split_v,
    "Pad": _pad,
    "PadV2": _pad,
    "Empty": _empty,
    "Fill": _fill,
    "BroadcastTo": _broadcast_to,
    "Tile": _tile,
    "ReverseV2": _reverse,
    "Roll": _roll,
    "InvertPermutation": _invert_permutation,
}
