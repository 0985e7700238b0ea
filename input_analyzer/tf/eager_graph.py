"""Rebuild datasets of input functions that are written for eager execution in a graph.

Such a function is called eagerly, as its author meant: it may loop over datasets, read values, adapt layers.
The operations that make its dataset are recorded and executed again in a graph. Values become constants
there, and tables and variables start with their content at the return of the function.

TensorFlow executes an operation of an eager program and forgets it: a dataset knows neither its arguments nor
the line that made it. While recording, every operation that makes a dataset or a resource is kept as long as
its result.
"""

from __future__ import annotations

import inspect
import re
import sys
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import op_callbacks, op_def_registry

from input_analyzer.tf.private_files import map_array
from input_analyzer.tf.rebuild import as_dataset
from input_rules.errors import WrongTypeError
from input_rules.tf.operations import Frames, set_origin, source_of

# Resources without state.
_STATELESS = frozenset({"DummyMemoryCache", "DummySeedGenerator", "DummyIterationCounter"})
_TABLE = re.compile(r"(Anonymous)?((Mutable|MutableDense)?HashTable(OfTensors)?)(V2)?$")
_HANDLES = (tf.variant, tf.resource)  # types of the tensors of datasets and resources
# A graph is a protobuf message of less than 2 GiB.
_MOST_BYTES = (1 << 31) - (1 << 24)


class NeedsEagerError(Exception):
    """An eager dataset cannot be rebuilt in a graph.

    Attributes:
        source: The user's line, "file:line"; None if unknown.
    """

    def __init__(self, reason: str, frames: Frames = ()) -> None:
        self.source = source_of(frames)
        super().__init__(reason if self.source is None else f"{reason}, at {self.source}")


def rebuild_in_graph(make: Callable[[], Any], seed: int | None = None) -> tuple[Any, Any]:
    """Call an input function eagerly and rebuild its dataset in a new graph.

    Args:
        make: The function.
        seed: Seed of operations without their own; by default that of the program, if it has one.

    Returns:
        The graph and the dataset. A session must first run the collection of table initializers.

    Raises:
        WrongTypeError: the function returns no Dataset.
        NeedsEagerError: its dataset holds something that no graph can.
        Exception: anything that the function raises, unchanged.
    """
    with record_operations(), fix_seeds(seed):
        dataset = make()
    if not isinstance(dataset, tf.data.Dataset):
        raise WrongTypeError(dataset)
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.set_random_seed(seed)
        variant = _GraphCopies(graph).of(dataset._variant_tensor)
        return graph, as_dataset(variant, dataset.element_spec)


@contextmanager
def fix_seeds(seed: int | None = None) -> Iterator[None]:
    """Give eager operations the same sequence of seeds in every context, and restore the state afterwards.

    Args:
        seed: Seed of the sequence; by default that of the program. Without one there are no seeds.
    """
    state = vars(eager_context.context())
    before = {name: state.get(name) for name in ("_seed", "_rng")}
    first = before["_seed"] if seed is None else seed
    if first is not None:
        tf.random.set_seed(first)
    try:
        yield
    finally:
        # There is no public way to restore them; without a seed there is no generator yet.
        state.update(before)


class _GraphCopies:
    """Copies of eager tensors in a graph."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._known: dict[int, Any] = {}
        self._bytes = 0

    def of(self, tensor: Any) -> Any:
        """Return the tensor of the graph that replaces a dataset or a resource.

        Raises:
            NeedsEagerError: it cannot be made in a graph.
        """
        stack: list[tuple[Any, Frames, bool]] = [(tensor, (), False)]
        seen = set()
        while stack:
            one, user, inputs_done = stack.pop()
            by = find_maker(one)
            if by is None:
                raise NeedsEagerError(
                    "it uses a dataset, table or variable that was made before the analyzer could record it",
                    user,
                )
            if not inputs_done:
                if id(one) not in seen:
                    seen.add(id(one))
                    stack.append((one, user, True))
                    stack += [
                        (other, by.frames, False) for other in reversed(by.inputs) if other.dtype in _HANDLES
                    ]
                continue
            inputs = []
            for other in by.inputs:
                if id(other) not in self._known:
                    data = map_array(np.asarray(other), other.dtype)  # `numpy()` copies
                    self._known[id(other)] = self._constant(other) if data is None else data
                inputs.append(self._known[id(other)])
            self._known[id(one)] = self._copy(one, by, inputs)
        return self._known[id(tensor)]

    def _constant(self, tensor: Any) -> Any:
        value = tensor.numpy()
        texts = tensor.dtype == tf.string
        self._bytes += sum(map(len, np.reshape(value, -1).tolist())) if texts else value.nbytes
        if self._bytes > _MOST_BYTES:
            raise NeedsEagerError("it holds more data in memory than fit into a graph, 2 GiB")
        return tf.constant(value, tensor.dtype, tensor.shape)

    def _copy(self, tensor: Any, by: MakerOperation, inputs: list[Any]) -> Any:
        if op_def_registry.get(by.kind) is None:
            raise NeedsEagerError("it uses a result of a tf.function", by.frames)
        table = _TABLE.match(by.kind)
        if by.kind == "VarHandleOp":
            copy = _make_operation(by.kind, inputs, {**by.attributes, "shared_name": _unique_name()})
            with eager_context.eager_mode():
                has_value = bool(tf.raw_ops.VarIsInitializedOp(resource=tensor))
                if has_value:
                    value = tf.raw_ops.ReadVariableOp(resource=tensor, dtype=by.attributes["dtype"])
            if has_value:
                self._start(tf.raw_ops.AssignVariableOp(resource=copy, value=self._constant(value)))
        elif table:
            named = {**by.attributes, "shared_name": _unique_name(), "use_node_name_sharing": False}
            copy = _make_operation(f"{table[2]}V2", inputs, named)
            with eager_context.eager_mode():
                types = {"Tkeys": by.attributes["key_dtype"], "Tvalues": by.attributes["value_dtype"]}
                content = tf.raw_ops.LookupTableExportV2(table_handle=tensor, **types)
                keys, values = content.keys, content.values
                if keys.shape.rank == 1:  # their order differs between tables
                    order = np.argsort(keys.numpy())
                    keys, values = tf.gather(keys, order), tf.gather(values, order)
            # Shape inference rejects tables with empty keys, which the operation itself accepts.
            keys, values = (
                tf.compat.v1.placeholder_with_default(self._constant(part), None) for part in (keys, values)
            )
            self._start(tf.raw_ops.LookupTableImportV2(table_handle=copy, keys=keys, values=values))
        elif tensor.dtype == tf.resource and by.kind not in _STATELESS:
            raise NeedsEagerError(
                f"it uses a resource of TensorFlow ({by.kind}) that cannot be copied", by.frames
            )
        else:
            made_now = _make_operation(by.kind, inputs, by.attributes)
            copy = made_now[by.output] if isinstance(made_now, list | tuple) else made_now
        set_origin(copy.op, by.frames)
        return copy

    def _start(self, operation: Any) -> None:
        self._graph.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, operation)


def _make_operation(kind: str, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Make an operation in the default graph."""
    make = getattr(tf.raw_ops, kind)
    taken = inspect.signature(make).parameters  # other attributes follow from the inputs
    named = {name: value for name, value in attributes.items() if name in taken and value is not None}
    rest, arguments = list(inputs), {}
    for argument in op_def_registry.get(kind).input_arg:
        if argument.number_attr:
            count = int(attributes[argument.number_attr])
        elif argument.type_list_attr:
            count = len(attributes[argument.type_list_attr])
        else:
            arguments[argument.name] = rest.pop(0)
            continue
        arguments[argument.name], rest = rest[:count], rest[count:]
    return make(**arguments, **named)


def _unique_name() -> str:
    # Eager resources have no name, so each call would make another resource.
    return f"input_analyzer_{uuid.uuid4().hex}"


@dataclass(frozen=True)
class MakerOperation:
    """An operation that was executed.

    Attributes:
        kind: Its name.
        inputs: Its tensors, those of a list one by one.
        attributes: By name, as TensorFlow's Python functions take them.
        output: Index of the output.
        frames: The call stack, `(file, line, function)`, outermost first.
    """

    kind: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]
    output: int
    frames: Frames


# Makers of all tensors that are alive, by the identity of the tensor, which has no hash.
_made: dict[int, tuple[weakref.ref[Any], MakerOperation]] = {}


def find_maker(tensor: Any) -> MakerOperation | None:
    """Return the operation that made an eager tensor; None if it was not recorded."""
    found = _made.get(id(tensor))
    return None if found is None else found[1]


@contextmanager
def record_operations() -> Iterator[None]:
    """Record the operations that this thread executes in the context."""
    before = _record in context.context().op_callbacks
    op_callbacks.add_op_callback(_record)
    try:
        yield
    finally:
        if not before:
            op_callbacks.remove_op_callback(_record)


def _record(
    kind: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
) -> None:
    if graph is not None:  # made in the graph of a function, not executed
        return
    for number, output in enumerate(outputs):
        if output.dtype not in _HANDLES:
            continue
        named = dict(zip(attributes[::2], attributes[1::2], strict=True))
        frames = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back

        def forget(gone: Any, key: int = id(output)) -> None:
            if key in _made and _made[key][0] is gone:  # its identity may belong to another tensor now
                del _made[key]

        by = MakerOperation(tf.compat.as_str(kind), tuple(inputs), named, number, tuple(reversed(frames)))
        _made[id(output)] = (weakref.ref(output, forget), by)
