"""Several models side by side in one program, each as if it were alone."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from estimator.calling import call_input_fn, call_model_fn, check_advances, check_model_fn, with_mean_loss
from estimator.checkpoints import open_checkpoint
from estimator.config import MULTI_MODEL_STACK_KEY
from estimator.errors import CallError, CheckpointReadError, InputFnError, ModelFnError
from estimator.input.dataset import features_and_labels, read_in_graph
from estimator.spec import SINGLE, EstimatorSpec, ModeKeys, metrics_of, named_predictions

log = logging.getLogger("estimator")

_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.-]*")
_HOOKS = ("training_hooks", "training_chief_hooks", "evaluation_hooks", "prediction_hooks")
_INFINITE = -1


class ModelInfo(NamedTuple):
    """One model of a fused program.

    Attributes:
        model_fn: As for an estimator of its own.
        input_fn: As for an estimator of its own; must give a Dataset, tensors, or `(features, labels)`.
        params: Given to both.
        deltat_scaling_factor: How many times longer than that of a model with factor 1 the delta_t of this
            one (the cycles from one of its samples to the next) may be; positive. It is passed on in
            `stack_params` and changes nothing here, which the log says: all models make their steps
            together, so the compiler gives each kernel of each model room by its work in such a step.
        name: The scope of the model's variables; `model_<n>` when None.
        checkpoint: Prefix or directory of a checkpoint of the model alone, or of a fused program that had it
            under this name: first values of its variables and of its step. None starts from the beginning.
    """

    model_fn: Callable[..., Any]
    input_fn: Callable[..., Any]
    params: Mapping[str, Any] | None = None
    deltat_scaling_factor: float = 1
    name: str | None = None
    checkpoint: str | None = None


class MultiModelFusion:
    """Several models as the one `model_fn`, `input_fn` and `params` of an estimator.

    Every step is one step of each model, on a batch of its own input. Nothing passes between the models: each
    sees collections of the graph and a global step (`<name>/global_step`) of its own, and comes to the
    weights that it would come to alone. The estimator's loss is the sum of their losses, which are logged as
    `<name>/loss`. Metrics are named `<name>/<metric>`, predictions `<name>/<prediction>`, or `<name>` where a
    model predicts a single tensor. The input ends with the shortest one.

        fusion = MultiModelFusion([ModelInfo(model_fn, input_fn, params, name="left"), ...])
        config = CSRunConfig(cs_ip, stack_params=fusion.stack_params)
        CerebrasEstimator(fusion.model_fn, model_dir, config=config, params=fusion.params).train(
            fusion.input_fn, max_steps=100
        )

    Args:
        models: The models, as ModelInfo or tuples of its fields.

    Raises:
        CallError: no models, a name twice or one that is no scope, a factor that is not positive.
        ModelFnError: a `model_fn` has the wrong arguments.
    """

    def __init__(self, models: Sequence[ModelInfo]) -> None:
        self._models = _checked(models)
        scaled = [name for name, info in self._models.items() if info.deltat_scaling_factor != 1]
        if scaled:
            log.warning(
                "deltat_scaling_factor of %s has no effect: all models make their steps together",
                ", ".join(scaled),
            )

    @property
    def params(self) -> dict[str, dict[str, Any]]:
        """The parameters of the models, by name."""
        return {name: dict(info.params or {}) for name, info in self._models.items()}

    @property
    def stack_params(self) -> dict[str, Any]:
        """What the compiler's stack is told about the models: name -> `deltat_scaling_factor`."""
        factors = {name: info.deltat_scaling_factor for name, info in self._models.items()}
        return {MULTI_MODEL_STACK_KEY: {"deltat_scaling_factor": factors}}

    def input_fn(
        self,
        params: Mapping[str, Any] | None = None,
        mode: str = ModeKeys.TRAIN,
        config: Any = None,
        input_context: Any = None,
    ) -> Any:
        """The inputs of all models: features by name, and labels by name where there are any.

        Args:
            params: Parameters by name; those of a model that is not among them are its own.
            mode: One of ModeKeys.
            config: The estimator's configuration.
            input_context: Which share of the records this task reads.

        Returns:
            A Dataset if those of all models are, else tensors.

        Raises:
            InputFnError: an input function cannot be used, or inputs of known length have different ones.
        """
        shards, shard = 1, 0
        if input_context is not None:
            shards, shard = input_context.num_input_pipelines, input_context.input_pipeline_id
        inputs = {}
        for name, info in self._models.items():
            with _named(name):
                own = self._params_of(name, params)
                inputs[name] = call_input_fn(info.input_fn, mode, own, config, shards, shard)
        return _side_by_side(inputs)

    def model_fn(self, features: Any, labels: Any, mode: str, params: Any, config: Any) -> EstimatorSpec:
        """Builds all models in the present graph.

        Args:
            features: Name -> features, as `input_fn` gives them.
            labels: Name -> labels; those of a model that is not among them are None.
            mode: One of ModeKeys.
            params: Parameters by name; those of a model that is not among them are its own.
            config: The estimator's configuration.

        Raises:
            ModelFnError: a `model_fn` returned something that cannot be used here.
            InputFnError: the features are not those of these models.
            CheckpointReadError: a model cannot start from its checkpoint.
        """
        import tensorflow as tf

        self._check_features(features)
        parts = {}
        for name, info in self._models.items():
            with own_scope(name) as counter, _named(name):
                own_labels = (labels or {}).get(name)
                own = self._params_of(name, params)
                spec = call_model_fn(info.model_fn, features[name], own_labels, mode, own, config)
                parts[name] = _part(spec, mode, counter)
                if info.checkpoint is not None:
                    start_from(info.checkpoint, name)
        return _fused(parts, mode, tf.compat.v1.train.get_or_create_global_step())

    def _params_of(self, name: str, params: Mapping[str, Any] | None) -> Mapping[str, Any]:
        given = (params or {}).get(name)
        return dict(self._models[name].params or {}) if given is None else given

    def _check_features(self, features: Any) -> None:
        names = list(self._models)
        if not isinstance(features, Mapping) or set(features) != set(names):
            got = f"a dict of {', '.join(features)}" if isinstance(features, Mapping) else repr(features)
            raise InputFnError(
                f"the features of a fused program must be a dict of {', '.join(names)}, one entry a model; "
                f"got {got}. Use the input_fn of the MultiModelFusion"
            )


class _Part(NamedTuple):
    """What one model contributes; metrics have the mean loss among them, when it is evaluated."""

    spec: EstimatorSpec
    metrics: Mapping[str, tuple[Any, Any]]


def _checked(models: Sequence[Any]) -> dict[str, ModelInfo]:
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
                f"MultiModelFusion got the name '{name}' twice; the names tell the models' variables apart"
            )
        found[name] = info
    return found


def _check_info(info: ModelInfo, name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CallError(
            f"the name of a model is the scope of its variables: letters, digits, '.', '_' and '-', "
            f"a letter, digit or '.' first; got {name!r}"
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
    with _named(name):
        check_model_fn(info.model_fn, has_params=bool(info.params))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Says which model it was when one of the user's functions cannot be used."""
    try:
        yield
    except (ModelFnError, InputFnError) as error:
        if type(error) not in (ModelFnError, InputFnError):
            raise
        raise type(error)(f"model '{name}': {error}") from error


def _side_by_side(inputs: Mapping[str, Any]) -> Any:
    import tensorflow as tf

    if all(isinstance(result, tf.data.Dataset) for result in inputs.values()):
        _check_lengths(inputs)
        # Errors of functions that AutoGraph has converted lose their words.
        by_part = tf.autograph.experimental.do_not_convert(_by_part)
        return tf.data.Dataset.zip(dict(inputs)).map(by_part).prefetch(tf.data.AUTOTUNE)
    return _by_part({name: read_in_graph(result) for name, result in inputs.items()})


def _by_part(elements: Mapping[str, Any]) -> Any:
    """Name -> (features, labels) as features by name and labels by name."""
    features, labels = {}, {}
    for name, element in elements.items():
        with _named(name):
            features[name], own_labels = features_and_labels(element)
        if own_labels is not None:
            labels[name] = own_labels
    return (features, labels) if labels else features


def _check_lengths(datasets: Mapping[str, Any]) -> None:
    """Refuses datasets of different known lengths: of the longer ones the last batches would be left out.

    One without an end goes with any other.
    """
    lengths = {name: length for name, length in _lengths(datasets).items() if length >= 0}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} of '{name}'" for name, length in lengths.items())
        raise InputFnError(
            f"the inputs of a fused program have different numbers of batches: {found}. Every step takes "
            "a batch for each model: repeat() the shorter ones, or take() as many of the longer ones"
        )


def _lengths(datasets: Mapping[str, Any]) -> dict[str, int]:
    """Number of elements; negative where there is no end or it is not known."""
    import tensorflow as tf

    counts = {name: dataset.cardinality() for name, dataset in datasets.items()}
    if tf.executing_eagerly():
        return {name: int(count) for name, count in counts.items()}
    with tf.compat.v1.Session(graph=tf.compat.v1.get_default_graph()) as session:
        found: dict[str, int] = session.run(counts)
    return found


def _part(spec: EstimatorSpec, mode: str, counter: Any) -> _Part:
    """Checks what a model returned, and adds what is told of each model apart."""
    import tensorflow as tf

    if spec.scaffold is not None:
        raise ModelFnError(
            "it returns a scaffold, but a fused program has one session for all. Give first values with "
            "ModelInfo.checkpoint"
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


def _fused(parts: Mapping[str, _Part], mode: str, global_step: Any) -> EstimatorSpec:
    specs = [part.spec for part in parts.values()]
    metrics = {f"{name}/{key}": pair for name, part in parts.items() for key, pair in part.metrics.items()}
    hooks: dict[str, Any] = {field: [h for spec in specs for h in getattr(spec, field)] for field in _HOOKS}
    if mode == ModeKeys.PREDICT:
        predictions = {
            name if key == SINGLE else f"{name}/{key}": tensor
            for name, part in parts.items()
            for key, tensor in named_predictions(part.spec).items()
        }
        return EstimatorSpec(mode, predictions=predictions, **hooks)
    loss, train_op = _sum(spec.loss for spec in specs), None
    if mode == ModeKeys.TRAIN:
        train_op = _one_step([spec.train_op for spec in specs], global_step)
    return EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics, **hooks)


def _sum(losses: Iterator[Any]) -> Any:
    import tensorflow as tf

    return tf.add_n([tf.cast(loss, tf.float32) for loss in losses])


def _one_step(train_ops: Sequence[Any], global_step: Any) -> Any:
    """All train ops, then one step more."""
    import tensorflow as tf

    with tf.control_dependencies(train_ops):
        return global_step.assign_add(1, read_value=False)


@contextmanager
def own_scope(name: str) -> Iterator[Any]:
    """Within it, variables and operations of the present graph have names below `<name>/`, the graph's
    collections (trainable variables, losses, updates, summaries) hold what is made within alone, and the
    global step is a counter of its own.

    Yields:
        That counter, `<name>/global_step`.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    graph = v1.get_default_graph()
    _restart_keras_names(graph)
    # A variable scope makes a name scope with a number where one of that name exists; this one must not.
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
    """Makes the initializers of the variables in an `own_scope` read a checkpoint; called within the scope.

    Args:
        checkpoint: Prefix, or a directory, of which it is the newest. It is of the model alone, whose
            variables have no scope in their names, or of a program in which the model has had this scope.
        scope: Name of the scope.

    Raises:
        CheckpointReadError: it is missing or damaged, lacks a trainable variable, or a shape differs.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    variables = {variable.op.name: variable for variable in v1.global_variables()}
    trainable = [variable.op.name for variable in v1.trainable_variables()]
    with open_checkpoint(checkpoint) as reader:
        names = _names_in(reader.get_variable_to_shape_map(), variables, trainable, scope)
        lacking = [name for name in trainable if name not in names]
        if lacking:
            raise CheckpointReadError(
                checkpoint, f"it lacks the variables {', '.join(lacking)} of model '{scope}'"
            )
        v1.train.init_from_checkpoint(checkpoint, {names[name]: variables[name] for name in names})
    others = [name for name in variables if name not in names]
    if others:
        log.warning(
            "checkpoint '%s' lacks %s: these start from initial values", checkpoint, ", ".join(others)
        )
    log.info("model '%s' starts from checkpoint %s", scope, checkpoint)


def _names_in(
    known: Collection[str], variables: Iterable[str], trainable: Iterable[str], scope: str
) -> dict[str, str]:
    """Names of variables -> those that a checkpoint knows them by."""
    with_scope = all(name in known for name in trainable)
    found = {name: name for name in variables} if with_scope else alone_names(variables, scope)
    return {name: there for name, there in found.items() if there in known}


def alone_names(variables: Iterable[str], scope: str) -> dict[str, str]:
    """Names of the variables of a scope -> those that they have without the scope.

    An optimizer names a slot after its variable, and puts it into the present scope: the moment of `a/w` is
    `a/a/w/Adam`, that of `w` is `w/Adam`.
    """
    prefix = f"{scope}/"
    names = list(variables)
    plain = {name: name.removeprefix(prefix) for name in names}
    for name, inner in plain.items():
        of_variable, _, slot = inner.rpartition("/")
        if of_variable in plain:
            plain[name] = f"{of_variable.removeprefix(prefix)}/{slot}"
    return plain


def _restart_keras_names(graph: Any) -> None:
    """Lets Keras name the next layers as it names the first ones of a program.

    Keras counts the layers of a process, tf_keras those of a graph. What is public for it does more: Keras
    would clear the graph that is being built, tf_keras forget the names in all graphs.
    """
    keras: Any = sys.modules.get("keras.src.utils.naming")
    if keras is not None:
        keras.reset_uids()
    tf_keras: Any = sys.modules.get("tf_keras.src.backend")
    if tf_keras is not None:
        tf_keras.PER_GRAPH_OBJECT_NAME_UIDS.pop(graph, None)


@contextmanager
def _own_collections(graph: Any) -> Iterator[None]:
    """Empties the collections of a graph; afterwards they hold what they held and what has come since."""
    import tensorflow as tf

    held = {key: graph.get_collection(key) for key in graph.get_all_collection_keys()}
    for key in held:
        graph.get_collection_ref(key).clear()
    try:
        yield
    finally:
        for key in graph.get_all_collection_keys():
            since = graph.get_collection(key)
            # Of the global step (and of what TensorFlow keeps beside it) a graph has one.
            of_step = key.startswith(tf.compat.v1.GraphKeys.GLOBAL_STEP)
            graph.get_collection_ref(key)[:] = [*held.get(key, []), *([] if of_step else since)]
