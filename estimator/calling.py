"""Calling `model_fn` and `input_fn` with the arguments that they declare, and the graph of a model."""

from __future__ import annotations

import copy
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

from estimator.errors import CallError, InputFnError, ModelFnError
from estimator.spec import EstimatorSpec, metrics_of

MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")
INPUT_FN_ARGUMENTS = ("params", "mode", "config", "input_context")

_GLOBAL_STEP_ASSIGNMENTS = ("AssignAddVariableOp", "AssignVariableOp")
_BRANCHES = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}


def copy_params(params: Any) -> Any:
    """Return a deep copy of the parameters.

    Raises:
        CallError: A value in them cannot be copied; the message names it.
    """
    # Each call gets its own copy, as with tf.estimator: programs write into their parameters.
    try:
        return copy.deepcopy(params)
    except Exception as error:
        place, culprit = _find_uncopyable("params", params)
        raise CallError(
            f"{place} cannot be copied ({type(culprit).__name__}: {error}); expected plain values in params, "
            "as every call of model_fn and input_fn gets a copy. Create files, locks and generators in them"
        ) from error


def _find_uncopyable(place: str, value: Any) -> tuple[str, Any]:
    """Return the innermost member that cannot be copied, with the expression that selects it."""
    members: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        members = list(value.items())
    elif isinstance(value, (list, tuple)):
        members = list(enumerate(value))
    for key, member in members:
        try:
            copy.deepcopy(member)
        except Exception:
            return _find_uncopyable(f"{place}[{key!r}]", member)
    return place, value


def check_model_fn(model_fn: Any, has_params: bool) -> None:
    """Check the arguments of a `model_fn` when an estimator is created, as `tf.estimator` did.

    Raises:
        ModelFnError: It is not callable, lacks `features`, has an unknown argument, or lacks `params`
            although the estimator has some.
    """
    if not callable(model_fn):
        raise ModelFnError(f"model_fn must be a function, got {model_fn!r}")
    names, any_keyword = argument_names(model_fn)
    if "features" not in names and not any_keyword:
        raise ModelFnError(
            f"model_fn ({_function_name(model_fn)}) must have the argument features, but has {names}"
        )
    if has_params and "params" not in names and not any_keyword:
        raise ModelFnError(
            f"model_fn ({_function_name(model_fn)}) has no argument params, but the estimator has params"
        )
    unknown = [name for name in _required_names(model_fn) if name not in MODEL_FN_ARGUMENTS]
    if unknown:
        raise ModelFnError(
            f"model_fn ({_function_name(model_fn)}) has the argument '{unknown[0]}', "
            f"but is called with {', '.join(MODEL_FN_ARGUMENTS)}"
        )


def call_model_fn(
    model_fn: Callable[..., Any],
    features: Any,
    labels: Any,
    mode: str,
    params: Mapping[str, Any],
    config: Any,
) -> EstimatorSpec:
    """Call `model_fn` with those of (features, labels, mode, params, config) that it declares.

    Raises:
        ModelFnError: There are labels but no argument for them, or the result is not an EstimatorSpec.
    """
    names, any_keyword = argument_names(model_fn)
    if labels is not None and "labels" not in names and not any_keyword:
        raise ModelFnError(
            f"model_fn ({_function_name(model_fn)}) has no argument labels, "
            "but input_fn returns (features, labels)"
        )
    offered = {
        "features": features,
        "labels": labels,
        "mode": mode,
        "params": copy_params(params),
        "config": config,
    }
    spec = model_fn(**{name: value for name, value in offered.items() if any_keyword or name in names})
    if not isinstance(spec, EstimatorSpec):
        raise ModelFnError(
            f"model_fn ({_function_name(model_fn)}) must return an EstimatorSpec or CSEstimatorSpec, "
            f"got {spec!r}"
        )
    return spec


def call_input_fn(
    input_fn: Callable[..., Any],
    mode: str,
    params: Mapping[str, Any],
    config: Any,
    num_shards: int,
    shard: int,
    asked: set[str] | None = None,
) -> Any:
    """Call `input_fn` with those of (params, mode, config, input_context) that it declares.

    Args:
        input_fn: The user's function.
        mode: One of ModeKeys.
        params: The estimator's parameters.
        config: The estimator's configuration.
        num_shards: Number of tasks that read input; `input_context.num_input_pipelines`.
        shard: Index of this task among them.
        asked: Gets "input_context" if the function reads number or index of its shard from that.

    Raises:
        InputFnError: It is not callable, or requires an argument of another name.
    """
    if not callable(input_fn):
        raise InputFnError(f"input_fn must be a function, got {input_fn!r}")
    names, _ = argument_names(input_fn)
    unknown = [name for name in _required_names(input_fn) if name not in INPUT_FN_ARGUMENTS]
    if unknown:
        raise InputFnError(
            f"input_fn ({_function_name(input_fn)}) requires the argument '{unknown[0]}', "
            f"but is called with {', '.join(INPUT_FN_ARGUMENTS)}; bind others with functools.partial"
        )
    offered: dict[str, Any] = {"params": copy_params(params), "mode": mode, "config": config}
    if "input_context" in names:
        offered["input_context"] = _make_context(num_shards, shard, set() if asked is None else asked)
    return input_fn(**{name: value for name, value in offered.items() if name in names})


def _make_context(num_shards: int, shard: int, asked: set[str]) -> Any:
    """Make an `InputContext` that adds its name to `asked` when a shard is read from it."""
    import tensorflow as tf

    class InputContext(tf.distribute.InputContext):  # type: ignore[misc]
        @property
        def num_input_pipelines(self) -> int:
            asked.add("input_context")
            return num_shards

        @property
        def input_pipeline_id(self) -> int:
            asked.add("input_context")
            return shard

    return InputContext(num_input_pipelines=num_shards, input_pipeline_id=shard, num_replicas_in_sync=1)


def argument_names(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """Return the named parameters of a callable, and whether it takes any keyword."""
    parameters = inspect.signature(function).parameters.values()
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _required_names(function: Callable[..., Any]) -> list[str]:
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.default is p.empty
    ]


def _function_name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


@contextmanager
def model_graph(seed: int | None) -> Iterator[Any]:
    """Enter a new default graph with a seed, resource variables and a global step; yield the global step."""
    import tensorflow as tf

    keras = sys.modules.get("keras")
    if keras is not None:
        # Keras numbers layers by process: without this, the variables of a second graph of the same model
        # would get other names, which no checkpoint has. tf_keras (maybe tf.keras) numbers them by graph.
        # In a thread, because clear_session refuses to run within a graph, and a hook may start an
        # evaluation within the graph of its training run.
        forgetting = Thread(target=keras.utils.clear_session, kwargs={"free_memory": False})
        forgetting.start()
        forgetting.join()
    with tf.Graph().as_default(), _keras_seed(seed), _control_flow_v2():
        tf.compat.v1.set_random_seed(seed)
        # Programs written for tf.compat.v1 may have disabled resource variables. The importer needs them, and
        # so does a well-defined order of reads and writes.
        with tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), use_resource=True):
            yield tf.compat.v1.train.create_global_step()


@contextmanager
def _keras_seed(seed: int | None) -> Iterator[None]:
    """Seed Python's random numbers in the body, from which Keras draws the seeds of its layers."""
    before = random.getstate()
    if seed is not None:
        random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


@contextmanager
def _control_flow_v2() -> Iterator[None]:
    """Build branches as `If` ops in the body, even if the program has disabled TensorFlow 2 behavior."""
    import tensorflow as tf

    if tf.compat.v1.control_flow_v2_enabled():
        yield
        return
    tf.compat.v1.enable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.disable_control_flow_v2()


def with_mean_loss(spec: EstimatorSpec) -> dict[str, tuple[Any, Any]]:
    """Return the metrics of a spec, with `loss` as its mean over the batches.

    Raises:
        ModelFnError: The spec already has a metric of that name.
    """
    import tensorflow as tf

    metrics = metrics_of(spec)
    for reserved in ("loss", "global_step"):
        if reserved in metrics:
            raise ModelFnError(
                f"eval_metric_ops has the key '{reserved}', which evaluate() reports itself; rename it"
            )
    return {**metrics, "loss": tf.compat.v1.metrics.mean(spec.loss)}


def check_advances(train_op: Any, global_step: Any) -> None:
    """Check that a train op advances the global step: otherwise the run would never end.

    Raises:
        ModelFnError: The train op does not advance it.
    """
    if not assignments_to(train_op, global_step):
        raise ModelFnError(
            f"train_op '{train_op.name}' does not advance the global step; pass it to the optimizer: "
            "optimizer.minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step())"
        )


def assignments_to(train_op: Any, variable: Any) -> list[Any]:
    """Return the assignments to a variable among all ops that run with the train op."""
    handle = variable.handle
    waiting = [getattr(train_op, "op", train_op)]
    seen = set()
    found = []
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        if _assigns(op, handle.name):
            found.append(op)
        waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return found


def _assigns(op: Any, handle_name: str) -> bool:
    """Return True if an op assigns to a variable, directly or in one of its branches."""
    if op.type in _GLOBAL_STEP_ASSIGNMENTS:
        return bool(op.inputs[0].name == handle_name)
    # An optimizer with a dynamic loss scale has its whole update in a branch, including the global step.
    for attribute in _BRANCHES.get(op.type, ()):
        # TensorFlow has no public function for the graph of a branch.
        body = op.graph._get_function(op.get_attr(attribute).name).graph
        arguments = [
            b.name for b, given in zip(body.inputs, op.inputs[1:], strict=True) if given.name == handle_name
        ]
        if any(_assigns(inner, name) for name in arguments for inner in body.get_operations()):
            return True
    return False
