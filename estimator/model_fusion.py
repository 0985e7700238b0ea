"""Fusion of several models into one program, in which each trains as it would by itself."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from estimator.calling import call_input_fn, call_model_fn, check_advances, check_model_fn, with_mean_loss
from estimator.checkpoints import find_checkpoint, literal_path, open_checkpoint
from estimator.config import MULTI_MODEL_STACK_KEY
from estimator.errors import CallError, CheckpointReadError, InputFnError, ModelFnError
from estimator.input.dataset import features_and_labels, read_in_graph
from estimator.spec import SINGLE_PREDICTION, EstimatorSpec, ModeKeys, metrics_of, predictions_by_name

log = logging.getLogger("estimator")

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.-]*")
_HOOKS = ("training_hooks", "training_chief_hooks", "evaluation_hooks", "prediction_hooks")
_INFINITE = -1


class ModelInfo(NamedTuple):
    """One model of a fused program.

    Attributes:
        model_fn: As for a separate estimator.
        input_fn: As for a separate estimator; must return a Dataset, tensors, or `(features, labels)`.
        params: Passed to both.
        deltat_scaling_factor: Positive factor by which the delta_t of this model (the cycles between two of
            its samples) may be longer than that of a model with factor 1. It is passed on in `stack_params`
            but has no effect here, and a warning is logged: all models run their steps together, so the
            compiler sizes each kernel by its work in such a step.
        name: The scope of the model's variables; `model_<n>` if None.
        checkpoint: Prefix or directory of a checkpoint of this model by itself, or of a fused program that
            had it under this name: the initial values of its variables and its global step. None starts from
            initial values.
    """

    model_fn: Callable[..., Any]
    input_fn: Callable[..., Any]
    params: Mapping[str, Any] | None = None
    deltat_scaling_factor: float = 1
    name: str | None = None
    checkpoint: str | None = None


class MultiModelFusion:
    """Combines several models into one `model_fn`, `input_fn` and `params` of an estimator.

    Every step is one step of each model, on a batch of its input. The models share nothing: each has separate
    graph collections and a global step (`<name>/global_step`), and trains to the same weights as it would by
    itself. The estimator's loss is the sum of their losses, which are logged as `<name>/loss`. Metrics are
    named `<name>/<metric>`, and predictions `<name>/<prediction>`, or `<name>` if a model predicts a single
    tensor. The input ends with the shortest one::

        fusion = MultiModelFusion([ModelInfo(model_fn, input_fn, params, name="left"), ...])
        config = CSRunConfig(cs_ip, stack_params=fusion.stack_params)
        CerebrasEstimator(fusion.model_fn, model_dir, config=config, params=fusion.params).train(
            fusion.input_fn, max_steps=100
        )

    Args:
        models: The models, as ModelInfo or tuples of its fields.

    Raises:
        CallError: There is no model, a name is not a valid scope or used twice, or a factor is not positive.
        ModelFnError: A `model_fn` has the wrong arguments.
    """

    def __init__(self, models: Sequence[ModelInfo]) -> None:
        self._models = _validate_models(models)
        scaled = [name for name, info in self._models.items() if info.deltat_scaling_factor != 1]
        if scaled:
            log.warning(
                "deltat_scaling_factor of %s has no effect: all models run their steps together",
                ", ".join(scaled),
            )

    @property
    def params(self) -> dict[str, dict[str, Any]]:
        """The parameters of the models, by name."""
        return {name: dict(info.params or {}) for name, info in self._models.items()}

    @property
    def stack_params(self) -> dict[str, Any]:
        """Options of the models for the compiler's stack: name -> `deltat_scaling_factor`."""
        factors = {name: info.deltat_scaling_factor for name, info in self._models.items()}
        return {MULTI_MODEL_STACK_KEY: {"deltat_scaling_factor": factors}}

    def input_fn(
        self,
        params: Mapping[str, Any] | None = None,
        mode: str = ModeKeys.TRAIN,
        config: Any = None,
        input_context: Any = None,
    ) -> Any:
        """Combine the inputs of all models: features by name, and labels by name if there are any.

        Args:
            params: Parameters by name of the model; by default those of its ModelInfo.
            mode: One of ModeKeys.
            config: The estimator's configuration.
            input_context: The shard of the records that this task reads.

        Returns:
            A Dataset if the inputs of all models are Datasets, else tensors.

        Raises:
            InputFnError: An input function cannot be used, or the known lengths of inputs differ.
        """
        shards, shard = 1, 0
        if input_context is not None:
            shards, shard = input_context.num_input_pipelines, input_context.input_pipeline_id
        inputs = {}
        for name, info in self._models.items():
            with _name_model_in_errors(name):
                own = self._params_of(name, params)
                inputs[name] = call_input_fn(info.input_fn, mode, own, config, shards, shard)
        return _zip_inputs(inputs)

    def model_fn(self, features: Any, labels: Any, mode: str, params: Any, config: Any) -> EstimatorSpec:
        """Build all models in the default graph.

        Args:
            features: Features by name of the model, from `input_fn`.
            labels: Labels by name of the model; a model without labels gets None.
            mode: One of ModeKeys.
            params: Parameters by name of the model; by default those of its ModelInfo.
            config: The estimator's configuration.

        Raises:
            ModelFnError: The result of a `model_fn` cannot be used here.
            InputFnError: The features are not those of these models.
            CheckpointReadError: A model cannot start from its checkpoint.
        """
        import tensorflow as tf

        self._check_features(features)
        parts = {}
        for name, info in self._models.items():
            with model_scope(name) as counter, _name_model_in_errors(name):
                own_labels = (labels or {}).get(name)
                own = self._params_of(name, params)
                spec = call_model_fn(info.model_fn, features[name], own_labels, mode, own, config)
                parts[name] = _make_part(spec, mode, counter)
                if info.checkpoint is not None:
                    start_from(info.checkpoint, name)
        return _fuse(parts, mode, tf.compat.v1.train.get_or_create_global_step())

    def _params_of(self, name: str, params: Mapping[str, Any] | None) -> Mapping[str, Any]:
        given = (params or {}).get(name)
        return dict(self._models[name].params or {}) if given is None else given

    def _check_features(self, features: Any) -> None:
        names = list(self._models)
        if not isinstance(features, Mapping) or set(features) != set(names):
            got = f"a dict of {', '.join(features)}" if isinstance(features, Mapping) else repr(features)
            raise InputFnError(
                f"the features of a fused program must be a dict of {', '.join(names)}, one for each model; "
                f"got {got}. Use the input_fn of the MultiModelFusion"
            )


class _Part(NamedTuple):
    """The spec of one model, and its metrics, which include the mean loss in an evaluation."""

    spec: EstimatorSpec
    metrics: Mapping[str, tuple[Any, Any]]


def _validate_models(models: Sequence[Any]) -> dict[str, ModelInfo]:
    if not isinstance(models, (list, tuple)) or isinstance(models, ModelInfo) or not models:
        raise CallError(f"MultiModelFusion needs a list of at least one ModelInfo, got {models!r}")
    found: dict[str, ModelInfo] = {}
    for index, model in enumerate(models):
        if not isinstance(model, tuple) or not 2 <= len(model) <= len(ModelInfo._fields):
            raise CallError(f"models[{index}] of MultiModelFusion must be a ModelInfo, got {model!r}")
        info = ModelInfo(*model)
        name = f"model_{index}" if info.name is None else info.name
        _check_info(info, name)
        if name in found:
            raise CallError(
                f"MultiModelFusion got the name '{name}' twice; the variables of a model are named after it"
            )
        found[name] = info
    return found


def _check_info(info: ModelInfo, name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CallError(
            f"the name of a model is the scope of its variables: letters, digits, '.', '_' and '-', starting "
            f"with a letter, a digit or '.'; got {name!r}"
        )
    factor = info.deltat_scaling_factor
    if (
        isinstance(factor, bool)
        or not isinstance(factor, (int, float))
        or not (math.isfinite(factor) and factor > 0)
    ):
        raise CallError(f"deltat_scaling_factor of model '{name}' must be a number > 0, got {factor!r}")
    if info.params is not None and not isinstance(info.params, Mapping):
        raise CallError(f"params of model '{name}' must be a dict or None, got {info.params!r}")
    with _name_model_in_errors(name):
        check_model_fn(info.model_fn, has_params=bool(info.params))


@contextmanager
def _name_model_in_errors(name: str) -> Iterator[None]:
    """Add the name of the model to errors of its `model_fn` and `input_fn`."""
    try:
        yield
    except (ModelFnError, InputFnError) as error:
        if type(error) not in (ModelFnError, InputFnError):
            raise
        raise type(error)(f"model '{name}': {error}") from error


def _zip_inputs(inputs: Mapping[str, Any]) -> Any:
    import tensorflow as tf

    if all(isinstance(result, tf.data.Dataset) for result in inputs.values()):
        _check_lengths(inputs)
        # AutoGraph would replace the messages of errors in the function.
        by_part = tf.autograph.experimental.do_not_convert(_split_features_and_labels)
        return tf.data.Dataset.zip(dict(inputs)).map(by_part).prefetch(tf.data.AUTOTUNE)
    return _split_features_and_labels({name: read_in_graph(result) for name, result in inputs.items()})


def _split_features_and_labels(elements: Mapping[str, Any]) -> Any:
    """Turn the elements of models into features by name and labels by name."""
    features, labels = {}, {}
    for name, element in elements.items():
        with _name_model_in_errors(name):
            features[name], own_labels = features_and_labels(element)
        if own_labels is not None:
            labels[name] = own_labels
    return (features, labels) if labels else features


def _check_lengths(datasets: Mapping[str, Any]) -> None:
    """Refuse datasets of different known lengths: the last batches of the longer ones would be lost."""
    import tensorflow as tf

    counts = {name: dataset.cardinality() for name, dataset in datasets.items()}
    if not tf.executing_eagerly():
        with tf.compat.v1.Session(graph=tf.compat.v1.get_default_graph()) as session:
            counts = session.run(counts)
    # A negative number means unknown or infinite.
    lengths = {name: int(count) for name, count in counts.items() if int(count) >= 0}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} of '{name}'" for name, length in lengths.items())
        raise InputFnError(
            f"the inputs of a fused program have different numbers of batches: {found}. Every step takes "
            "a batch for each model: repeat() the shorter inputs, or take() fewer batches of the longer ones"
        )


def _make_part(spec: EstimatorSpec, mode: str, counter: Any) -> _Part:
    """Check the spec of a model, and add its metrics and the summary of its loss."""
    import tensorflow as tf

    if spec.scaffold is not None:
        raise ModelFnError(
            "it returns a scaffold, but a fused program has one session for all models. Set initial values "
            "with ModelInfo.checkpoint"
        )
    if spec.mode != mode:
        raise ModelFnError(f"it returns an EstimatorSpec of mode '{spec.mode}', expected '{mode}'")
    if mode == ModeKeys.PREDICT:
        return _Part(spec, {})
    if mode == ModeKeys.EVAL:
        return _Part(spec, with_mean_loss(spec))
    check_advances(spec.train_op, counter)
    tf.compat.v1.summary.scalar("loss", spec.loss)
    return _Part(spec, metrics_of(spec))


def _fuse(parts: Mapping[str, _Part], mode: str, global_step: Any) -> EstimatorSpec:
    """Combine the specs of all models into one."""
    import tensorflow as tf

    specs = [part.spec for part in parts.values()]
    metrics = {f"{name}/{key}": pair for name, part in parts.items() for key, pair in part.metrics.items()}
    hooks: dict[str, Any] = {field: [h for spec in specs for h in getattr(spec, field)] for field in _HOOKS}
    if mode == ModeKeys.PREDICT:
        predictions = {
            name if key == SINGLE_PREDICTION else f"{name}/{key}": tensor
            for name, part in parts.items()
            for key, tensor in predictions_by_name(part.spec).items()
        }
        return EstimatorSpec(mode, predictions=predictions, **hooks)
    loss, train_op = tf.add_n([tf.cast(spec.loss, tf.float32) for spec in specs]), None
    if mode == ModeKeys.TRAIN:
        with tf.control_dependencies([spec.train_op for spec in specs]):
            train_op = global_step.assign_add(1, read_value=False)
    return EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics, **hooks)


@contextmanager
def model_scope(name: str) -> Iterator[Any]:
    """Build a model in the default graph as if it were the only one in it.

    In the body, variables and operations have names below `<name>/`, the graph's collections (trainable
    variables, losses, updates, summaries) have the members added in the body only, and the global step is a
    separate counter.

    Yields:
        That counter, `<name>/global_step`.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    graph = v1.get_default_graph()
    _restart_keras_names(graph)
    # By default a variable scope opens a name scope, which gets a number if its name already exists.
    scope = v1.variable_scope(name, auxiliary_name_scope=False)
    with _own_collections(graph), scope, tf.name_scope(f"{name}/"):
        yield v1.get_variable(
            v1.GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=tf.int64,
            initializer=v1.zeros_initializer(),
            trainable=False,
            collections=[v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.GLOBAL_STEP],
        )


def start_from(checkpoint: str, scope: str) -> None:
    """Make the initializers of the variables in a `model_scope` read a checkpoint; call it in the scope.

    Args:
        checkpoint: Prefix of the checkpoint, or a directory for the newest one in it. It is of the model by
            itself, without a scope in the names of variables, or of a program with the model in this scope.
        scope: Name of the scope.

    Raises:
        CheckpointReadError: It is missing or damaged, lacks a trainable variable, or a shape differs.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    variables = {variable.op.name: variable for variable in v1.global_variables()}
    trainable = [variable.op.name for variable in v1.trainable_variables()]
    checkpoint = find_checkpoint(checkpoint)
    with open_checkpoint(checkpoint) as reader:
        known = reader.get_variable_to_shape_map()
        with_scope = all(name in known for name in trainable)
        names = {name: name for name in variables} if with_scope else names_without_scope(variables, scope)
        names = {name: there for name, there in names.items() if there in known}
        lacking = [name for name in trainable if name not in names]
        if lacking:
            raise CheckpointReadError(
                checkpoint, f"it lacks the variables {', '.join(lacking)} of model '{scope}'"
            )
        renamed = {names[name]: variables[name] for name in names}
        v1.train.init_from_checkpoint(literal_path(checkpoint), renamed)
    others = [name for name in variables if name not in names]
    if others:
        log.warning("checkpoint '%s' lacks %s: they start from initial values", checkpoint, ", ".join(others))
    log.info("model '%s' starts from checkpoint %s", scope, checkpoint)


def names_without_scope(variables: Iterable[str], scope: str) -> dict[str, str]:
    """Return the names that the variables of a scope have without the scope, by their names in it."""
    # An optimizer names a slot after its variable and puts it into the current scope: the moment of `a/w` is
    # `a/a/w/Adam`, while that of `w` is `w/Adam`.
    prefix = f"{scope}/"
    names = list(variables)
    plain = {name: name.removeprefix(prefix) for name in names}
    for name, inner in plain.items():
        of_variable, _, slot = inner.rpartition("/")
        if of_variable in plain:
            plain[name] = f"{of_variable.removeprefix(prefix)}/{slot}"
    return plain


def _restart_keras_names(graph: Any) -> None:
    """Make Keras name the next layers like the first ones of a program."""
    # Keras numbers layers by process, tf_keras by graph. Their public functions do too much: that of Keras
    # also clears the graph that is being built, that of tf_keras resets the names in all graphs.
    keras: Any = sys.modules.get("keras.src.utils.naming")
    if keras is not None:
        keras.reset_uids()
    tf_keras: Any = sys.modules.get("tf_keras.src.backend")
    if tf_keras is not None:
        tf_keras.PER_GRAPH_OBJECT_NAME_UIDS.pop(graph, None)


@contextmanager
def _own_collections(graph: Any) -> Iterator[None]:
    """Empty the collections of a graph for the body; afterwards restore their members before the new ones."""
    import tensorflow as tf

    held = {key: graph.get_collection(key) for key in graph.get_all_collection_keys()}
    for key in held:
        graph.get_collection_ref(key).clear()
    try:
        yield
    finally:
        for key in graph.get_all_collection_keys():
            since = graph.get_collection(key)
            # A graph has one global step, and one of what TensorFlow stores with it.
            of_step = key.startswith(tf.compat.v1.GraphKeys.GLOBAL_STEP)
            graph.get_collection_ref(key)[:] = [*held.get(key, []), *([] if of_step else since)]
