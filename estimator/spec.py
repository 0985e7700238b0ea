"""The result of a `model_fn`, its modes, and the settings of `train_and_evaluate` and of warm starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cs_toolkit.errors import suggestion
from cs_toolkit.step import Mode
from estimator.checkpoints import find_checkpoint, literal_path
from estimator.errors import (
    CallError,
    CheckpointReadError,
    ModelFnError,
    UnknownFieldError,
    essence,
)


class ModeKeys:
    """The modes of a `model_fn`, with the values of the removed `tf.estimator.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)

# The compiler's names of the modes.
PROGRAM_MODES: Mapping[str, Mode] = {
    ModeKeys.TRAIN: "train",
    ModeKeys.EVAL: "eval",
    ModeKeys.PREDICT: "infer",
}

# Key of the predictions if `model_fn` predicts a single tensor instead of a dict.
SINGLE_PREDICTION = ""

_HOOKS = ("training_chief_hooks", "training_hooks", "evaluation_hooks", "prediction_hooks")
_REQUIRED = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


class _SpecFields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: dict[str, tuple[Any, Any]]
    export_outputs: Any
    training_chief_hooks: tuple[Any, ...]
    training_hooks: tuple[Any, ...]
    scaffold: Any
    evaluation_hooks: tuple[Any, ...]
    prediction_hooks: tuple[Any, ...]
    host_call: Any


class EstimatorSpec(_SpecFields):
    """The result of a `model_fn`: the tensors and ops of one mode.

    Args:
        mode: One of ModeKeys.
        predictions: Tensor or dict of tensors whose first dimension is the batch; required to predict.
        loss: Scalar tensor; required to train and evaluate.
        train_op: Op that runs one training step and advances the global step; required to train.
        eval_metric_ops: Name -> (value tensor, update op), as returned by `tf.compat.v1.metrics`.
        export_outputs: Kept, not used.
        training_chief_hooks: Session hooks of training, in the chief.
        training_hooks: Session hooks of training.
        scaffold: A `tf.compat.v1.train.Scaffold` for sessions on this CPU.
        evaluation_hooks: Session hooks of evaluation.
        prediction_hooks: Session hooks of prediction.

    Raises:
        ValueError: A value that the mode requires is missing or has the wrong form.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, tuple[Any, Any]] | None = None,
        export_outputs: Any = None,
        training_chief_hooks: Sequence[Any] | None = None,
        training_hooks: Sequence[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Sequence[Any] | None = None,
        prediction_hooks: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        """Create a spec, and check it against its mode."""
        return cls._validate(
            mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=eval_metric_ops,
            export_outputs=export_outputs,
            training_chief_hooks=training_chief_hooks,
            training_hooks=training_hooks,
            scaffold=scaffold,
            evaluation_hooks=evaluation_hooks,
            prediction_hooks=prediction_hooks,
        )

    @classmethod
    def _validate(cls, mode: str, host_call: Any = None, **fields: Any) -> EstimatorSpec:
        if mode not in MODES:
            raise ModelFnError(f"EstimatorSpec got mode {mode!r}, expected one of {', '.join(MODES)}")
        for name in _REQUIRED[mode]:
            if fields[name] is None:
                raise ModelFnError(f"EstimatorSpec of mode '{mode}' needs {name}, got None")
        import tensorflow as tf

        train_op, predictions = fields["train_op"], fields["predictions"]
        if not (train_op is None or tf.is_tensor(train_op) or isinstance(train_op, tf.Operation)):
            raise ModelFnError(
                "train_op must be an op or a tensor, such as optimizer.minimize(...) returns; got "
                f"{train_op!r}"
            )
        if predictions is None:
            predictions = {}
        named = predictions if isinstance(predictions, Mapping) else {"predictions": predictions}
        for name, value in named.items():
            if not tf.is_tensor(value):
                raise ModelFnError(f"predictions['{name}'] must be a tensor, got {value!r}")
        values = {
            **fields,
            "predictions": predictions,
            "loss": _scalar_loss(fields["loss"]),
            "eval_metric_ops": _validate_metrics(fields["eval_metric_ops"]),
            **{name: validate_hooks(name, fields[name]) for name in _HOOKS},
        }
        return _SpecFields.__new__(cls, mode=mode, host_call=host_call, **values)


class CSEstimatorSpec(EstimatorSpec):
    """An EstimatorSpec with metrics that are computed on the host.

    Args:
        mode: One of ModeKeys.
        host_call: `(function, tensors)`; `function(*tensors)` returns name -> (value, update op). It replaces
            `eval_metric_ops`: only one of the two may be set. A third member, a list that the original stack
            read on the host, is accepted and not used.
        **fields: Fields of `EstimatorSpec`.
    """

    __slots__ = ()

    def __new__(cls, mode: str, host_call: Any = None, **fields: Any) -> CSEstimatorSpec:
        """Create a spec, and check it against its mode."""
        known = [name for name in _SpecFields._fields if name not in ("mode", "host_call")]
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise UnknownFieldError(
                f"CSEstimatorSpec got an unexpected keyword argument '{unknown[0]}'"
                f"{suggestion(unknown[0], known)} (known: {', '.join(known)})"
            )
        if host_call is not None:
            validate_host_call(host_call)
            if fields.get("eval_metric_ops"):
                raise ModelFnError("CSEstimatorSpec got host_call and eval_metric_ops; set one of them")
        values = {name: fields.get(name) for name in known}
        spec = cls._validate(mode, host_call=host_call, **values)
        assert isinstance(spec, CSEstimatorSpec)
        return spec


class TrainSpec(NamedTuple):
    """Settings of the training in `train_and_evaluate`."""

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Any] = ()


class EvalSpec(NamedTuple):
    """Settings of the evaluation in `train_and_evaluate`, which runs every `throttle_secs` at most."""

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Any] = ()
    start_delay_secs: float = 120
    throttle_secs: float = 600


class WarmStartSettings(NamedTuple):
    """The checkpoint of initial values, and which variables it sets, as in `tf.estimator`."""

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Any = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def predictions_by_name(spec: EstimatorSpec) -> dict[str, Any]:
    """Return the predictions of a spec by name; a single tensor has the name `SINGLE_PREDICTION`."""
    if isinstance(spec.predictions, Mapping):
        return dict(spec.predictions)
    return {SINGLE_PREDICTION: spec.predictions}


def validate_host_call(host_call: Any) -> None:
    """Check the form of a host call.

    Raises:
        ModelFnError: It is not `(function, tensors)` or `(function, tensors, list)`.
    """
    if not isinstance(host_call, (tuple, list)) or len(host_call) not in (2, 3) or not callable(host_call[0]):
        raise ModelFnError(f"host_call must be (function, [tensors]), got {host_call!r}")
    if not isinstance(host_call[1], (tuple, list)):
        raise ModelFnError(f"the second member of host_call must be a list of tensors, got {host_call[1]!r}")


def host_call_to_eval_metric_ops(host_call: Any) -> dict[str, tuple[Any, Any]]:
    """Call the function of a host call in the default graph; name the metrics of a tuple by position."""
    validate_host_call(host_call)
    result = host_call[0](*host_call[1])
    if isinstance(result, Mapping):
        return _validate_metrics(result)
    return _validate_metrics({f"host_call_{index}": metric for index, metric in enumerate(result)})


def metrics_of(spec: EstimatorSpec) -> dict[str, tuple[Any, Any]]:
    """Return the metrics of a spec, from `host_call` or `eval_metric_ops`."""
    if spec.host_call is not None:
        return host_call_to_eval_metric_ops(spec.host_call)
    return dict(spec.eval_metric_ops)


def _scalar_loss(loss: Any) -> Any:
    """Return the loss as a scalar tensor."""
    if loss is None:
        return None
    import tensorflow as tf

    tensor = tf.convert_to_tensor(loss)
    if tensor.shape.rank == 1 and tensor.shape[0] == 1:  # as tf.estimator did
        tensor = tf.reshape(tensor, [])
    if tensor.shape.rank != 0:
        raise ModelFnError(
            f"loss must be a scalar, got shape {tensor.shape} of '{tensor.name}'; "
            "reduce it, e.g. tf.reduce_mean(loss)"
        )
    return tensor


def _validate_metrics(metrics: Mapping[str, tuple[Any, Any]] | None) -> dict[str, tuple[Any, Any]]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ModelFnError(f"eval_metric_ops must be a dict, got {type(metrics).__name__}: {metrics!r}")
    for name, metric in metrics.items():
        if not isinstance(metric, (tuple, list)) or len(metric) != 2:
            raise ModelFnError(
                f"eval_metric_ops['{name}'] must be (value tensor, update op), "
                f"as returned by tf.compat.v1.metrics, got {metric!r}"
            )
    return {name: (metric[0], metric[1]) for name, metric in metrics.items()}


def validate_hooks(name: str, hooks: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return hooks as a tuple.

    Raises:
        CallError: One of them lacks the methods of a session hook; the message names the argument `name`.
    """
    for hook in hooks or ():
        if not all(hasattr(hook, method) for method in ("begin", "before_run", "after_run", "end")):
            raise CallError(f"{name} must hold session hooks, got {hook!r}")
    return tuple(hooks or ())


def parse_warm_start(given: Any) -> WarmStartSettings | None:
    """Return WarmStartSettings for a path or for settings like `tf.estimator.WarmStartSettings`.

    Raises:
        CallError: The value is neither of them.
    """
    if given is None or isinstance(given, WarmStartSettings):
        return given
    if isinstance(given, str):
        return WarmStartSettings(given)
    if hasattr(given, "ckpt_to_initialize_from"):
        return WarmStartSettings(*(getattr(given, name) for name in WarmStartSettings._fields))
    raise CallError(f"warm_start_from must be a path or WarmStartSettings, got {given!r}")


def apply_warm_start(settings: WarmStartSettings) -> None:
    """Make the initializers of the default graph's variables read a checkpoint.

    Raises:
        CheckpointReadError: The checkpoint is missing, damaged, or lacks a variable.
    """
    import tensorflow as tf

    try:
        checkpoint = find_checkpoint(settings.ckpt_to_initialize_from)
        tf.compat.v1.train.warm_start(literal_path(checkpoint), *settings[1:])
    except (tf.errors.OpError, ValueError, KeyError) as error:
        raise CheckpointReadError(settings.ckpt_to_initialize_from, essence(error)) from error
