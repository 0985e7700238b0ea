"""Keras models: KerasEstimator, and `keras_model_fn`, which makes a `model_fn` of a Keras model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cs_toolkit.step import METRIC_STATE, MODEL_STATE, OPTIMIZER_STATE
from estimator.backend import Backend, Batches, Setup
from estimator.checkpoints import open_checkpoint, resolve_checkpoint
from estimator.errors import CallError, CheckpointReadError, ModelFnError
from estimator.estimators import EstimatorFacade
from estimator.input.dataset import WeightedLabels
from estimator.layer_lines import line_of, watch_layers
from estimator.spec import EstimatorSpec, ModeKeys

if TYPE_CHECKING:
    from cs_runtime.destination import Destination
    from estimator.cpu import CpuBackend
    from estimator.cs.keras_program import KerasFrontEnd
    from estimator.cs.run import CsBackend
    from estimator.cs.state import StateOptions
    from estimator.input.dataset import InputSource


log = logging.getLogger("estimator")

watch_layers()  # before the program creates layers

_STEP = "global_step"
_LOSS = "loss"
_PREDICTION = "prediction"
_TRACED_MODES = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "eval", ModeKeys.PREDICT: "infer"}


class KerasEstimator(EstimatorFacade):
    """Runs a compiled Keras model on the CS system: what `fit` does on a CPU.

    A step is one call of the model's `train_step`. Logged values are those that `fit` shows: means since the
    start of the run. A batch is x, (x, y) or (x, y, sample_weight). Training resumes from the newest
    checkpoint in `model_dir`. `evaluate` and `predict` use that checkpoint or another one, on the CS system
    or on this CPU, and do not change the model.

    After `train` the model has the trained weights, so its own `evaluate`, `predict` and `save` use them on
    this CPU. In another process, `load_checkpoint()` loads them into the model.

    Args:
        model: A Keras 3 or tf_keras model, built, and compiled with optimizer and loss.
        model_dir: Directory of checkpoints, events and summaries. If None, that of the config, or else a
            temporary directory.
        compile_dir: Directory of compile artifacts; `model_dir` if None.
        config: A CSRunConfig; None for the defaults.
        params: Passed to `input_fn` as a copy.
    """

    _parts = ("features", "labels", "sample_weight")

    def __init__(
        self,
        model: Any,
        model_dir: str | Path | None = None,
        compile_dir: str | Path | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model_dir, compile_dir, config, params)
        self.model = model

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The model as a `model_fn`, made by `keras_model_fn`."""
        return keras_model_fn(self.model)

    def load_checkpoint(self, checkpoint_path: str | None = None) -> Any:
        """Load a checkpoint into the model, and into its optimizer if the model is compiled.

        Then `estimator.load_checkpoint().evaluate(x, y)` is Keras' own evaluation of the trained model, and
        `fit` continues its training.

        Args:
            checkpoint_path: The checkpoint, or a directory for the newest one in it; None for the newest one
                in `model_dir`.

        Returns:
            The model.

        Raises:
            CheckpointReadError: There is no checkpoint, it cannot be read, or it is of another model.
        """

        prefix = resolve_checkpoint(checkpoint_path, self._model_dir)
        if prefix is None:
            raise CheckpointReadError(self.model_dir, "the directory has no checkpoint")
        load_checkpoint_into(self.model, prefix)
        return self.model

    def _cpu_backend(self, destination: Destination) -> Backend:
        return _KerasCpuBackend(self._setup(destination), self.model)

    def _cs_backend(self, destination: Destination) -> CsBackend:
        from estimator.cs.run import CsBackend

        return CsBackend(self._setup(destination), self._front_end)

    def _front_end(self, source: InputSource, options: StateOptions, hooks: tuple[Any, ...]) -> KerasFrontEnd:
        from estimator.cs.keras_program import KerasFrontEnd

        return KerasFrontEnd(self.model, source, self._config, self._model_dir, options, hooks)


class _KerasCpuBackend:
    """Evaluates and predicts on this CPU from checkpoints. It does not train: the model's `fit` does."""

    def __init__(self, setup: Setup, model: Any) -> None:
        self._setup = setup
        self._model = model

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> None:
        """Refuse to train.

        Raises:
            CallError: In the chief.
        """
        from estimator.cpu import runs_in_this_task

        if runs_in_this_task("train"):
            raise CallError(
                "train() of a KerasEstimator runs on the CS system, but got "
                f"{self._setup.destination.reason}; on this CPU call fit() of "
                "the Keras model itself, after load_checkpoint() to continue a training run"
            )

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        """Evaluate as `CpuBackend` does, with a graph of the model's `test_step`."""
        return self._backend().evaluate(input_fn, steps, hooks, checkpoint_path, name)

    def predict(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        num_samples: int | None,
    ) -> Batches:
        """Predict as `CpuBackend` does, with a graph of the model's `predict_step`."""
        yield from self._backend().predict(input_fn, hooks, checkpoint_path, num_samples)

    def _backend(self) -> CpuBackend:
        from estimator.cpu import CpuBackend

        return CpuBackend(self._setup, keras_model_fn(self._model))


def keras_model_fn(keras_model: Any) -> Callable[..., EstimatorSpec]:
    """Make a `model_fn(features, labels, mode, params)` that runs the step of a Keras model.

    A step is one call of the model's `train_step`, `test_step` or `predict_step` on `features` or
    `(features, labels)`, with the optimizer, losses and metrics that the model is compiled with. `loss` and
    the other values that `fit` shows are those of the batch and are written as summaries; metrics of an
    evaluation cover all of its batches. Predictions have the structure that the model returns. `params` are
    not used.

    Variables start from the model's current values, and their Keras paths are their names in checkpoints. The
    model itself keeps its values (`KerasEstimator` writes the trained ones back).

    Args:
        keras_model: A Keras 3 or tf_keras model, compiled with optimizer and loss unless it only predicts.

    Raises:
        ModelFnError: The model is unsupported; the `model_fn` raises it if the model is not compiled.
    """
    has_steps = all(callable(getattr(keras_model, step, None)) for step in ("train_step", "predict_step"))
    if not has_steps or any("training_v1" in kind.__module__ for kind in type(keras_model).__mro__):
        raise ModelFnError(
            "expected a Keras model with train_step and predict_step, created in eager execution, "
            f"got {keras_model!r}. Create it outside of graphs and without tf.compat.v1.disable_v2_behavior()"
        )

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        return _KerasGraph(keras_model, features, labels, mode).spec()

    return model_fn


class _KerasGraph:
    """Builds the step of one mode in the default graph."""

    def __init__(self, model: Any, features: Any, labels: Any, mode: str) -> None:
        self._model = model
        self._mode = mode
        others = labels if isinstance(labels, WeightedLabels) else (labels,)
        self._batch = features if labels is None else (features, *others)
        self._variables: dict[int, Any] = {}  # by the id of the tf.Variable that has the initial value

    def spec(self) -> EstimatorSpec:
        """Build the step and return its EstimatorSpec."""
        if self._mode == ModeKeys.PREDICT:
            outputs = self._call_step(self._model.predict_step, self._batch)
            # A single tensor, or several by name or position.
            several = {name.removeprefix(f"{_PREDICTION}/"): tensor for name, tensor in outputs.items()}
            return EstimatorSpec(self._mode, predictions=outputs.get(_PREDICTION, several))
        if not _is_compiled(self._model):
            raise ModelFnError(
                f"the Keras model '{self._model.name}' is not compiled; to train or evaluate it call "
                "model.compile(optimizer, loss) first"
            )
        return self._build_training_spec() if self._mode == ModeKeys.TRAIN else self._build_evaluation_spec()

    def _build_training_spec(self) -> EstimatorSpec:
        import tensorflow as tf

        logs = self._call_step(_reset_metrics_first(self._model, "train_step"), self._batch)
        loss = _require_loss(logs, "train_step")
        for name, value in logs.items():
            if name != _LOSS and value.shape.rank == 0:
                tf.compat.v1.summary.scalar(name, value)
        with tf.control_dependencies([loss]):  # an output of the call that runs the whole step
            train_op = tf.compat.v1.train.get_or_create_global_step().assign_add(1, read_value=False)
        return EstimatorSpec(self._mode, loss=loss, train_op=train_op)

    def _build_evaluation_spec(self) -> EstimatorSpec:
        import tensorflow as tf

        with tf.__internal__.eager_context.eager_mode():
            # Otherwise the totals of the model's last call would be the initial values.
            self._model.reset_metrics()
        loss = _require_loss(
            self._call_step(_reset_metrics_first(self._model, "test_step"), self._batch), "test_step"
        )
        values = self._call_step(lambda _: self._model.get_metrics_result(), ())
        # The loss is an output of the call that runs the whole step.
        metrics = {name: (value, loss.op) for name, value in values.items() if name != _LOSS}
        return EstimatorSpec(self._mode, loss=loss, eval_metric_ops=metrics)

    def _call_step(self, step: Callable[[Any], Any], batch: Any) -> dict[str, Any]:
        """Call a step of the model in the default graph, on variables of that graph; return its results."""
        import tensorflow as tf

        from cgc.importers.tensorflow import trace_keras_step

        specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch)
        # The model and its variables live outside of all graphs.
        with tf.__internal__.eager_context.eager_mode():
            traced = trace_keras_step(
                self._model,
                specs,
                mode=_TRACED_MODES[self._mode],
                step=step,
                layer_line=line_of,
            )
            constants = traced.constants()
        captures = [
            self._replace_capture(outer, inner, traced.captured, constants)
            for outer, inner in traced.body.captures
        ]
        traced.function.set_external_captures(captures)
        return dict(traced.name_results(traced.function(batch)))

    def _replace_capture(
        self, outer: Any, inner: Any, variables: Mapping[str, Any], constants: Mapping[str, Any]
    ) -> Any:
        """Return the tensor of the default graph that replaces a captured tensor of the model."""
        import tensorflow as tf

        if inner.op.name in variables:
            variable, holder = variables[inner.op.name]
            return self._make_variable(variable.name, variable.resource_name, holder).handle
        if inner.name in constants:
            return tf.constant(constants[inner.name])
        raise ModelFnError(
            f"the Keras model '{self._model.name}' uses {outer!r}, which is neither a variable nor a number; "
            "look strings up in input_fn"
        )

    def _make_variable(self, name: str, resource_name: str, holder: Any) -> Any:
        """Return the variable of the default graph that starts from the value of a model variable."""
        import tensorflow as tf

        from cgc.importers.tensorflow import OPTIMIZER_VARIABLES

        v1 = tf.compat.v1
        keys = v1.GraphKeys
        if id(holder) in self._variables:
            return self._variables[id(holder)]
        is_metric = resource_name.startswith(METRIC_STATE)
        collections = [keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES] if is_metric else [keys.GLOBAL_VARIABLES]
        if resource_name.startswith(OPTIMIZER_STATE):
            collections.append(OPTIMIZER_VARIABLES)
        dtype = holder.dtype.base_dtype

        def read_value(shape: Any, dtype: Any, partition_info: Any = None) -> Any:
            value = tf.numpy_function(lambda: holder.numpy(), [], dtype)
            value.set_shape(shape)
            return value

        self._variables[id(holder)] = v1.get_variable(
            name,
            holder.shape,
            dtype,
            # Read at initialization: as constants, the values of all weights would be part of the graph.
            read_value,
            trainable=holder.trainable and resource_name.startswith(MODEL_STATE),
            collections=collections,
            use_resource=True,
        )
        return self._variables[id(holder)]


def _reset_metrics_first(model: Any, step: str) -> Callable[[Any], Any]:
    """Return a step that first resets the metrics that it reports per batch."""

    # In training these are all metrics. In evaluation it is the loss only: the estimator averages it itself.
    def reset_and_step(data: Any) -> Any:
        for metric in model.metrics:
            if step == "train_step" or metric.name == _LOSS:
                metric.reset_state()
        return getattr(model, step)(data)

    return reset_and_step


def _is_compiled(model: Any) -> bool:
    # tf_keras has no public attribute for this.
    return bool(getattr(model, "compiled", getattr(model, "_is_compiled", True)))


def _require_loss(logs: Mapping[str, Any], step: str) -> Any:
    if _LOSS not in logs:
        raise ModelFnError(
            f"{step} of the Keras model returns {', '.join(logs) or 'nothing'}, "
            f"expected the loss among them, as '{_LOSS}'"
        )
    return logs[_LOSS]


def load_checkpoint_into(model: Any, prefix: str) -> None:
    """Load a checkpoint into a Keras model, and into its optimizer if the model is compiled.

    Raises:
        CheckpointReadError: The checkpoint cannot be read, or is of another model; the model is unchanged.
    """
    from cgc.importers.tensorflow import keras_variables

    variables = keras_variables(model)
    with open_checkpoint(prefix) as reader:
        shapes = reader.get_variable_to_shape_map()
        _check(model, prefix, variables, shapes)
        # Variables that the checkpoint lacks keep their values, unless they are trainable: they belong to
        # layers that the step does not use.
        for name, variable in variables.items():
            if name in shapes:
                variable.assign(reader.get_tensor(name))
        iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
        if iterations is not None and _STEP in shapes:
            # Unless the checkpoint has the optimizer's own step count besides the global step.
            holder = iterations if hasattr(iterations, "handle") else iterations.value
            if not any(v.handle is holder.handle and name in shapes for name, v in variables.items()):
                iterations.assign(reader.get_tensor(_STEP))
    log.info("Restoring parameters from %s", prefix)


def _check(model: Any, prefix: str, variables: dict[str, Any], shapes: dict[str, Any]) -> None:
    handles = {id(variable.handle): name for name, variable in variables.items()}
    trained = [v if hasattr(v, "handle") else v.value for v in model.trainable_variables]
    unnamed = [v for v in trained if id(v.handle) not in handles]
    if unnamed:
        raise CheckpointReadError(
            prefix,
            f"several variables of the model are called '{unnamed[0].name}'; give the layers unique names",
        )
    lacking = [handles[id(v.handle)] for v in trained if handles[id(v.handle)] not in shapes]
    if lacking:
        raise CheckpointReadError(prefix, f"it lacks the variables {', '.join(lacking)}")
    for name, variable in variables.items():
        if name in shapes and not variable.shape.is_compatible_with(shapes[name]):
            raise CheckpointReadError(
                prefix,
                f"variable '{name}' has the shape {tuple(shapes[name])} in it, "
                f"but {tuple(variable.shape.as_list())} in the model",
            )
