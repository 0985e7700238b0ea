"""Training with an evaluation of its checkpoints in between."""

from __future__ import annotations

import time
from typing import Any

from estimator.errors import CallError
from estimator.facade import EstimatorFacade
from estimator.spec import EvalSpec, TrainSpec


def train_and_evaluate(
    estimator: EstimatorFacade, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, Any]:
    """Trains to `train_spec.max_steps`, evaluates every new checkpoint that is due, and the last one.

    With a CS system the training runs there. The evaluations run on this CPU, in the chief: the system keeps
    its program, and waits for them at the checkpoint.

    Returns:
        The metrics of the last evaluation; empty in a worker.

    Raises:
        CallError: no `max_steps`.
    """
    if train_spec.max_steps is None:
        raise CallError("train_and_evaluate() needs TrainSpec(max_steps=...), got None")
    listener = _EvaluatingListener(estimator, eval_spec)
    estimator.train(
        train_spec.input_fn,
        hooks=list(train_spec.hooks),
        max_steps=train_spec.max_steps,
        saving_listeners=[listener],
    )
    return listener.last()


class _EvaluatingListener:
    """Evaluates after a checkpoint, at most every `throttle_secs`.

    It has the methods of `tf.compat.v1.train.CheckpointSaverListener`, which are called by name.
    """

    def __init__(self, estimator: EstimatorFacade, spec: EvalSpec) -> None:
        self._estimator = estimator
        self._spec = spec
        self._not_before = time.monotonic() + spec.start_delay_secs
        self._checkpoint: str | None = None
        self._metrics: dict[str, Any] = {}

    def begin(self) -> None:
        """Adds nothing to the graph."""

    def before_save(self, session: Any, global_step: int) -> None:
        """Nothing to do."""

    def after_save(self, session: Any, global_step: int) -> None:
        """Evaluates when it is time to; never at step 0, where nothing is trained."""
        if global_step > 0 and time.monotonic() >= self._not_before:
            self._evaluate()

    def end(self, session: Any, global_step: int) -> None:
        """The last checkpoint is evaluated when the training has returned."""

    def last(self) -> dict[str, Any]:
        """Metrics of the newest checkpoint."""
        checkpoint = self._estimator.latest_checkpoint()
        if checkpoint is not None and checkpoint != self._checkpoint:
            self._evaluate()
        return self._metrics

    def _evaluate(self) -> None:
        self._checkpoint = self._estimator.latest_checkpoint()
        self._metrics = self._estimator.evaluate(
            self._spec.input_fn, steps=self._spec.steps, hooks=list(self._spec.hooks), name=self._spec.name
        )
        self._not_before = time.monotonic() + self._spec.throttle_secs
