"""The TensorFlow side of a run of a Keras model on the CS system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cgc.cirh.interface import step_interface
from cgc.importers.tensorflow import ImportedKerasStep, import_keras_step
from cs_runtime.program import LOSS
from cs_toolkit.step import GLOBAL_STEP
from estimator import checkpoints
from estimator.capture import TracedModel
from estimator.errors import ModelFnError
from estimator.front_end import StateOptions, TensorFlowFrontEnd
from estimator.input import InputSource
from estimator.modes import ModeKeys
from estimator.run_config import CSRunConfig
from estimator.spec import EstimatorSpec

_METRICS = "state.metric."
_STEP_KEY = "global_step"


class KerasFrontEnd(TensorFlowFrontEnd):
    """Implements `cs_runtime.program.FrontEnd` for a Keras model and an `input_fn`.

    The step is what one call of the model's `train_step`, `test_step` or `predict_step` does. Checkpoints
    hold the variables under their Keras paths, without those of metrics. The model itself gets the values of
    every checkpoint of its training.
    """

    def __init__(
        self,
        model: Any,
        source: InputSource,
        params: Mapping[str, Any],
        config: CSRunConfig,
        model_dir: Path,
        options: StateOptions | None = None,
    ) -> None:
        super().__init__(_no_graph, source, params, config, model_dir, options)
        self._keras_model = model

    def initial_state(self) -> dict[str, np.ndarray]:
        """Arrays by resource name: those of a checkpoint where there is one, else the model's; metrics anew.

        Raises:
            CheckpointReadError: the checkpoint cannot be read or is of another model.
        """
        imported, state = self._imported, self._model_state
        self._keras_model.reset_metrics()
        values = imported.initial_state()
        checkpoint = checkpoints.chosen(self._options.checkpoint, self._model_dir)
        state.start(checkpoint, self._options.warm_start)
        given = {name: v for name, v in values.items() if checkpoint is None or name.startswith(_METRICS)}
        state.assign({imported.variables[name]: value for name, value in given.items()})
        return dict(zip(imported.variables, state.read(list(imported.variables.values())), strict=True))

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Puts the state into the model and writes `model.ckpt-<step>`; see `TensorFlowFrontEnd.save`."""
        self._imported.assign(state)
        return super().save(step, state)

    def metric_values(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Values of the metrics for the totals in a state."""
        self._imported.assign(state)
        values = self._keras_model.get_metrics_result()
        return {name: np.asarray(value) for name, value in values.items()}

    @cached_property
    def _imported(self) -> ImportedKerasStep:
        specs = [tf.TensorSpec(c.shape, c.dtype) for c in self._element.components]
        batch = tf.nest.pack_sequence_as(self._element.structure, specs)
        imported = import_keras_step(
            self._keras_model,
            batch if len(batch) > 1 else batch[0],
            mode=self._source.mode,
            seed=self._config.tf_random_seed or 0,
        )
        outputs = [spec.name for spec in step_interface(imported.module).outputs]
        if self._source.mode == ModeKeys.TRAIN and LOSS not in outputs:
            logs = ", ".join(name.removeprefix("output_") for name in outputs) or "nothing"
            raise ModelFnError(
                f"train_step of the Keras model returns {logs}, expected the loss among it, as 'loss'"
            )
        names = {
            name: _STEP_KEY if name == GLOBAL_STEP else path for name, path in imported.variables.items()
        }
        return replace(imported, variables=names)

    @cached_property
    def _model(self) -> TracedModel:
        """A graph of the variables alone, for checkpoints, which leave local ones out: the metrics."""
        v1 = tf.compat.v1
        local, saved = [v1.GraphKeys.LOCAL_VARIABLES], [v1.GraphKeys.GLOBAL_VARIABLES]
        with tf.Graph().as_default() as graph:
            for spec in step_interface(self._imported.module).state:
                v1.get_variable(
                    self._imported.variables[spec.name],
                    spec.shape,
                    spec.dtype,
                    v1.zeros_initializer(),
                    trainable=False,
                    collections=local if spec.name.startswith(_METRICS) else saved,
                    use_resource=True,
                )
            nothing = EstimatorSpec(ModeKeys.PREDICT, predictions=tf.zeros([]))
        return TracedModel(graph, (), nothing, None, {})


def _no_graph(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
    """In the place of the `model_fn` that a Keras model does not have."""
    raise NotImplementedError
