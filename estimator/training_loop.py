"""The loop of a training on this CPU: steps, and what is due after some of them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cs_runtime.checkpoint_requests import CheckpointRequests
from cs_runtime.errors import NonFiniteLossError
from cs_runtime.progress import begin_training, end_training, record_step, report_step
from estimator import checkpoints
from estimator.events import EventWriter
from estimator.run_config import CSRunConfig

log = logging.getLogger("estimator")


class SessionKeeper:
    """A session hook that keeps the bare session, in which a read runs no hooks.

    It has the methods of `tf.compat.v1.train.SessionRunHook`, which calls them by name.
    """

    session: Any = None

    def begin(self) -> None:
        """Nothing to add to the graph."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Keeps the session; called again when TensorFlow had to make a new one."""
        self.session = session

    def before_run(self, run_context: Any) -> None:
        """Fetches nothing more."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Nothing to do."""

    def end(self, session: Any) -> None:
        """Nothing to do."""


@dataclass
class _Pace:
    """Steps and samples, in all and since the last log line."""

    step: int
    samples: int = 0
    started: float = field(default_factory=time.perf_counter)
    line_step: int = field(init=False)
    line_samples: int = 0
    line_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.line_step, self.line_at = self.step, self.started

    def rates(self) -> tuple[float, float]:
        """Steps and samples a second since the last log line."""
        seconds = max(time.perf_counter() - self.line_at, 1e-9)
        return (self.step - self.line_step) / seconds, (self.samples - self.line_samples) / seconds

    def new_line(self) -> None:
        """Counts from 0 again: a log line has been written."""
        self.line_step, self.line_samples, self.line_at = self.step, self.samples, time.perf_counter()


class TrainingLoop:
    """Runs steps, and writes a log line, summaries or a checkpoint where one is due.

    Made while the graph can still be changed, as it adds what it fetches.

    Args:
        config: Says how often what is due.
        model_dir: Where checkpoints and events go.
        features: What `model_fn` got; their first dimension is the batch.
        loss: The loss tensor.
        train_op: The op of a step.
        global_step: The variable that counts steps.
        scaffold: The user's scaffold, or None.
        saving_listeners: `CheckpointSaverListener`s of the user.
    """

    def __init__(
        self,
        config: CSRunConfig,
        model_dir: Path,
        features: Any,
        loss: Any,
        train_op: Any,
        global_step: Any,
        scaffold: Any,
        saving_listeners: Sequence[Any],
    ) -> None:
        import tensorflow as tf

        self._config = config
        self._model_dir = model_dir
        self._global_step = global_step
        with tf.control_dependencies([train_op]):
            step_after = global_step.read_value()
        self._fetches = {"step": step_after, "loss": loss, "samples": batch_size(features)}
        merged = tf.compat.v1.summary.merge_all()
        self._summary_fetches = {} if merged is None else {"summary": merged}
        self.saver = checkpoints.model_saver(scaffold)
        self.events = EventWriter(model_dir)
        self._writer = checkpoints.CheckpointWriter(
            model_dir,
            self.saver,
            tf.compat.v1.get_default_graph(),
            config.keep_checkpoint_max,
            saving_listeners,
            config.keep_checkpoint_every_n_hours,
        )

    def run(
        self,
        session: Any,
        keeper: SessionKeeper,
        last_step: int | None,
        requests: CheckpointRequests,
        *,
        stop_on_request: bool,
    ) -> int | None:
        """Runs steps until the global step is `last_step`, the input ends, or a hook or listener stops.

        Args:
            session: The monitored session.
            keeper: Of the bare one.
            last_step: Where to end; None: with the input.
            requests: A checkpoint is written when one asks for it.
            stop_on_request: The loop ends after such a checkpoint.

        Returns:
            The global step at which a request has ended the loop before its time; else None.

        Raises:
            NonFiniteLossError: the loss became NaN or infinite.
            CheckpointWriteError: no space or permission.
        """
        import tensorflow as tf

        pace = _Pace(int(keeper.session.run(self._global_step)))
        first_step, loss = pace.step, math.nan
        if first_step == 0:
            if self._config.save_summary_steps:
                self.events.graph(self._global_step.graph)
            self._writer.write(keeper.session, 0)
        else:
            log.info("off the CS system nothing of the input is skipped where a training continues")
        begin_training(self._model_dir, first_step, last_step)
        saved_at = time.perf_counter()
        stop = asked = False
        while not stop and (last_step is None or pace.step < last_step) and not session.should_stop():
            with_summary = _is_due(pace.step + 1, self._config.save_summary_steps)
            try:
                result = session.run({**self._fetches, **(self._summary_fetches if with_summary else {})})
            except tf.errors.OutOfRangeError:
                break
            loss = self._count(pace, result)
            record_step(pace.step)
            if with_summary:
                self._write_events(pace, loss, result.get("summary"))
            every = self._config.log_step_count_steps
            if _is_due(pace.step, every) or (every and pace.step == first_step + 1):
                report_step(pace.step, loss, *pace.rates())
                pace.new_line()
            asked = requests.pending
            if asked or self._save_is_due(pace.step, time.perf_counter() - saved_at):
                stop = self._writer.write(keeper.session, pace.step)
                saved_at = time.perf_counter()
            if asked:
                log.info("checkpoint at global step %d, as SIGUSR1 asked for", pace.step)
                requests.done()
                stop = stop or stop_on_request
        if pace.step > first_step and self._writer.last_step != pace.step:
            self._writer.write(keeper.session, pace.step)
        self._writer.end(keeper.session, pace.step)
        _log_end(pace, loss)
        end_training(pace.step)
        return pace.step if asked and stop_on_request and pace.step != last_step else None

    def _count(self, pace: _Pace, result: dict[str, Any]) -> float:
        pace.step = int(result["step"])
        pace.samples += int(result["samples"])
        loss = float(result["loss"])
        if not math.isfinite(loss):
            raise NonFiniteLossError(pace.step, loss, self._model_dir)
        return loss

    def _write_events(self, pace: _Pace, loss: float, summary: bytes | None) -> None:
        if summary is not None:
            self.events.serialized(pace.step, summary)
        steps_per_s, samples_per_s = pace.rates()
        values = {"loss": loss, "global_step/sec": steps_per_s, "samples/sec": samples_per_s}
        self.events.scalars(pace.step, values)

    def _save_is_due(self, step: int, seconds_since: float) -> bool:
        if self._config.save_checkpoints_steps:
            return _is_due(step, self._config.save_checkpoints_steps)
        every_s = self._config.save_checkpoints_secs
        return bool(every_s) and seconds_since >= every_s


def batch_size(features: Any) -> Any:
    """First dimension of the first dense feature, as a tensor of the present graph; 1 where it has none."""
    import tensorflow as tf

    composite = (tf.SparseTensor, tf.RaggedTensor)
    dense = [leaf for leaf in tf.nest.flatten(features) if not isinstance(leaf, composite)]
    if not dense or tf.convert_to_tensor(dense[0]).shape.rank == 0:
        return tf.constant(1)
    return tf.shape(dense[0])[0]


def _log_end(pace: _Pace, loss: float) -> None:
    seconds = time.perf_counter() - pace.started
    log.info(
        "Training finished with %d samples in %.3f seconds, %.2f samples/second.",
        pace.samples,
        seconds,
        pace.samples / max(seconds, 1e-9),
    )
    if not math.isnan(loss):
        log.info("Loss for final step: %.6g.", loss)


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and every > 0 and step % every == 0
