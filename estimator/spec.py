"""What a `model_fn` returns, and what `train_and_evaluate` and warm starts are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cs_toolkit.step import Mode
from estimator.errors import (
    CallError,
    CheckpointReadError,
    ModelFnError,
    UnknownFieldError,
    essence,
    suggestion,
)


class ModeKeys:
    """Standard names for the modes of a `model_fn`, with the values that `tf.estimator.ModeKeys` had."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)

PROGRAM_MODES: Mapping[str, Mode] = {
    ModeKeys.TRAIN: "train",
    ModeKeys.EVAL: "eval",
    ModeKeys.PREDICT: "infer",
}
"""What the compiler calls them."""


SINGLE = ""
"""Key under which predictions travel when `model_fn` predicts one tensor and no dict."""

_HOOKS = ("training_chief_hooks", "training_hooks", "evaluation_hooks", "prediction_hooks")
_NEEDED = {
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
    """What a `model_fn` returns: the tensors and ops of one mode.

    Args:
        mode: One of ModeKeys.
        predictions: Tensor or dict of tensors whose first dimension is the batch; needed to predict.
        loss: Scalar tensor; needed to train and evaluate.
        train_op: Op that makes one training step and advances the global step; needed to train.
        eval_metric_ops: Name -> (value tensor, update op), as `tf.compat.v1.metrics` return them.
        export_outputs: Kept, not used.
        training_chief_hooks: Session hooks of a training on this CPU, on the chief.
        training_hooks: Session hooks of a training on this CPU.
        scaffold: A `tf.compat.v1.train.Scaffold` for sessions on this CPU.
        evaluation_hooks: Session hooks of an evaluation on this CPU.
        prediction_hooks: Session hooks of a prediction on this CPU.

    Raises:
        ValueError: something that the mode needs is missing or has the wrong form.
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
        """Checks the parts against the mode."""
        return cls._checked(
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
    def _checked(cls, mode: str, host_call: Any = None, **fields: Any) -> EstimatorSpec:
        if mode not in MODES:
            raise ModelFnError(f"EstimatorSpec got mode {mode!r}, expected one of {', '.join(MODES)}")
        _check_needed(mode, fields)
        values = {
            **fields,
            "predictions": _checked_predictions(fields["predictions"]),
            "loss": _scalar(fields["loss"]),
            "train_op": _checked_train_op(fields["train_op"]),
            "eval_metric_ops": _checked_metrics(fields["eval_metric_ops"]),
            **{name: checked_hooks(name, fields[name]) for name in _HOOKS},
        }
        return _SpecFields.__new__(cls, mode=mode, host_call=host_call, **values)


class CSEstimatorSpec(EstimatorSpec):
    """EstimatorSpec with metrics that are computed on the host.

    Args:
        mode: One of ModeKeys.
        host_call: `(function, tensors)`; `function(*tensors)` returns name -> (value, update op). It takes
            the place of `eval_metric_ops`, and only one of both may be given. A third member, a list that
            the original's host code read, is accepted and not used.
        **fields: As `EstimatorSpec`.
    """

    __slots__ = ()

    def __new__(cls, mode: str, host_call: Any = None, **fields: Any) -> CSEstimatorSpec:
        """Checks the parts against the mode."""
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
                raise ModelFnError("CSEstimatorSpec got host_call and eval_metric_ops; give one of them")
        values = {name: fields.get(name) for name in known}
        spec = cls._checked(mode, host_call=host_call, **values)
        assert isinstance(spec, CSEstimatorSpec)
        return spec


class TrainSpec(NamedTuple):
    """What `train_and_evaluate` trains on."""

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Any] = ()


class EvalSpec(NamedTuple):
    """What `train_and_evaluate` evaluates on; `throttle_secs` is the least time between two evaluations."""

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Any] = ()
    start_delay_secs: float = 120
    throttle_secs: float = 600


class WarmStartSettings(NamedTuple):
    """Where the first values of which variables come from, as `tf.estimator.WarmStartSettings`."""

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Any = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None


def named_predictions(spec: EstimatorSpec) -> dict[str, Any]:
    """The predictions of a spec by name; a single tensor under `SINGLE`."""
    return dict(spec.predictions) if isinstance(spec.predictions, Mapping) else {SINGLE: spec.predictions}


def validate_host_call(host_call: Any) -> None:
    """Checks the form of a host call.

    Raises:
        ModelFnError: it is not `(function, tensors)` or `(function, tensors, list)`.
    """
    if not isinstance(host_call, (tuple, list)) or len(host_call) not in (2, 3) or not callable(host_call[0]):
        raise ModelFnError(f"host_call must be (function, [tensors]), got {host_call!r}")
    if not isinstance(host_call[1], (tuple, list)):
        raise ModelFnError(f"the second member of host_call must be a list of tensors, got {host_call[1]!r}")


def host_call_to_eval_metric_ops(host_call: Any) -> dict[str, tuple[Any, Any]]:
    """Calls the function of a host call in the present graph; a tuple result gets names by position."""
    validate_host_call(host_call)
    result = host_call[0](*host_call[1])
    if isinstance(result, Mapping):
        return _checked_metrics(result)
    return _checked_metrics({f"host_call_{index}": metric for index, metric in enumerate(result)})


def metrics_of(spec: EstimatorSpec) -> dict[str, tuple[Any, Any]]:
    """The metrics of a spec, whichever way they were given."""
    if spec.host_call is not None:
        return host_call_to_eval_metric_ops(spec.host_call)
    return dict(spec.eval_metric_ops)


def _check_needed(mode: str, fields: Mapping[str, Any]) -> None:
    for name in _NEEDED[mode]:
        if fields[name] is None:
            raise ModelFnError(f"EstimatorSpec of mode '{mode}' needs {name}, got None")


def _scalar(loss: Any) -> Any:
    """The loss as a tensor of rank 0; one of shape (1,) is reshaped, as `tf.estimator` did."""
    if loss is None:
        return None
    import tensorflow as tf

    tensor = tf.convert_to_tensor(loss)
    if tensor.shape.rank == 1 and tensor.shape[0] == 1:
        tensor = tf.reshape(tensor, [])
    if tensor.shape.rank != 0:
        raise ModelFnError(
            f"loss must be a scalar, got shape {tensor.shape} of '{tensor.name}'; "
            "reduce it, e.g. tf.reduce_mean(loss)"
        )
    return tensor


def _checked_train_op(train_op: Any) -> Any:
    if train_op is None:
        return None
    import tensorflow as tf

    if not (tf.is_tensor(train_op) or isinstance(train_op, tf.Operation)):
        raise ModelFnError(
            f"train_op must be what optimizer.minimize(...) returns, an op or a tensor; got {train_op!r}"
        )
    return train_op


def _checked_predictions(predictions: Any) -> Any:
    if predictions is None:
        return {}
    import tensorflow as tf

    named = predictions if isinstance(predictions, Mapping) else {"predictions": predictions}
    for name, value in named.items():
        if not tf.is_tensor(value):
            raise ModelFnError(f"predictions['{name}'] must be a tensor, got {value!r}")
    return predictions


def _checked_metrics(metrics: Mapping[str, tuple[Any, Any]] | None) -> dict[str, tuple[Any, Any]]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ModelFnError(f"eval_metric_ops must be a dict, got {type(metrics).__name__}: {metrics!r}")
    for name, metric in metrics.items():
        if not isinstance(metric, (tuple, list)) or len(metric) != 2:
            raise ModelFnError(
                f"eval_metric_ops['{name}'] must be (value tensor, update op), "
                f"as tf.compat.v1.metrics return it, got {metric!r}"
            )
    return {name: (metric[0], metric[1]) for name, metric in metrics.items()}


def checked_hooks(name: str, hooks: Sequence[Any] | None) -> tuple[Any, ...]:
    """Hooks as a tuple.

    Raises:
        CallError: one lacks the methods of a session hook; the message calls them `name`.
    """
    for hook in hooks or ():
        if not all(hasattr(hook, method) for method in ("begin", "before_run", "after_run", "end")):
            raise CallError(f"{name} must hold session hooks, got {hook!r}")
    return tuple(hooks or ())


def settings_of(given: Any) -> WarmStartSettings | None:
    """A path, or settings like `tf.estimator.WarmStartSettings`, as our settings.

    Raises:
        CallError: neither of them.
    """
    if given is None or isinstance(given, WarmStartSettings):
        return given
    if isinstance(given, str):
        return WarmStartSettings(given)
    if hasattr(given, "ckpt_to_initialize_from"):
        return WarmStartSettings(*(getattr(given, name) for name in WarmStartSettings._fields))
    raise CallError(f"warm_start_from must be a path or WarmStartSettings, got {given!r}")


def warm_start(settings: WarmStartSettings) -> None:
    """Makes the initializers of the present graph's variables read a checkpoint.

    Raises:
        CheckpointReadError: the checkpoint is missing, damaged, or lacks a variable.
    """
    import tensorflow as tf

    try:
        tf.compat.v1.train.warm_start(*settings)
    except (tf.errors.OpError, ValueError, KeyError) as error:
        raise CheckpointReadError(settings.ckpt_to_initialize_from, essence(error)) from error
