"""Import a Keras model as one CIRH module: one call of its train_step, test_step or predict_step.

Keras 3 and tf_keras models are traced as Keras traces them itself, so that a custom `train_step`, losses of
layers, metrics, loss scaling and any optimizer are part of the step as they are on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

import numpy as np
import tensorflow as tf

from cgc.errors import GraphImportError
from cgc.importers.emit import Array
from cgc.importers.module import require_mode
from cgc.importers.tensorflow.node import Handle, Value
from cgc.importers.tensorflow.origin import LayerLine, record_layer_lines
from cgc.importers.tensorflow.plan import plan_traced
from cgc.importers.tensorflow.step import ImportedStep, assemble, check_inputs
from cgc.importers.tensorflow.variables import Variable, accesses
from cs_toolkit.step import GLOBAL_STEP, METRIC_STATE, MODEL_STATE, OPTIMIZER_STATE

_METHODS = {"train": "train_step", "eval": "test_step", "infer": "predict_step"}
_OWN_COUNTER = "global_step"
_PREDICTION = "prediction"


def _unknown_line(layer: Any) -> None:
    """Return None: no lines of layers were recorded."""


@dataclass(frozen=True)
class ImportedKerasStep(ImportedStep):
    """A step of a Keras model as CIRH.

    Attributes:
        holders: resource name -> the tf.Variable that holds the value. A global step that no variable of
            the model counts has none.
        graph: the FuncGraph.
    """

    holders: dict[str, Any]
    graph: Any

    def initial_state(self) -> dict[str, Array]:
        """Return the present values of variables by resource name; 0 for a separate global step."""
        state = {name: np.asarray(holder.numpy()) for name, holder in self.holders.items()}
        return {name: state.get(name, np.zeros((), np.int64)) for name in self.variables}

    def assign(self, state: Mapping[str, Array]) -> None:
        """Set the model's variables; names without a variable are ignored."""
        for name, value in state.items():
            if name in self.holders:
                holder = self.holders[name]
                holder.assign(np.asarray(value, holder.dtype.as_numpy_dtype))


@dataclass(frozen=True)
class TracedKerasStep:
    """One call of a Keras model's step, as a graph of TensorFlow.

    Attributes:
        function: the concrete function of a batch.
        inputs: the placeholders of its graph for a batch, in tf.nest's order.
        captured: name of a placeholder that captures a variable -> the variable, and the tf.Variable that
            holds its value; in the order in which the step uses them first.
        mode: "train", "eval" or "infer".
    """

    function: Any
    inputs: tuple[Any, ...]
    captured: dict[str, tuple[Variable, Any]]
    mode: str

    @property
    def body(self) -> Any:
        """The FuncGraph."""
        return self.function.graph

    def name_results(self, results: Any) -> dict[str, tf.Tensor]:
        """Return the results by name: logs, or predictions as `prediction` or `prediction/<name>`."""
        return _outputs(results, self.mode)

    def constants(self) -> dict[str, Value]:
        """Return captured eager tensors, tables and numbers of the user's program, by name in the body."""
        return {
            inner.name: np.asarray(outer.numpy())
            for outer, inner in self.body.captures
            if outer.dtype not in (tf.resource, tf.variant)
        }


def trace_keras_step(
    model: Any,
    input_specs: Any,
    *,
    mode: str = "train",
    step: Callable[[Any], Any] | None = None,
    layer_line: LayerLine = _unknown_line,
) -> TracedKerasStep:
    """Trace a Keras model's step.

    Args:
        model: see `import_keras_step`.
        input_specs: see there.
        mode: see there.
        step: the function to trace instead of the model's own step of that mode.
        layer_line: returns the line that made a layer of the model.

    Raises:
        GraphImportError: eager execution is off, or the mode is unknown.
    """
    require_mode(mode)
    with record_layer_lines(model, layer_line):
        function = _trace(step or getattr(model, _METHODS[mode]), input_specs)
    inputs = tuple(function.graph.inputs[: len(tf.nest.flatten(input_specs))])
    return TracedKerasStep(function, inputs, _capture_variables(function.graph, model), mode)


def import_keras_step(
    model: Any,
    input_specs: Any,
    *,
    mode: str = "train",
    seed: int = 0,
    layer_line: LayerLine = _unknown_line,
) -> ImportedKerasStep:
    """Import one call of a compiled Keras model's step, including updates of its state.

    State is named by the part of the model that it belongs to: `state.model.<path>` (weights, moving
    averages, seeds), `state.optimizer.<path>`, `state.metric.<path>`. `state.global_step` is the optimizer's
    iteration counter if every step adds one to it; otherwise (loss scaling skips steps, gradients are
    accumulated, there are two optimizers) it is a separate counter. Outputs are the logs of the step as `fit`
    shows them, which are means since the metrics were reset.

    Args:
        model: a Keras 3 or tf_keras model; compiled for the modes "train" and "eval".
        input_specs: the batch as in `dataset.element_spec`: x, (x, y) or (x, y, sample_weight), each a
            tf.TensorSpec of static shape or a structure of them. They are the inputs, in tf.nest's order.
        mode: "train" (train_step), "eval" (test_step) or "infer" (predict_step).
        seed: seed of random operations that have none.
        layer_line: returns the line that made a layer of the model.

    Returns:
        The module, the names of its state and the variables that hold it.

    Raises:
        GraphImportError: lists all problems of the step, as for `import_step`.
    """
    traced = trace_keras_step(model, input_specs, mode=mode, layer_line=layer_line)
    body, inputs, captured = traced.body, traced.inputs, traced.captured
    check_inputs(inputs, mode)
    variables = {key: variable for key, (variable, _) in captured.items()}
    counter, counts_itself = _global_step(body, model, captured) if mode == "train" else (None, False)
    plan = plan_traced(body, variables, counter, counts_itself)
    known: dict[str, Value] = {f"{key}:0": Handle(key) for key in plan.variables if key in captured}
    known |= traced.constants()
    outputs = traced.name_results(traced.function.structured_outputs)
    module, dropped = assemble(plan, inputs, outputs, mode, seed, known)
    names = {variable.resource_name: variable.name for variable in plan.variables.values()}
    holders = {
        plan.variables[key].resource_name: captured[key][1] for key in plan.variables if key in captured
    }
    return ImportedKerasStep(module, names, dropped, holders, body)


def keras_variables(model: Any) -> dict[str, Any]:
    """Return the tf.Variables of a Keras model without metrics, by their names in a training checkpoint.

    These are the model's variables and, if it is compiled, the optimizer's, which are created if they do not
    exist. Variables that share a name, which a checkpoint tells apart by the order of use in the step, are
    left out.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not getattr(optimizer, "built", getattr(optimizer, "_built", True)):
        optimizer.build(model.trainable_variables)
    names = _state_names(model)
    own = [variable if hasattr(variable, "handle") else variable.value for variable in model.variables]
    holders = {id(holder.handle): holder for holder in chain(_optimizer_variables(model), own)}
    found: dict[str, list[Any]] = {}
    for key, holder in holders.items():
        kind, path = names.get(key, (OPTIMIZER_STATE, _path(holder)))
        if kind != METRIC_STATE:
            found.setdefault(path, []).append(holder)
    return {path: same[0] for path, same in found.items() if len(same) == 1}


def _trace(step: Callable[[Any], Any], input_specs: Any) -> Any:
    """Return the step as one traced function; tracing makes the variables that the model still lacks."""
    if not tf.executing_eagerly():
        raise GraphImportError(
            "a Keras model can only be traced with eager execution, which is off; import it outside of any "
            "tf.Graph and without tf.compat.v1.disable_v2_behavior()"
        )
    with static_sparse_quotients():
        return tf.function(step).get_concrete_function(input_specs)


def _capture_variables(body: Any, model: Any) -> dict[str, tuple[Variable, Any]]:
    """Return captured variables of a traced step, and their holders, by the name of the placeholder.

    The order is that of the first use in the step; it is the same for the same program.
    """
    holders = {id(holder.handle): holder for holder in chain(_optimizer_variables(model), body.variables)}
    names = _state_names(model)
    taken: set[str] = set()
    found: dict[str, tuple[Variable, Any]] = {}
    for outer, inner in body.captures:
        holder = holders.get(id(outer))
        if holder is None:
            continue
        kind, path = names.get(id(outer), (OPTIMIZER_STATE, _path(holder)))
        path = _unique(path, taken)
        dtype, shape = holder.dtype.base_dtype.name, tuple(holder.shape.as_list())
        variable = Variable(path, kind + path, dtype, shape, inner.op.name)
        found[inner.op.name] = variable, holder
    return found


def _optimizer_variables(model: Any) -> Iterator[Any]:
    """Return the tf.Variables of all optimizers; training ops take some of them without a read."""
    # Optimizers are attributes of a model, also in lists and dicts.
    for optimizer in (value for _, value in _leaves(vars(model)) if hasattr(value, "apply_gradients")):
        variables = optimizer.variables
        for variable in variables() if callable(variables) else variables:
            yield variable if hasattr(variable, "handle") else variable.value


def _state_names(model: Any) -> dict[int, tuple[str, str]]:
    """Map identities of handles to kind of state and path, for metrics and the model; not for optimizers."""
    names: dict[int, tuple[str, str]] = {}
    for metric in model.metrics:
        for variable in metric.variables:
            # The variables of tf_keras metrics are all called "total" and "count".
            scope = "" if hasattr(variable, "path") else f"{metric.name}/"
            names[id(_handle(variable))] = METRIC_STATE, scope + _path(variable)
    for variable in model.variables:
        names.setdefault(id(_handle(variable)), (MODEL_STATE, _path(variable)))
    return names


def _handle(variable: Any) -> Any:
    """Return the resource of a tf.Variable, or of the one in a Keras 3 variable; None for anything else."""
    holder = variable if hasattr(variable, "handle") else getattr(variable, "value", None)
    return getattr(holder, "handle", None)


def _path(variable: Any) -> str:
    return str(variable.path if hasattr(variable, "path") else variable.name.partition(":")[0])


def _unique(path: str, taken: set[str]) -> str:
    """Make paths unique, as they are keys of a checkpoint: Keras lets variables have equal ones."""
    candidates = chain([path], (f"{path}_{number}" for number in count(1)))
    free = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(free)
    return free


def _global_step(
    body: Any, model: Any, captured: Mapping[str, tuple[Variable, Any]]
) -> tuple[Variable, bool]:
    """Return the variable that counts steps, and whether it is separate from the model."""
    iterations = _handle(getattr(getattr(model, "optimizer", None), "iterations", None))
    for key, (variable, holder) in captured.items():
        if holder.handle is iterations and _every_step_adds_one(body, key):
            return replace(variable, resource_name=GLOBAL_STEP), False
    return Variable(_OWN_COUNTER, GLOBAL_STEP, "int64", (), _OWN_COUNTER), True


def _every_step_adds_one(body: Any, key: str) -> bool:
    """Return whether a variable is written once, outside of any branch, by adding one."""
    writes = [op for op in body.get_operations() if key in accesses(op).writes]
    if len(writes) != 1:
        return False
    op, value = writes[0], writes[0].inputs[1]
    if op.type == "AssignVariableOp" and value.op.type == "AddV2":
        read, value = value.op.inputs
        return read.op.type == "ReadVariableOp" and key in accesses(read.op).reads and _is_one(value)
    return bool(op.type == "AssignAddVariableOp" and _is_one(value))


def _is_one(tensor: Any) -> bool:
    value = tf.get_static_value(tensor)
    return value is not None and value == 1


def _outputs(structured: Any, mode: str) -> dict[str, tf.Tensor]:
    """Return the logs of a step by name, or the predictions as `prediction` or `prediction/<name>`."""
    prefix = _PREDICTION if mode == "infer" else ""
    found = {"/".join([prefix, *path][not prefix :]): tensor for path, tensor in _leaves(structured)}
    return {name: tensor for name, tensor in found.items() if tf.is_tensor(tensor)}


def _leaves(structure: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the tensors of nested dicts and lists, with the path to each."""
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(structure, list | tuple):
        for position, value in enumerate(structure):
            yield from _leaves(value, (*path, str(position)))
    else:
        yield path, structure


_BACKEND = "keras.src.backend.tensorflow.numpy"


@contextmanager
def static_sparse_quotients() -> Iterator[None]:
    """Give the quotient of a sparse gradient and a tensor the rows of the gradient, in Keras 3, in the block.

    RMSprop, Adagrad, Adadelta and Adafactor divide the gradient of an embedding by the root of a sum of
    squares and an epsilon. Keras adds the rows in which the divisor has a zero or a NaN, whose number depends
    on the data. The root is above zero; a NaN in it comes from one in the same row of an earlier gradient,
    which has made the row of the weights NaN as well.
    """
    numpy: Any = sys.modules.get(_BACKEND)
    if numpy is None:
        yield
        return
    divide = numpy.divide

    def divide_rows(x1: Any, x2: Any) -> Any:
        if not isinstance(x1, tf.IndexedSlices) or not tf.is_tensor(x2) or not x2.shape.rank:
            return divide(x1, x2)
        if isinstance(x2, tf.IndexedSlices) or x2.shape != x1.shape:
            return divide(x1, x2)
        return tf.IndexedSlices(divide(x1.values, tf.gather(x2, x1.indices)), x1.indices, x1.dense_shape)

    numpy.divide = divide_rows
    try:
        yield
    finally:
        numpy.divide = divide
