"""Values that depend on constants alone, computed by TensorFlow itself where the device cannot.

The device has no float64, and an integer divided by an integer is one. Where no data is behind it, the
operations are run while the graph is imported, in their own types. Until an operation gives a type that the
device has, they only wait: what no such operation needs is never computed. Constants in types of the device
stay in the graph, where a sequence of numbers or a broadcast takes no space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from xdsl.ir import SSAValue

from cgc.cirh.types import DTYPE_NAMES
from cgc.importers.emit import NARROWED, Array
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.faults import described

MOST_ELEMENTS = 1 << 27
"""A tensor of more is not computed here: 1 GiB in float64."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """The value of a tensor that depends on constants alone, not computed yet.

    Attributes:
        op: the tf.Operation.
        inputs: the values of its inputs: arrays, or others that wait.
        position: which of its results this is.
    """

    op: Any
    inputs: Sequence[Array | Waiting]
    position: int


class Constants:
    """Which values of a step depend on constants alone, and which on the step number as well.

    Args:
        step_number: the global step, if the graph has one.
    """

    def __init__(self, step_number: SSAValue | None = None) -> None:
        self._behind: dict[SSAValue, Waiting] = {}
        self._of_step = set() if step_number is None else {step_number}

    def inputs(self, op: Any, values: Sequence[object]) -> Sequence[Array | Waiting] | None:
        """The inputs of an operation if they depend on constants alone and it can be computed here."""
        known = tuple(found for value in values if (found := self._found(value)) is not None)
        return known if known and len(known) == len(values) and _is_pure(op) else None

    def _found(self, value: object) -> Array | Waiting | None:
        if isinstance(value, SSAValue):
            return self._behind.get(value)
        return value if isinstance(value, np.ndarray | Waiting) else None

    def note(self, op: Any, inputs: Sequence[Array | Waiting], results: Sequence[object]) -> None:
        """Remembers what values of the IR were made of."""
        for position, result in enumerate(results):
            if isinstance(result, SSAValue):
                self._behind.setdefault(result, Waiting(op, inputs, position))

    def array(self, value: object) -> Array | None:
        """A value that depends on constants alone, computed; None for all others.

        Raises:
            RefusedError: see `results_of`.
        """
        found = self._found(value)
        return found if found is None else _array(found)

    def is_of_step(self, op: Any, values: Sequence[object]) -> bool:
        """Whether an operation takes the step number and constants alone: no data is behind its results."""
        of_step = [isinstance(value, SSAValue) and value in self._of_step for value in values]
        others = (value for value, found in zip(values, of_step, strict=True) if not found)
        # Schedules divide the number of the step, an integer, by another one.
        return any(of_step) and all(self._found(value) is not None for value in others) and _is_pure(op)

    def note_of_step(self, results: Sequence[object]) -> None:
        """Remembers results of an operation that `is_of_step`."""
        self._of_step.update(result for result in results if isinstance(result, SSAValue))


def narrowed(value: Any) -> Any:
    """A value of an input, float32 in place of float64 where it is a constant.

    Raises:
        RefusedError: see `results_of`.
    """
    if not isinstance(value, np.ndarray | Waiting):
        return value
    array = _array(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _array(value: Array | Waiting) -> Array:
    return _computed([value])[0] if isinstance(value, Waiting) else value


def is_beyond_the_device(op: Any) -> bool:
    """Whether a tensor of an operation has an element type that the device lacks."""
    return not (_is_of_the_device(op.inputs) and _is_of_the_device(op.outputs))


def is_narrowed(op: Any) -> bool:
    """Whether a tensor of an operation has a type that is narrower on the device."""
    return any(tensor.dtype.base_dtype.name in NARROWED for tensor in (*op.inputs, *op.outputs))


def _is_of_the_device(tensors: Iterable[Any]) -> bool:
    return all(tensor.dtype.base_dtype.name in DTYPE_NAMES for tensor in tensors)


def results_of(op: Any, inputs: Sequence[Array | Waiting]) -> Sequence[Array | Waiting]:
    """What an operation gives: arrays, but what is of no type of the device waits.

    Raises:
        RefusedError: a tensor on the way is too large, or TensorFlow refuses what it is given.
    """
    waiting = [Waiting(op, inputs, position) for position in range(len(op.outputs))]
    return tuple(_computed(waiting) if _is_of_the_device(op.outputs) else waiting)


def _is_pure(op: Any) -> bool:
    """Whether an operation is a function of its inputs alone, which are numbers.

    Random numbers of the step are not TensorFlow's. What operations with functions do is imported.
    """
    definition = op.op_def
    tensors = (*op.inputs, *op.outputs)
    return (
        not definition.is_stateful
        and not op.type.startswith("Stateless")
        and not any("func" in attribute.type for attribute in definition.attr)
        and all(_is_numeric(tensor.dtype.base_dtype) for tensor in tensors)
    )


def _is_numeric(dtype: Any) -> bool:
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex)


def _computed(wanted: Sequence[Waiting]) -> list[Array]:
    """Runs the operations behind values in a graph of their own."""
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
    """The operations behind values as a GraphDef; arrays are its `leaves`, by the name of their tensor."""

    def __init__(self) -> None:
        self.graph = tf.compat.v1.GraphDef()
        self.leaves: dict[str, Array] = {}
        self._names: dict[int, str] = {}

    def name_of(self, value: Waiting) -> str:
        """The tensor of a value; adds what it needs first, without recursion: chains may be long."""
        pending = [value]
        while pending:
            waiting = pending[-1]
            missing = [given for given in waiting.inputs if id(given) not in self._names]
            if id(waiting) in self._names:
                pending.pop()
            elif missing:
                pending += [given for given in missing if isinstance(given, Waiting)]
                self._add_leaves(given for given in missing if not isinstance(given, Waiting))
            else:
                self._names[id(waiting)] = self._add(waiting)
        return self._names[id(value)]

    def _add_leaves(self, arrays: Iterable[Array]) -> None:
        for array in arrays:
            self._names[id(array)] = name = f"leaf{len(self.leaves)}:0"
            self.leaves[name] = array

    def _add(self, waiting: Waiting) -> str:
        for tensor in waiting.op.outputs:
            if (tensor.shape.num_elements() or 0) > MOST_ELEMENTS:
                raise RefusedError(
                    Kind.TYPE,
                    f"it needs {tensor.name} {described(tensor)}, a constant of more than "
                    f"{MOST_ELEMENTS:,} elements, in a type that the device lacks or for one; cast to "
                    "tf.float32 before it becomes so large",
                )
        name = f"op{len(self.graph.node)}"
        node = self.graph.node.add()
        node.CopyFrom(waiting.op.node_def)
        node.name, node.device = name, ""
        node.attr.pop("_class", None)
        del node.input[:]
        node.input.extend(self._names[id(given)] for given in waiting.inputs)
        return f"{name}:{waiting.position}"
