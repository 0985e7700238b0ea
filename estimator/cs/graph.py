"""The graph of a step on the CS system: a `model_fn` traced on placeholders, and metrics on the host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator.calling import assignments_to, call_model_fn, check_advances, model_graph, with_mean_loss
from estimator.errors import ModelFnError, UnsupportedOnCsError
from estimator.input.dataset import Element
from estimator.spec import EstimatorSpec, ModeKeys

_OUTPUT = "host_call"


@dataclass(frozen=True)
class TracedModel:
    """The graph that `model_fn` built on placeholders.

    Attributes:
        graph: The `tf.Graph`.
        inputs: The placeholders, one for each component of the input, in streaming order.
        spec: The result of `model_fn`.
        global_step: The variable that counts steps.
        metrics: Name -> (value, update op), including the mean `loss`; of mode EVAL only.
    """

    graph: Any
    inputs: tuple[Any, ...]
    spec: EstimatorSpec
    global_step: Any
    metrics: Mapping[str, tuple[Any, Any]]


def trace(
    model_fn: Callable[..., Any], element: Element, mode: str, params: Mapping[str, Any], config: Any
) -> TracedModel:
    """Call `model_fn` on placeholders with the shapes of the input, and check its result for a CS run.

    Raises:
        ModelFnError: The result cannot be used.
        UnsupportedOnCsError: The result has parts that cannot run on the CS system.
    """
    import tensorflow as tf

    with model_graph(config.tf_random_seed) as global_step:
        # Unless the program sets one, the seed of a random op is the number of ops before it. As many no-ops
        # as the input has ops give the same initial weights on the CS system and on a CPU for one
        # tf_random_seed.
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
    # The global step also selects the next batch, so a step may advance it only once.
    assignments = assignments_to(spec.train_op, global_step)
    if len(assignments) > 1:
        names = ", ".join(sorted(op.name for op in assignments))
        raise ModelFnError(
            f"train_op '{spec.train_op.name}' advances the global step {len(assignments)} times a step "
            f"({names}); on the CS system it counts batches. Pass global_step to one of the optimizers only"
        )


def op_name(text: str) -> str:
    """Replace the characters that TensorFlow does not accept in the name of an op."""
    return re.sub(r"[^A-Za-z0-9_./-]", "_", text)


class HostMetrics:
    """Computes the metrics of a `host_call`, and the mean loss, on this host instead of the CS system.

    The tensors that the host call takes become outputs of every step. Its function is called on placeholders
    for them, in a separate graph.

    Args:
        spec: A spec of mode EVAL whose host call uses no tensors except its arguments.
    """

    def __init__(self, spec: EstimatorSpec) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        self._outputs: dict[str, Any] = {}
        self._placeholders: dict[str, Any] = {}

        def make_placeholder(value: Any) -> Any:
            if not isinstance(value, tf.Tensor):
                return value
            name = f"{_OUTPUT}/{len(self._outputs)}"
            self._outputs[name] = value
            self._placeholders[name] = v1.placeholder(value.dtype, value.shape)
            return self._placeholders[name]

        function, tensors, *rest = spec.host_call
        with tf.Graph().as_default() as graph:
            v1.train.create_global_step()  # the function may use it
            arguments = tf.nest.map_structure(make_placeholder, list(tensors))
            metrics = with_mean_loss(
                spec._replace(host_call=(function, arguments, *rest), loss=make_placeholder(spec.loss))
            )
            self._values = {name: value for name, (value, _) in metrics.items()}
            self._updates = [update for _, update in metrics.values()]
            self._session = v1.Session(graph=graph)
            for init in (
                v1.global_variables_initializer,
                v1.local_variables_initializer,
                v1.tables_initializer,
            ):
                self._session.run(init())
        self._batch: dict[Any, np.ndarray] = {}

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Name -> tensor of the model: the outputs of the step that the metrics need."""
        return self._outputs

    def update(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Update the metrics with the outputs of a step."""
        self._batch = {
            placeholder: np.asarray(outputs[f"output_{name}"], dtype=placeholder.dtype.as_numpy_dtype)
            for name, placeholder in self._placeholders.items()
        }
        self._session.run(self._updates, self._batch)

    def values(self) -> dict[str, Any]:
        """Return the metrics over all steps so far."""
        values: dict[str, Any] = self._session.run(self._values, self._batch)
        return values

    def close(self) -> None:
        """Close the session."""
        self._session.close()
