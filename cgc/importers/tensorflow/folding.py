"""Shape arithmetic and other small constant expressions, computed with numpy while a graph is imported.

CIRH has static shapes only, so everything a shape depends on must be a number by the time the op that uses it
is imported. An op whose inputs are all known is computed here; big results are left to the compiler's passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from cgc.importers.emit import Array
from cgc.importers.tensorflow import slicing

Folder: TypeAlias = Callable[[Any, Sequence[Array]], Any]

FOLD_LIMIT = 4096
"""Results with more elements than this stay in the graph, where a splat takes no space."""


def fold(op: Any, arrays: Sequence[Array]) -> tuple[Array, ...] | None:
    """Computes an operation on known inputs.

    Args:
        op: the tf.Operation; its type, attributes and static output shapes are read.
        arrays: its inputs.

    Returns:
        One array per output with the output's dtype, or None when the operation is not folded.
    """
    folder = _FOLDERS.get(op.type)
    if folder is None or any((t.shape.num_elements() or 0) > FOLD_LIMIT for t in op.outputs):
        return None
    with np.errstate(all="ignore"):
        value = folder(op, arrays)
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(np.asarray(v, t.dtype.as_numpy_dtype) for v, t in zip(values, op.outputs, strict=True))


def is_foldable(op: Any) -> bool:
    """Whether an operation can be computed here once its inputs are known."""
    return op.type in _FOLDERS


def _numpy(function: Callable[..., Any]) -> Folder:
    return lambda op, arrays: function(*arrays)


def _reduction(function: Callable[..., Any]) -> Folder:
    def folder(op: Any, arrays: Sequence[Array]) -> Any:
        axes = tuple(int(a) for a in arrays[1].reshape(-1))
        return function(arrays[0], axis=axes, keepdims=bool(op.get_attr("keep_dims")))

    return folder


def _strided_slice(op: Any, arrays: Sequence[Array]) -> Array:
    x, begin, end, strides = arrays
    masks = {name: int(op.get_attr(name)) for name in slicing.MASKS}
    found = slicing.resolve(x.shape, begin.tolist(), end.tolist(), strides.tolist(), masks)
    index = tuple(np.asarray(axis.indices, np.intp) for axis in found.axes)
    return x[np.ix_(*index)].reshape(found.shape) if index else x.reshape(found.shape)


def _squeeze(op: Any, arrays: Sequence[Array]) -> Array:
    axes = tuple(op.get_attr("squeeze_dims"))
    return np.squeeze(arrays[0], axis=axes or None)


def _unpack(op: Any, arrays: Sequence[Array]) -> list[Array]:
    return list(np.moveaxis(arrays[0], op.get_attr("axis"), 0))


def _split(op: Any, arrays: Sequence[Array]) -> list[Array]:
    return np.split(arrays[1], op.get_attr("num_split"), axis=int(arrays[0]))


def _slice(op: Any, arrays: Sequence[Array]) -> Array:
    x, begin, size = arrays
    index = tuple(
        slice(b, None if s < 0 else b + s) for b, s in zip(begin.tolist(), size.tolist(), strict=True)
    )
    return x[index]


def _select(op: Any, arrays: Sequence[Array]) -> Array:
    """A condition of rank 1 chooses rows of operands of a higher rank."""
    condition, on_true, on_false = arrays
    if condition.ndim == 1 and on_true.ndim > 1:
        condition = condition.reshape(-1, *(1,) * (on_true.ndim - 1))
    return np.where(condition, on_true, on_false)


def _gather(op: Any, arrays: Sequence[Array]) -> Array:
    return np.take(arrays[0], arrays[1], axis=int(arrays[2]))


def _gradient_axes(op: Any, arrays: Sequence[Array]) -> tuple[list[int], list[int]]:
    """The axes over which each operand's gradient is summed after implicit broadcasting."""
    shapes = [a.tolist() for a in arrays]
    rank = max(len(s) for s in shapes)
    left, right = ([1] * (rank - len(s)) + s for s in shapes)
    result: tuple[list[int], list[int]] = ([], [])
    for axis, (a, b) in enumerate(zip(left, right, strict=True)):
        # As TensorFlow, also where both have size 1: the sum over one element changes nothing.
        if a == 1:
            result[0].append(axis)
        if b == 1:
            result[1].append(axis)
    return result


def _invert_permutation(op: Any, arrays: Sequence[Array]) -> Array:
    return np.argsort(arrays[0])


def _dynamic_stitch(op: Any, arrays: Sequence[Array]) -> Array:
    half = len(arrays) // 2
    indices, data = arrays[:half], arrays[half:]
    size = 1 + max(int(i.max()) for i in indices if i.size)
    result = np.zeros((size, *data[0].shape[indices[0].ndim :]), data[0].dtype)
    for where, what in zip(indices, data, strict=True):
        result[where] = what
    return result


def _list_diff(op: Any, arrays: Sequence[Array]) -> tuple[Array, Array]:
    kept = np.flatnonzero(~np.isin(arrays[0], arrays[1]))
    return arrays[0][kept], kept


def _concat_offset(op: Any, arrays: Sequence[Array]) -> list[Array]:
    axis, shapes = int(arrays[0]), arrays[1:]
    offsets: list[Array] = []
    total = 0
    for shape in shapes:
        offset = np.zeros_like(shape)
        offset[axis] = total
        total += int(shape[axis])
        offsets.append(offset)
    return offsets


def _unique(op: Any, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """The different values in order of first appearance, and the place of each element's."""
    ordered, first, places = np.unique(arrays[0], return_index=True, return_inverse=True)
    order = np.argsort(first)
    return ordered[order], np.argsort(order)[places.reshape(-1)]


def _unique_with_counts(op: Any, arrays: Sequence[Array]) -> tuple[Array, Array, Array]:
    values, places = _unique(op, arrays)
    return values, places, np.bincount(places)


def _dynamic_partition(op: Any, arrays: Sequence[Array]) -> list[Array]:
    data, numbers = arrays
    return [data[numbers == part] for part in range(op.get_attr("num_partitions"))]


def _truncated_div(a: Array, b: Array) -> Array:
    """Division of integers towards zero, as in C."""
    return np.where((a < 0) != (b < 0), -(np.abs(a) // np.abs(b)), np.abs(a) // np.abs(b))


_FOLDERS: dict[str, Folder] = {
    **dict.fromkeys(("Add", "AddV2"), _numpy(np.add)),
    "Sub": _numpy(np.subtract),
    "Mul": _numpy(np.multiply),
    "RealDiv": _numpy(np.divide),
    "FloorDiv": _numpy(np.floor_divide),
    "FloorMod": _numpy(np.mod),
    "Maximum": _numpy(np.maximum),
    "Minimum": _numpy(np.minimum),
    "Pow": _numpy(np.power),
    "Neg": _numpy(np.negative),
    "Abs": _numpy(np.abs),
    "Sqrt": _numpy(np.sqrt),
    "Exp": _numpy(np.exp),
    "Log": _numpy(np.log),
    "Square": _numpy(np.square),
    "Reciprocal": _numpy(np.reciprocal),
    "Floor": _numpy(np.floor),
    "Ceil": _numpy(np.ceil),
    "Equal": _numpy(np.equal),
    "NotEqual": _numpy(np.not_equal),
    "Less": _numpy(np.less),
    "LessEqual": _numpy(np.less_equal),
    "Greater": _numpy(np.greater),
    "GreaterEqual": _numpy(np.greater_equal),
    "LogicalAnd": _numpy(np.logical_and),
    "LogicalOr": _numpy(np.logical_or),
    "LogicalNot": _numpy(np.logical_not),
    "Select": _select,
    "SelectV2": _numpy(np.where),
    "Sum": _reduction(np.sum),
    "Prod": _reduction(np.prod),
    "Max": _reduction(np.max),
    "Min": _reduction(np.min),
    "All": _reduction(np.all),
    "Any": _reduction(np.any),
    "Cast": lambda op, a: a[0].astype(op.outputs[0].dtype.as_numpy_dtype),
    "Pack": lambda op, a: np.stack(a, axis=op.get_attr("axis")),
    "Unpack": _unpack,
    "ConcatV2": lambda op, a: np.concatenate(a[:-1], axis=int(a[-1])),
    "Concat": lambda op, a: np.concatenate(a[1:], axis=int(a[0])),
    "ConcatOffset": _concat_offset,
    "Split": _split,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "GatherV2": _gather,
    "Gather": lambda op, a: a[0][a[1]],
    "ExpandDims": lambda op, a: np.expand_dims(a[0], int(a[1].reshape(()))),
    "Squeeze": _squeeze,
    "Reshape": lambda op, a: a[0].reshape(a[1].tolist()),
    "Transpose": lambda op, a: a[0].transpose(a[1].tolist()),
    "Tile": lambda op, a: np.tile(a[0], a[1].tolist()),
    "Fill": lambda op, a: np.full(a[0].tolist(), a[1]),
    "BroadcastTo": lambda op, a: np.broadcast_to(a[0], a[1].tolist()),
    "ZerosLike": _numpy(np.zeros_like),
    "OnesLike": _numpy(np.ones_like),
    "Range": lambda op, a: np.arange(a[0].item(), a[1].item(), a[2].item()),
    "InvertPermutation": _invert_permutation,
    "BroadcastGradientArgs": _gradient_axes,
    "BroadcastArgs": lambda op, a: np.asarray(np.broadcast_shapes(a[0].tolist(), a[1].tolist())),
    "ListDiff": _list_diff,
    "Where": _numpy(np.argwhere),
    "TruncateDiv": _numpy(_truncated_div),
    "TruncateMod": _numpy(np.fmod),
    "LeftShift": _numpy(np.left_shift),
    "RightShift": _numpy(np.right_shift),
    "DynamicPartition": _dynamic_partition,
    "UniqueWithCounts": _unique_with_counts,
    "Unique": _unique,
    "DynamicStitch": _dynamic_stitch,
}
