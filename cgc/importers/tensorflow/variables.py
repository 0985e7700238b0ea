"""Resource variables of a graph: their readers and writers, and the names of the state of a step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import narrow_dtype
from cgc.importers.module import StateTensor
from cgc.importers.tensorflow.origin import describe_operation
from cs_toolkit.step import GLOBAL_STEP, METRIC_STATE, MODEL_STATE, OPTIMIZER_STATE

_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
_WRITE_PREFIXES = (
    "Assign",
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
)
_NO_ACCESS = frozenset({"VarHandleOp", "VarIsInitializedOp", "VariableShape", "DestroyResourceOp"})
_GIVES_HANDLE = frozenset({"VarHandleOp", "Placeholder"})
_PASSES_HANDLE_ON = frozenset({"Identity", "StopGradient", "PreventGradient"})
_PARAMETER = "var"
_POWERS = frozenset({"beta1_power", "beta2_power"})

_KERAS_LAYERS = "/keras/src/layers/"
_KERAS_OPTIMIZERS = "/keras/src/optimizers/"


# Collection of a graph for variables of optimizers that the graph does not show as such.
OPTIMIZER_VARIABLES = "optimizer_variables"


@dataclass(frozen=True)
class Variable(StateTensor):
    """A resource variable of the graph; one of a metric that TensorFlow keeps in float64 is float32.

    Attributes:
        key: identifies it in this graph: the shared name of its handle, or the name of the placeholder by
            which a traced function captures it.
    """

    key: str


@dataclass(frozen=True)
class Accesses:
    """Keys of the variables that an operation reads, and of those that it replaces."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


def handle_of(tensor: Any) -> Any:
    """Return the operation that makes a resource tensor: a VarHandleOp, or a captured Placeholder.

    Raises:
        RefusedError: this graph neither declares nor captures the variable.
    """
    op = tensor.op
    while op.type in _PASSES_HANDLE_ON:
        op = op.inputs[0].op
    if op.type not in _GIVES_HANDLE:
        raise RefusedError(
            Kind.USAGE,
            f"the resource of {describe_operation(op).where} ({op.type}) is not a variable of this graph",
        )
    return op


def key_of(handle: Any) -> str:
    """Return the key of the variable of an operation that gives its handle."""
    shared = handle.get_attr("shared_name").decode() if handle.type == "VarHandleOp" else ""
    return shared or str(handle.name)


def is_write(op: Any) -> bool:
    """Return whether an operation changes a variable."""
    return bool(op.type.startswith(_WRITE_PREFIXES))


def accesses(op: Any) -> Accesses:
    """Return the variables that an operation reads and writes.

    An update in place counts only as a write: it takes the value that is current when it runs.
    """
    if op.type in _NO_ACCESS or op.type in _PASSES_HANDLE_ON:
        return Accesses()
    keys = frozenset(_keys(op))
    if not keys:
        return Accesses()
    if is_write(op):
        return Accesses(writes=keys)
    return Accesses(reads=keys) if op.type in _READS else Accesses(reads=keys, writes=keys)


def _keys(op: Any) -> Iterator[str]:
    for tensor in op.inputs:
        if tensor.dtype == tf.resource:
            try:
                yield key_of(handle_of(tensor))
            except RefusedError:
                continue  # the op itself is reported when it is imported


def global_step_key(graph: tf.Graph, global_step: Any = None) -> str | None:
    """Return the key of the global step: that of the given variable, or of the graph's own; or None."""
    variable = global_step
    if variable is None:
        variable = next(iter(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_STEP)), None)
    # A ref variable has no handle; its operations are reported one by one when they are imported.
    return _key_of_variable(variable) if hasattr(variable, "handle") else None


def name_variables(
    graph: tf.Graph, ops: Sequence[Any], used: Collection[str], global_step: str | None
) -> dict[str, Variable]:
    """Name the variables that a step uses.

    Args:
        graph: its collections list trainable variables, and those of metrics and optimizers.
        ops: the operations of the step.
        used: keys of the variables that they read or write.
        global_step: the key of the global step.

    Returns:
        Variables by key, in the order in which they were created.

    Raises:
        RefusedError: a used variable has no static shape.
    """
    slots = frozenset(_slots(ops)) | _collection(graph, OPTIMIZER_VARIABLES)
    metrics = _collection(graph, tf.compat.v1.GraphKeys.METRIC_VARIABLES)
    trainable = _collection(graph, tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
    found: dict[str, Variable] = {}
    for handle in graph.get_operations():
        if handle.type != "VarHandleOp" or (key := key_of(handle)) not in used or key in found:
            continue
        if key == global_step:
            resource_name = GLOBAL_STEP
        elif key in metrics:
            resource_name = METRIC_STATE + key
        elif key in slots or _is_slot_name(key, trainable):
            resource_name = OPTIMIZER_STATE + key
        else:
            resource_name = MODEL_STATE + key
        dtype = handle.get_attr("dtype").name
        if key in metrics:
            dtype = narrow_dtype(dtype)
        found[key] = Variable(str(handle.name), resource_name, dtype, _static_shape(handle), key)
    return found


def variable_writes(roots: Iterable[tf.Tensor | tf.Operation]) -> list[tf.Operation]:
    """Return the operations that change a variable among those that `roots` need, by name."""
    waiting = [getattr(root, "op", root) for root in roots]
    seen: dict[str, Any] = {}
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen[op.name] = op
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return sorted((op for op in seen.values() if accesses(op).writes), key=lambda op: str(op.name))


def keras_layer_updates(graph: tf.Graph) -> list[Any]:
    """Return the assignments with which Keras 3 layers update their state: seeds of Dropout, moving averages.

    Nothing in a v1 graph depends on them, so a session that runs only the train op draws the same mask every
    step and never moves an average: its caller must run these operations as well. `import_step` adds those
    that belong to a step.
    """
    return [op for op in graph.get_operations() if is_write(op) and _is_of_layer(op)]


def _is_of_layer(op: Any) -> bool:
    if any(op.name.startswith(f"{key}/") for key in _keys(op)):
        return False  # the initializer of the variable
    files = [frame.filename for frame in op.traceback]
    return any(_KERAS_LAYERS in file for file in files) and not any(
        _KERAS_OPTIMIZERS in file for file in files
    )


def _slots(ops: Iterable[Any]) -> Iterator[str]:
    """Yield variables of optimizer slots, and Adam's running powers of beta."""
    for op in ops:
        if not op.type.startswith(("ResourceApply", "ResourceSparseApply")):
            continue
        for argument, tensor in zip(op.op_def.input_arg, op.inputs, strict=True):
            if tensor.dtype == tf.resource and argument.name != _PARAMETER:
                yield key_of(handle_of(tensor))
            elif argument.name in _POWERS and tensor.op.type == "ReadVariableOp":
                yield key_of(handle_of(tensor.op.inputs[0]))


def _is_slot_name(key: str, trainable: Collection[str]) -> bool:
    """Return whether an optimizer made a variable, by its name.

    TensorFlow names a slot after its variable: "dense/kernel/Momentum". Where only embeddings are trained, no
    training op reads the powers of beta.
    """
    variable, _, last = key.rpartition("/")
    return key not in trainable and (variable in trainable or last in _POWERS)


def _collection(graph: tf.Graph, name: str) -> frozenset[str]:
    return frozenset(_key_of_variable(v) for v in graph.get_collection(name) if hasattr(v, "handle"))


def _key_of_variable(variable: Any) -> str:
    return key_of(handle_of(variable.handle))


def _static_shape(handle: Any) -> tuple[int, ...]:
    shape = tf.TensorShape(handle.get_attr("shape"))
    if not shape.is_fully_defined():
        raise RefusedError(
            Kind.SHAPE,
            f"variable of {describe_operation(handle).where} has shape {shape}; "
            "create it with a shape without None",
        )
    return tuple(shape.as_list())
