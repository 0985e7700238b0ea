"""Where the calls of an estimator run: the protocol of its backends, and what they are made with.

`estimator.cpu` runs them on this CPU, `estimator.cs.run` on the CS system, which compiles too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cs_runtime import tasks
from cs_runtime.options import InputPosition
from estimator.config import CSRunConfig
from estimator.input.dataset import FEATURES_AND_LABELS, InputSource
from estimator.input.iterator_state import StateFolder
from estimator.spec import ModeKeys

Batches = Generator[dict[str, np.ndarray], None, None]
"""Predictions of one batch after the other; closing it early stops the run."""


@dataclass(frozen=True)
class Setup:
    """What an estimator was made with.

    Attributes:
        params: Its parameters.
        config: Its configuration.
        model_dir: Where checkpoints, events and summaries go.
        compile_dir: Where artifacts go; None for `model_dir`.
        parts: Members that a batch of its input may have.
        input_position: Who leaves out used batches where a training continues.
    """

    params: Mapping[str, Any]
    config: CSRunConfig
    model_dir: Path
    compile_dir: Path | None = None
    parts: tuple[str, ...] = FEATURES_AND_LABELS
    input_position: InputPosition = "toolkit"

    @property
    def artifact_dir(self) -> Path:
        """Where artifacts go."""
        return self.compile_dir or self.model_dir

    def whole_input(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        """The input of a run in which one task reads all records, in their order."""
        return self._input(input_fn, mode, tasks.single_task_config())

    def shared_input(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        """The input of a run in which the workers of the job share the records."""
        task = tasks.current()
        return self._input(input_fn, mode, tasks.shared_config(), task.num_workers, task.index)

    def training_input(self, input_fn: Callable[..., Any]) -> InputSource:
        """The input of a training, which may be continued; its states are kept beside the checkpoints."""
        source = self.shared_input(input_fn, ModeKeys.TRAIN)
        if self.input_position == "program":
            return source
        steps = self.config.save_checkpoints_steps
        folder = StateFolder(self.model_dir, source.shard, source.num_shards, steps)
        return replace(source, states=folder)

    def input_of_no_job(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        """The input that a compilation looks at: a compile run belongs to no job, whatever has started it."""
        return self._input(input_fn, mode, {})

    def _input(
        self,
        input_fn: Callable[..., Any],
        mode: str,
        tf_config: dict[str, Any],
        shards: int = 1,
        shard: int = 0,
    ) -> InputSource:
        return InputSource(input_fn, mode, self.params, self.config, tf_config, shards, shard, self.parts)


class Backend(Protocol):
    """Runs the calls of an estimator, with arguments that it has checked; they are those of the estimator."""

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> None:
        """Trains, from the newest checkpoint where there is one."""
        ...

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        """Metrics of a checkpoint; empty in a task that does not have them."""
        ...

    def predict(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        num_samples: int | None,
    ) -> Batches:
        """Predictions of a checkpoint, `num_samples` or more; none in a task that does not have them.

        What is predicted as a single tensor has the key `estimator.spec.SINGLE`.
        """
        ...
