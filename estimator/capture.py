"""Builds the graph of a step from `model_fn`, and finds in it what a run needs."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

from estimator.calling import call_model_fn
from estimator.errors import ModelFnError, UnsupportedOnCsError
from estimator.input import Element
from estimator.modes import ModeKeys
from estimator.spec import EstimatorSpec, metrics_of

_GLOBAL_STEP_ASSIGNMENTS = ("AssignAddVariableOp", "AssignVariableOp")
_BRANCHES = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}


@dataclass(frozen=True)
class TracedModel:
    """The graph that `model_fn` built on placeholders.

    Attributes:
        graph: The `tf.Graph`.
        inputs: The placeholders, one a component of the input, in streaming order.
        spec: What `model_fn` returned.
        global_step: The variable that counts steps.
        metrics: Name -> (value, update op) with the mean `loss` among them; of EVAL only.
    """

    graph: Any
    inputs: tuple[Any, ...]
    spec: EstimatorSpec
    global_step: Any
    metrics: Mapping[str, tuple[Any, Any]]


@contextmanager
def model_graph(seed: int | None) -> Iterator[Any]:
    """A new default graph with the seed set, resource variables, and the global step; yields the latter."""
    import tensorflow as tf

    keras = sys.modules.get("keras")
    if keras is not None:
        # Keras counts the layers of a process: without this the variables of a second graph of the same
        # model would have other names, and no checkpoint would fit them.
        # Not tf.keras, which may be tf_keras: that counts by graph.
        # In a thread, as it refuses to be called in a graph, and a hook may evaluate in that of its training.
        forgetting = Thread(target=keras.utils.clear_session, kwargs={"free_memory": False})
        forgetting.start()
        forgetting.join()
    with tf.Graph().as_default(), _keras_seed(seed), _control_flow_v2():
        tf.compat.v1.set_random_seed(seed)
        # Programs written for tf.compat.v1 may have turned resource variables off; the importer, and sane
        # read-after-write order, need them.
        with tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), use_resource=True):
            yield tf.compat.v1.train.create_global_step()


@contextmanager
def _keras_seed(seed: int | None) -> Iterator[None]:
    """Keras draws the seeds of its layers from Python's generator: here from `seed`, if there is one."""
    before = random.getstate()
    if seed is not None:
        random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


@contextmanager
def _control_flow_v2() -> Iterator[None]:
    """Branches as `If` ops, also in programs that have turned off all of TensorFlow 2."""
    import tensorflow as tf

    if tf.compat.v1.control_flow_v2_enabled():
        yield
        return
    tf.compat.v1.enable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.disable_control_flow_v2()


def trace(
    model_fn: Callable[..., Any], element: Element, mode: str, params: Mapping[str, Any], config: Any
) -> TracedModel:
    """Calls `model_fn` on placeholders of the shapes of the input, and checks what a CS run needs.

    Raises:
        ModelFnError: the result is not usable.
        UnsupportedOnCsError: it has parts that cannot run on the CS system.
    """
    import tensorflow as tf

    with model_graph(config.tf_random_seed) as global_step:
        # The seed of a random op is, unless the program gives one, the number of ops before it. With as many
        # here as the input has in a graph of its own, one tf_random_seed means the same initial weights on
        # the CS system and on a CPU.
        for _ in range(element.graph_ops - len(element.components)):
            tf.no_op(name="input/in_place_of_op")
        placeholders = [
            tf.compat.v1.placeholder(c.dtype, c.shape, name=op_name(f"input/{c.name}"))
            for c in element.components
        ]
        features, labels = element.pack(placeholders)
        spec = call_model_fn(model_fn, features, labels, mode, params, config)
        _check_for_cs(spec, mode, global_step)
        metrics = with_mean_loss(spec) if mode == ModeKeys.EVAL else {}
        graph = tf.compat.v1.get_default_graph()
    return TracedModel(graph, tuple(placeholders), spec, global_step, metrics)


def with_mean_loss(spec: EstimatorSpec) -> dict[str, tuple[Any, Any]]:
    """The metrics of a spec and `loss`, its mean over the batches.

    Raises:
        ModelFnError: a metric of that name is there already.
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
    """Refuses a train op that does not advance the global step, as the run would never end.

    Raises:
        ModelFnError: it does not.
    """
    if not _assignments(train_op, global_step):
        raise ModelFnError(
            f"train_op '{train_op.name}' does not advance the global step; pass it to the optimizer: "
            "optimizer.minimize(loss, global_step=tf.compat.v1.train.get_or_create_global_step())"
        )


def _assignments(train_op: Any, variable: Any) -> list[Any]:
    """The assignments to a variable among all that running an op runs."""
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
    """Whether an op assigns to a variable, itself or in one of its branches.

    An optimizer with a dynamic loss scale has its whole update, the global step too, in a branch.
    """
    if op.type in _GLOBAL_STEP_ASSIGNMENTS:
        return bool(op.inputs[0].name == handle_name)
    for attribute in _BRANCHES.get(op.type, ()):
        # No public way leads from a branch to its graph.
        body = op.graph._get_function(op.get_attr(attribute).name).graph
        arguments = [
            b.name for b, given in zip(body.inputs, op.inputs[1:], strict=True) if given.name == handle_name
        ]
        if any(_assigns(inner, name) for name in arguments for inner in body.get_operations()):
            return True
    return False


def _check_advances_once(train_op: Any, global_step: Any) -> None:
    """Refuses several steps in one: the global step also says which batch comes next."""
    assignments = _assignments(train_op, global_step)
    if len(assignments) > 1:
        names = ", ".join(sorted(op.name for op in assignments))
        raise ModelFnError(
            f"train_op '{train_op.name}' advances the global step {len(assignments)} times a step ({names}); "
            "on the CS system it counts batches. Pass global_step to one of the optimizers only"
        )


def _check_for_cs(spec: EstimatorSpec, mode: str, global_step: Any) -> None:
    if mode != ModeKeys.TRAIN:
        return
    if spec.eval_metric_ops or spec.host_call is not None:
        names = ", ".join(spec.eval_metric_ops) or "host_call"
        raise UnsupportedOnCsError(
            "[Unsupported TensorFlow] Detected unsupported eval_metric_ops in CS system training run. "
            f"Got metrics in the EstimatorSpec of mode 'train': {names}. "
            "Return them only when mode == ModeKeys.EVAL"
        )
    check_advances(spec.train_op, global_step)
    _check_advances_once(spec.train_op, global_step)


def op_name(text: str) -> str:
    """A name that TensorFlow takes: keys of a user's dict may have blanks and what not in them."""
    return re.sub(r"[^A-Za-z0-9_./-]", "_", text)
