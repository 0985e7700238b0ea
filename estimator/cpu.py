"""Training, evaluation and prediction on this CPU, by TensorFlow itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cs_runtime.checkpoint_requests import CheckpointRequests, leave_for_requeue
from cs_runtime.files import write_text
from csrun.roles import TaskInfo
from estimator import checkpoints
from estimator.calling import call_model_fn
from estimator.capture import check_advances, model_graph, with_mean_loss
from estimator.cpu_limits import told_as_limits
from estimator.errors import CallError
from estimator.events import EventWriter
from estimator.input import InputSource, in_model_graph
from estimator.modes import ModeKeys
from estimator.run_config import CSRunConfig
from estimator.spec import EstimatorSpec, named_predictions
from estimator.training_loop import SessionKeeper, TrainingLoop
from estimator.warm_start import warm_start

log = logging.getLogger("estimator")


@dataclass(frozen=True)
class CpuJob:
    """One call of the estimator off the CS system.

    Attributes:
        model_fn: The user's function.
        source: The input.
        params: The estimator's parameters.
        config: The estimator's configuration.
        model_dir: Where checkpoints and events are.
        hooks: Session hooks of the call.
    """

    model_fn: Callable[..., Any]
    source: InputSource
    params: Mapping[str, Any]
    config: CSRunConfig
    model_dir: Path
    hooks: tuple[Any, ...] = ()


@dataclass(frozen=True)
class _Built:
    graph: Any
    spec: EstimatorSpec
    global_step: Any
    features: Any


def train(
    job: CpuJob,
    last_step: int | None,
    saving_listeners: Sequence[Any] = (),
    warm_start_from: Any = None,
) -> None:
    """Trains from the newest checkpoint to the global step `last_step`, the end of input, or a hook's stop.

    Raises:
        CheckpointReadError: the newest checkpoint is not of this model.
        CheckpointWriteError: no space or permission.
        NonFiniteLossError: the loss became NaN or infinite.
        CpuLimitError: TensorFlow on a CPU cannot do what the graph has; so do the functions below.
    """
    newest = checkpoints.latest(job.model_dir)
    with _built(job, ModeKeys.TRAIN) as built:
        check_advances(built.spec.train_op, built.global_step)
        if newest is None and warm_start_from is not None:
            warm_start(warm_start_from)
        loop = TrainingLoop(
            job.config,
            job.model_dir,
            built.features,
            built.spec.loss,
            _with_layer_updates(built),
            built.global_step,
            built.spec.scaffold,
            saving_listeners,
        )
        keeper = SessionKeeper()
        spec_hooks = (*built.spec.training_hooks, *built.spec.training_chief_hooks)
        hooks = (keeper, *job.hooks, *spec_hooks)
        session = _open_session(job, built, newest, loop.saver, hooks)
    write_text(job.model_dir / "graph.pbtxt", str(built.graph.as_graph_def()))
    requeue = TaskInfo.from_environment().requeue
    with CheckpointRequests() as requests, session, loop.events, told_as_limits(built.graph):
        stopped_at = loop.run(session, keeper, last_step, requests, stop_on_request=requeue)
    if stopped_at is not None:
        leave_for_requeue(stopped_at)


def evaluate(job: CpuJob, steps: int | None, checkpoint_path: str | None, name: str | None) -> dict[str, Any]:
    """Metrics of a checkpoint over `steps` batches or all of the input, mean `loss` and `global_step`."""
    checkpoint = _checkpoint(job, checkpoint_path, "evaluating")
    with _built(job, ModeKeys.EVAL) as built:
        metrics = with_mean_loss(built.spec)
        updates = [update for _, update in metrics.values()]
        values = {key: value for key, (value, _) in metrics.items()}
        saver = checkpoints.model_saver(built.spec.scaffold)
        keeper = SessionKeeper()
        hooks = (keeper, *job.hooks, *built.spec.evaluation_hooks)
        session = _open_session(job, built, checkpoint, saver, hooks)
    started = time.perf_counter()
    done = 0
    results: dict[str, Any] | None = None
    with session, told_as_limits(built.graph):
        try:
            while (steps is None or done < steps) and not session.should_stop():
                session.run(updates)
                done += 1
        except _out_of_range():
            pass
        if done == 0:
            raise CallError("the input of evaluate() ended before its first batch; expected at least one")
        results = keeper.session.run({**values, "global_step": built.global_step})
    if results is None:  # the session takes the end of the input for its own end
        raise CallError(
            "the value of a metric is computed from a batch, and the input has ended; "
            "expected one computed from variables that its update op changes, as of tf.compat.v1.metrics"
        )
    log.info("evaluated %d batches in %.2f seconds", done, time.perf_counter() - started)
    return report(job.model_dir, results, name)


def predict(job: CpuJob, checkpoint_path: str | None) -> Iterator[dict[str, np.ndarray]]:
    """Predictions of a checkpoint, one batch after the other; a single tensor has the key `SINGLE`."""
    checkpoint = _checkpoint(job, checkpoint_path, "predicting with")
    with _built(job, ModeKeys.PREDICT) as built:
        named = named_predictions(built.spec)
        saver = checkpoints.model_saver(built.spec.scaffold)
        hooks = (*job.hooks, *built.spec.prediction_hooks)
        session = _open_session(job, built, checkpoint, saver, hooks)
    # No default graph is left on the stack while the caller has the generator suspended.
    with session:
        try:
            while not session.should_stop():
                with told_as_limits(built.graph):
                    batch = session.run(named)
                yield batch
        except _out_of_range():
            return


def report(model_dir: Path, results: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Logs the results of an evaluation and writes them as events beside those of the training."""
    step = int(results["global_step"])
    text = ", ".join(f"{key} = {results[key]}" for key in sorted(results))
    log.info("Saving dict for global step %d: %s", step, text)
    scalars = {key: float(value) for key, value in results.items() if np.ndim(value) == 0}
    scalars.pop("global_step")
    with EventWriter(model_dir / (f"eval_{name}" if name else "eval")) as events:
        events.scalars(step, scalars)
    return dict(results)


@contextmanager
def _built(job: CpuJob, mode: str) -> Iterator[_Built]:
    """The graph of input and model, as default graph for the body."""
    import tensorflow as tf

    with model_graph(job.config.tf_random_seed) as global_step, tf.device(job.config.device_fn):
        features, labels = in_model_graph(job.source)
        spec = call_model_fn(job.model_fn, features, labels, mode, job.params, job.config)
        yield _Built(tf.compat.v1.get_default_graph(), spec, global_step, features)


def _with_layer_updates(built: _Built) -> Any:
    """The train op and what Keras layers keep up to date every step: dropout seeds, moving averages."""
    import tensorflow as tf

    from cgc.importers.tensorflow import keras_layer_updates

    return tf.group(built.spec.train_op, *keras_layer_updates(built.graph))


def _open_session(
    job: CpuJob, built: _Built, checkpoint: str | None, saver: Any, hooks: tuple[Any, ...]
) -> Any:
    """A MonitoredSession whose variables are restored from a checkpoint, or initialized."""
    import tensorflow as tf

    v1 = tf.compat.v1
    given = built.spec.scaffold or v1.train.Scaffold()
    scaffold = v1.train.Scaffold(saver=saver, copy_from_scaffold=given)
    creator = v1.train.ChiefSessionCreator(
        scaffold=scaffold,
        # As tf.estimator did: a device that is not there, or has no kernel for an op, is no error.
        config=job.config.session_config or v1.ConfigProto(allow_soft_placement=True),
        checkpoint_filename_with_path=checkpoint,
    )
    if checkpoint is not None:
        checkpoints.check_shapes(checkpoint, v1.global_variables())
    with checkpoints.restoring(checkpoint), told_as_limits(built.graph):
        return v1.train.MonitoredSession(session_creator=creator, hooks=list(hooks))


def _checkpoint(job: CpuJob, given: str | None, doing: str) -> str | None:
    checkpoint = checkpoints.chosen(given, job.model_dir)
    if checkpoint is None:
        log.warning("there is no checkpoint in '%s': %s freshly initialized variables", job.model_dir, doing)
    return checkpoint


def _out_of_range() -> type[Exception]:
    """What TensorFlow raises at the end of the input."""
    import tensorflow as tf

    kind: type[Exception] = tf.errors.OutOfRangeError
    return kind
