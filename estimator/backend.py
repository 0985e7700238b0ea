"""The protocol of backends, which run the calls of an estimator, and the setup that they share.

`estimator.cpu` has the backend for this CPU, `estimator.cs.run` the one for the CS system, which also
compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cs_runtime import tasks
from cs_runtime.destination import Destination
from cs_toolkit.execution_options import ExecutionOptions
from estimator.config import CSRunConfig
from estimator.input.dataset import FEATURES_AND_LABELS, InputSource
from estimator.input.iterator_state import StateFolder
from estimator.spec import ModeKeys

# Predictions, batch by batch; closing the generator stops the run.
Batches = Generator[dict[str, np.ndarray], None, None]


@dataclass(frozen=True)
class Setup:
    """The arguments of an estimator that its backends need.

    Attributes:
        params: Parameters of `model_fn` and `input_fn`.
        config: The configuration.
        model_dir: Directory of checkpoints, events and summaries.
        options: How the CS system executes the steps.
        destination: Where the call runs.
        compile_dir: Directory of artifacts; None for `model_dir`.
        parts: Members of a batch of the input.
    """

    params: Mapping[str, Any]
    config: CSRunConfig
    model_dir: Path
    options: ExecutionOptions
    destination: Destination
    compile_dir: Path | None = None
    parts: tuple[str, ...] = FEATURES_AND_LABELS

    @property
    def artifact_dir(self) -> Path:
        """Directory of artifacts."""
        return self.compile_dir or self.model_dir

    def whole_input(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        """Return the input of a run in which a single task reads all records in order."""
        return self._input(input_fn, mode, tasks.single_task_config())

    def sharded_input(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        """Return the input of a run in which each worker of the job reads its shard of the records."""
        task = tasks.current()
        return self._input(input_fn, mode, tasks.job_config(), task.num_workers, task.index)

    def training_input(self, input_fn: Callable[..., Any]) -> InputSource:
        """Return the input of a training run, which saves its iterator state next to the checkpoints."""
        source = self.sharded_input(input_fn, ModeKeys.TRAIN)
        if self.options.program_skips_batches:
            return source
        steps = self.config.save_checkpoints_steps
        folder = StateFolder(self.model_dir, source.shard, source.num_shards, steps)
        return replace(source, states=folder)

    def compile_input(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        """Return the input of a compile, which belongs to no job, however the process was started."""
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
    """Runs the calls of an estimator, which has checked the arguments."""

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> None:
        """Train, resuming from the newest checkpoint if there is one."""
        ...

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint and return its metrics; empty in a task other than the chief."""
        ...

    def predict(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        num_samples: int | None,
    ) -> Batches:
        """Yield predictions of a checkpoint, for `num_samples` examples or more; none outside the chief.

        A prediction that is a single tensor has the key `estimator.spec.SINGLE_PREDICTION`.
        """
        ...
