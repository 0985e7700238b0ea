"""The variables of a graph as arrays: initial values, restored values, checkpoints of given values."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from estimator import checkpoints
from estimator.run_config import CSRunConfig, once_config
from estimator.spec import WarmStartSettings
from estimator.warm_start import warm_start

log = logging.getLogger("estimator")


@dataclass(frozen=True)
class StateOptions:
    """Where the state comes from and how checkpoints are kept.

    Attributes:
        checkpoint: Checkpoint to restore; None for the newest of `model_dir`.
        warm_start: First values where there is no checkpoint.
        saving_listeners: The user's `CheckpointSaverListener`s.
    """

    checkpoint: str | None = None
    warm_start: WarmStartSettings | None = None
    saving_listeners: tuple[Any, ...] = ()


class ModelState:
    """A TensorFlow session on this CPU that holds the variables of a graph and never runs a step.

    Args:
        graph: That of a model; savers and assignments are added to it.
        scaffold: The user's, or None.
        model_dir: Where checkpoints are written.
        config: Says how many of them are kept, and how the session is configured.
        options: Where the state comes from; the listeners of checkpoints.
    """

    def __init__(
        self,
        graph: Any,
        scaffold: Any,
        model_dir: Path,
        config: CSRunConfig,
        options: StateOptions,
    ) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        self._graph = graph
        self._session_config = once_config(config)
        self._warm_start = options.warm_start
        self._session: Any = None
        with graph.as_default():
            self._variables = {
                variable.op.name: variable for variable in [*v1.global_variables(), *v1.local_variables()]
            }
            self._saver = checkpoints.model_saver(scaffold)
            self._reads = {name: variable.read_value() for name, variable in self._variables.items()}
            self._values = {
                name: v1.placeholder(variable.dtype.base_dtype, variable.shape)
                for name, variable in self._variables.items()
            }
            self._assignments = {
                name: variable.assign(self._values[name], read_value=False)
                for name, variable in self._variables.items()
            }
        self._writer = checkpoints.CheckpointWriter(
            model_dir,
            self._saver,
            graph,
            config.keep_checkpoint_max,
            options.saving_listeners,
            config.keep_checkpoint_every_n_hours,
        )

    def start(self, checkpoint: str | None) -> None:
        """Initializes all variables, then restores a checkpoint; warm-started values where there is none.

        Raises:
            CheckpointReadError: a checkpoint cannot be read or is of another model.
        """
        import tensorflow as tf

        v1 = tf.compat.v1
        with self._graph.as_default():
            if checkpoint is None and self._warm_start is not None:
                warm_start(self._warm_start)
            self._session = v1.Session(graph=self._graph, config=self._session_config)
            self._session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            self._session.run(v1.tables_initializer())
            if checkpoint is not None:
                checkpoints.check_shapes(checkpoint, v1.global_variables())
                with checkpoints.restoring(checkpoint):
                    self._saver.restore(self._session, checkpoint)
                if not logging.getLogger("tensorflow").isEnabledFor(logging.INFO):
                    log.info("Restoring parameters from %s", checkpoint)  # else the saver has said so

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """Present values of variables, by the names that a checkpoint has them under."""
        values = self._session.run([self._reads[name] for name in names])
        return [np.asarray(value) for value in values]

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Replaces values; a variable that is not named keeps its own."""
        feeds = {
            self._values[name]: np.asarray(value, dtype=self._variables[name].dtype.as_numpy_dtype)
            for name, value in values.items()
        }
        self._session.run([self._assignments[name] for name in values], feeds)

    def evaluate(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of the model's graph for the present values of its variables."""
        values: dict[str, Any] = self._session.run(dict(tensors))
        return values

    def save(self, step: int) -> bool:
        """Writes a checkpoint of the present values; returns whether a listener asks to stop.

        Raises:
            CheckpointWriteError: no space or permission; older checkpoints are as they were.
        """
        return self._writer.write(self._session, step)

    def close(self) -> None:
        """Tells the listeners that it is over and frees the session."""
        if self._session is not None:
            if self._writer.last_step is not None:
                self._writer.end(self._session, self._writer.last_step)
            self._session.close()
            self._session = None
