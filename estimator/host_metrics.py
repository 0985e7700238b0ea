"""Metrics of a `host_call` with operations that the CS system lacks: computed on the host of the chief.

The tensors that the call takes are outputs of every step; the call is made on them in a graph of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from estimator.capture import with_mean_loss
from estimator.spec import EstimatorSpec

_OUTPUT = "host_call"


class HostMetrics:
    """The metrics of a host call and the mean of the loss, with their totals.

    Args:
        spec: Of mode EVAL, with a host call whose function uses no tensor but its arguments.
    """

    def __init__(self, spec: EstimatorSpec) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        self._outputs: dict[str, Any] = {}
        self._placeholders: dict[str, Any] = {}

        def placed(value: Any) -> Any:
            if not isinstance(value, tf.Tensor):
                return value
            name = f"{_OUTPUT}/{len(self._outputs)}"
            self._outputs[name] = value
            self._placeholders[name] = v1.placeholder(value.dtype, value.shape)
            return self._placeholders[name]

        function, tensors, *rest = spec.host_call
        with tf.Graph().as_default() as graph:
            v1.train.create_global_step()  # a function may look at it
            arguments = tf.nest.map_structure(placed, list(tensors))
            metrics = with_mean_loss(
                spec._replace(host_call=(function, arguments, *rest), loss=placed(spec.loss))
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
        """Name -> tensor of the model: what a step has to put out."""
        return self._outputs

    def update(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Adds a step with these outputs to the totals."""
        self._batch = {
            placeholder: np.asarray(outputs[f"output_{name}"], dtype=placeholder.dtype.as_numpy_dtype)
            for name, placeholder in self._placeholders.items()
        }
        self._session.run(self._updates, self._batch)

    def values(self) -> dict[str, Any]:
        """The metrics over all steps so far."""
        values: dict[str, Any] = self._session.run(self._values, self._batch)
        return values

    def close(self) -> None:
        """Frees the session."""
        self._session.close()
