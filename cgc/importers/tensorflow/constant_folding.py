"""Constant folding while a graph is imported, with numpy, or with TensorFlow where the device lacks a type.

The device has no float64, and no division of integers that gives a float64. Operations that depend on no data
are run by TensorFlow in their own types while the graph is imported. Until an operation gives a type that the
device has, they are only recorded: an operation that no such result needs is never computed. Constants in
types of the device stay in the graph, where a sequence of numbers or a broadcast takes no space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from xdsl.ir import SSAValue

from cgc.cirh.types import DTYPE_NAMES
from cgc.importers.decompositions.indexing import AxisRange, Slicing
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import NARROWED, Array
from cgc.importers.tensorflow.origin import describe_tensor

MOST_ELEMENTS = 1 << 27  # limit of a tensor that is computed here: 1 GiB in float64


@dataclass(frozen=True, eq=False)
class Waiting:
    """The value of a tensor that depends only on constants, not computed yet.

    Attributes:
        op: the tf.Operation.
        inputs: the values of its inputs: arrays, or other waiting values.
        position: index of the result.
    """

    op: Any
    inputs: Sequence[Array | Waiting]
    position: int


class Constants:
    """The values of a step that depend only on constants, and those that also depend on the step number.

    Args:
        step_number: the global step, if the graph has one.
    """

    def __init__(self, step_number: SSAValue | None = None) -> None:
        self._behind: dict[SSAValue, Waiting] = {}
        self._of_step = set() if step_number is None else {step_number}

    def inputs(self, op: Any, values: Sequence[object]) -> Sequence[Array | Waiting] | None:
        """Return the inputs of an operation that depend only on constants, if it can be computed here."""
        known = tuple(found for value in values if (found := self._lookup(value)) is not None)
        return known if known and len(known) == len(values) and _is_pure(op) else None

    def _lookup(self, value: object) -> Array | Waiting | None:
        if isinstance(value, SSAValue):
            return self._behind.get(value)
        return value if isinstance(value, np.ndarray | Waiting) else None

    def note(self, op: Any, inputs: Sequence[Array | Waiting], results: Sequence[object]) -> None:
        """Remember the operation and the inputs of values of the IR."""
        for position, result in enumerate(results):
            if isinstance(result, SSAValue):
                self._behind.setdefault(result, Waiting(op, inputs, position))

    def array(self, value: object) -> Array | None:
        """Compute a value that depends only on constants; None for all others.

        Raises:
            RefusedError: see `fold_lazily`.
        """
        found = self._lookup(value)
        return found if found is None else _array(found)

    def is_of_step(self, op: Any, values: Sequence[object]) -> bool:
        """Return whether an operation takes only the step number and constants, and no data."""
        of_step = [isinstance(value, SSAValue) and value in self._of_step for value in values]
        others = (value for value, found in zip(values, of_step, strict=True) if not found)
        # Schedules divide the number of the step, an integer, by another one.
        return any(of_step) and all(self._lookup(value) is not None for value in others) and _is_pure(op)

    def note_of_step(self, results: Sequence[object]) -> None:
        """Remember results of an operation that `is_of_step`."""
        self._of_step.update(result for result in results if isinstance(result, SSAValue))


def narrow_floats(value: Any) -> Any:
    """Return a value of an input, float32 instead of float64 if it is a constant.

    Raises:
        RefusedError: see `fold_lazily`.
    """
    if not isinstance(value, np.ndarray | Waiting):
        return value
    array = _array(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _array(value: Array | Waiting) -> Array:
    return _compute([value])[0] if isinstance(value, Waiting) else value


def is_beyond_the_device(op: Any) -> bool:
    """Return whether a tensor of an operation has an element type that the device lacks."""
    return not (_is_of_the_device(op.inputs) and _is_of_the_device(op.outputs))


def is_narrowed(op: Any) -> bool:
    """Return whether a tensor of an operation has a type that is narrower on the device."""
    return any(tensor.dtype.base_dtype.name in NARROWED for tensor in (*op.inputs, *op.outputs))


def _is_of_the_device(tensors: Iterable[Any]) -> bool:
    return all(tensor.dtype.base_dtype.name in DTYPE_NAMES for tensor in tensors)


def fold_lazily(op: Any, inputs: Sequence[Array | Waiting]) -> Sequence[Array | Waiting]:
    """Return the results of an operation: arrays, or waiting values where the device lacks the type.

    Raises:
        RefusedError: an intermediate tensor is too large, or TensorFlow refuses the inputs.
    """
    waiting = [Waiting(op, inputs, position) for position in range(len(op.outputs))]
    return tuple(_compute(waiting) if _is_of_the_device(op.outputs) else waiting)


def _is_pure(op: Any) -> bool:
    """Return whether an operation is a function of its inputs, which are numbers.

    Random numbers of the step are not TensorFlow's. Operations that call functions are imported.
    """
    definition = op.op_def
    tensors = (*op.inputs, *op.outputs)
    return (
        not definition.is_stateful
        and not op.type.startswith("Stateless")
        and not any("func" in attribute.type for attribute in definition.attr)
        and all(
            dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
            for dtype in (tensor.dtype.base_dtype for tensor in tensors)
        )
    )


def _compute(wanted: Sequence[Waiting]) -> list[Array]:
    """Compute values by running their operations in a separate graph."""
    copy = _Copy()
    names = [copy.name_of(value) for value in wanted]
    with tf.Graph().as_default() as graph:
        leaves = {name: tf.constant(array) for name, array in copy.leaves.items()}
        tensors = tf.graph_util.import_graph_def(copy.graph, leaves, names, name="")
        options = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(graph=graph, config=options) as session:
            try:
                return [np.asarray(value) for value in session.run(tensors)]
            except tf.errors.OpError as error:
                what = error.message.partition("\n\t [[")[0].splitlines()[-1]
                raise RefusedError(Kind.USAGE, f"a constant that it needs: {what}") from error


class _Copy:
    """A GraphDef of the operations that make values; arrays are its `leaves`, by the name of their tensor."""

    def __init__(self) -> None:
        self.graph = tf.compat.v1.GraphDef()
        self.leaves: dict[str, Array] = {}
        self._names: dict[int, str] = {}

    def name_of(self, value: Waiting) -> str:
        """Return the tensor of a value; first adds its inputs, without recursion: chains may be long."""
        pending = [value]
        while pending:
            waiting = pending[-1]
            missing = [given for given in waiting.inputs if id(given) not in self._names]
            if id(waiting) in self._names:
                pending.pop()
            elif missing:
                pending += [given for given in missing if isinstance(given, Waiting)]
                for array in (given for given in missing if not isinstance(given, Waiting)):
                    self._names[id(array)] = name = f"leaf{len(self.leaves)}:0"
                    self.leaves[name] = array
            else:
                self._names[id(waiting)] = self._add(waiting)
        return self._names[id(value)]

    def _add(self, waiting: Waiting) -> str:
        for tensor in waiting.op.outputs:
            if (tensor.shape.num_elements() or 0) > MOST_ELEMENTS:
                raise RefusedError(
                    Kind.TYPE,
                    f"it needs {tensor.name} {describe_tensor(tensor)}, a constant of more than "
                    f"{MOST_ELEMENTS:,} elements, in a type that the device lacks or for one; cast to "
                    "tf.float32 before it becomes that large",
                )
        name = f"op{len(self.graph.node)}"
        node = self.graph.node.add()
        node.CopyFrom(waiting.op.node_def)
        node.name, node.device = name, ""
        node.attr.pop("_class", None)
        del node.input[:]
        node.input.extend(self._names[id(given)] for given in waiting.inputs)
        return f"{name}:{waiting.position}"


# CIRH has static shapes only, so everything that a shape depends on must be a number by the time the op that
# uses it is imported. An op whose inputs are all known is computed here with numpy; large results are left to
# the compiler's passes.
#
# The table repeats the meaning of TensorFlow's operations, which could run here eagerly at the same speed
# (0.1 ms each, at most 200 in an example). It stays because NumPy has other last bits: 115 of 256 frequencies
# in the Transformer's positions would change by up to 2 units, and with them the artifacts of programs.
Folder: TypeAlias = Callable[[Any, Sequence[Array]], Any]

# Results with more elements than this stay in the graph, where a splat takes no space.
FOLD_LIMIT = 4096


def fold(op: Any, arrays: Sequence[Array]) -> tuple[Array, ...] | None:
    """Compute an operation on known inputs.

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
    """Return whether an operation can be computed here once its inputs are known."""
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
    masks = {name: int(op.get_attr(name)) for name in MASKS}
    found = resolve_slice(x.shape, begin.tolist(), end.tolist(), strides.tolist(), masks)
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
    """Select elements; a condition of rank 1 chooses rows of operands of a higher rank."""
    condition, on_true, on_false = arrays
    if condition.ndim == 1 and on_true.ndim > 1:
        condition = condition.reshape(-1, *(1,) * (on_true.ndim - 1))
    return np.where(condition, on_true, on_false)


def _gather(op: Any, arrays: Sequence[Array]) -> Array:
    return np.take(arrays[0], arrays[1], axis=int(arrays[2]))


def _gradient_axes(op: Any, arrays: Sequence[Array]) -> tuple[list[int], list[int]]:
    """Return the axes over which each operand's gradient is summed after implicit broadcasting."""
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
    """Return the different values in order of first appearance, and the place of each element's."""
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
    """Divide integers towards zero, as in C."""
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


MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def resolve_slice(
    shape: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    masks: dict[str, int],
) -> Slicing:
    """Resolve a StridedSlice.

    Args:
        shape: the input's shape.
        begin: one start per entry of the slice specification.
        end: one end per entry.
        strides: one step per entry.
        masks: the five attributes named in `MASKS`.

    Raises:
        IndexError: more entries than axes, or an index out of range.
    """
    axes: list[AxisRange] = []
    result: list[int] = []
    for entry in _entries(len(shape), begin, end, strides, masks):
        if entry is None:
            result.append(1)
            continue
        size = shape[len(axes)]
        if isinstance(entry, int):
            position = entry + size if entry < 0 else entry
            if not 0 <= position < size:
                raise IndexError(f"index {entry} is out of range for axis {len(axes)} of size {size}")
            axes.append(AxisRange(position, 1, 1))
            continue
        start, stop, step = entry.indices(size)
        count = len(range(start, stop, step))
        axes.append(AxisRange(start, count, step))
        result.append(count)
    return Slicing(tuple(axes), tuple(result))


def _entries(
    rank: int, begin: Sequence[int], end: Sequence[int], strides: Sequence[int], masks: dict[str, int]
) -> list[Any]:
    """Python index entries: a slice, an int (axis dropped) or None (axis added), the ellipsis spelled out."""

    def has(name: str, position: int) -> bool:
        return bool(masks[name] >> position & 1)

    entries: list[Any] = []
    ellipsis_at: int | None = None
    for i, (low, high, step) in enumerate(zip(begin, end, strides, strict=True)):
        if has("ellipsis_mask", i):
            ellipsis_at = len(entries)
        elif has("new_axis_mask", i):
            entries.append(None)
        elif has("shrink_axis_mask", i):
            entries.append(int(low))
        else:
            first = None if has("begin_mask", i) else int(low)
            last = None if has("end_mask", i) else int(high)
            entries.append(slice(first, last, int(step)))
    missing = rank - sum(entry is not None for entry in entries)
    if missing < 0:
        raise IndexError(f"{rank - missing} axes are indexed, the tensor has {rank}")
    at = len(entries) if ellipsis_at is None else ellipsis_at
    entries[at:at] = [slice(None)] * missing
    return entries
