"""Training, evaluation and prediction on this CPU, by TensorFlow itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cs_runtime import tasks
from cs_runtime.checkpoint_requests import CheckpointRequests, leave_for_requeue
from cs_runtime.files import write_text
from cs_runtime.progress import log_how_to_resume
from cs_runtime.requeue import last_step_of_job
from cs_runtime.run_files import write_params
from estimator import checkpoints
from estimator.backend import Batches, Setup
from estimator.calling import call_model_fn
from estimator.capture import check_advances, model_graph, with_mean_loss
from estimator.cpu_limits import told_as_limits
from estimator.errors import CallError
from estimator.evaluation import report
from estimator.input import InputSource, in_model_graph
from estimator.input_report import log_report
from estimator.left_sessions import LeavingCreator, close_left
from estimator.modes import ModeKeys
from estimator.spec import EstimatorSpec, WarmStartSettings, checked_hooks, named_predictions
from estimator.training_loop import SessionKeeper, TrainingLoop
from estimator.warm_start import warm_start

log = logging.getLogger("estimator")

_OF_THE_SYSTEM = {"precision": "float32", "num_replicas": 1, "num_csx": 1, "micro_batch_size": "auto"}
"""Settings that change nothing on this CPU, and their defaults."""


@dataclass(frozen=True)
class _Built:
    graph: Any
    spec: EstimatorSpec
    global_step: Any
    features: Any


class CpuBackend:
    """Runs the calls of an estimator on this CPU; in a job of several tasks that is the chief's alone.

    Args:
        setup: Of the estimator.
        model_fn: The user's function.
        warm_start: First values of a training without a checkpoint.
    """

    def __init__(
        self, setup: Setup, model_fn: Callable[..., Any], warm_start: WarmStartSettings | None = None
    ) -> None:
        self._setup = setup
        self._model_fn = model_fn
        self._warm_start = warm_start

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> None:
        """Trains until the limit, the end of input, or a hook's stop.

        Raises:
            CheckpointReadError: the newest checkpoint is not of this model.
            CheckpointWriteError: no space or permission.
            NonFiniteLossError: the loss became NaN or infinite.
            CpuLimitError: TensorFlow on a CPU cannot do what the graph has; so do the methods below.
        """
        if not is_mine("train"):
            return
        model_dir = self._setup.model_dir
        newest = checkpoints.latest(model_dir)
        last_step = self._last_step(newest, steps, max_steps)
        write_params(model_dir, self._setup.params)
        source = self._setup.whole_input(input_fn, ModeKeys.TRAIN)
        log_report(source, shared=False)
        self._announce("train")
        own_hooks = checked_hooks("hooks", hooks)
        with self._built(source) as built:
            loop = self._loop(built, newest, tuple(saving_listeners or ()))
            keeper = SessionKeeper()
            spec_hooks = (*built.spec.training_hooks, *built.spec.training_chief_hooks)
            session = self._open_session(built, newest, loop.saver, (keeper, *own_hooks, *spec_hooks))
        write_text(model_dir / "graph.pbtxt", str(built.graph.as_graph_def()))
        requeue = tasks.current().requeue
        in_graph = built.graph.as_default()  # hooks ask for the default graph
        try:
            with (
                CheckpointRequests() as requests,
                in_graph,
                session,
                loop.events,
                told_as_limits(built.graph),
            ):
                stopped_at = loop.run(session, keeper, last_step, requests, stop_on_request=requeue)
        except KeyboardInterrupt as error:
            log_how_to_resume(error)
            raise
        if stopped_at is not None:
            leave_for_requeue(stopped_at)

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        """Metrics over `steps` batches or all of the input, mean `loss` and `global_step`."""
        if not is_mine("eval"):
            return {}
        self._announce("eval")
        own_hooks = checked_hooks("hooks", hooks)
        checkpoint = self._checkpoint(checkpoint_path, "evaluating")
        with self._built(self._setup.whole_input(input_fn, ModeKeys.EVAL)) as built:
            metrics = with_mean_loss(built.spec)
            saver = checkpoints.model_saver(built.spec.scaffold)
            keeper = SessionKeeper()
            every_hook = (keeper, *own_hooks, *built.spec.evaluation_hooks)
            session = self._open_session(built, checkpoint, saver, every_hook)
        return report(self._setup.model_dir, _evaluated(built, metrics, session, keeper, steps), name)

    def predict(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        num_samples: int | None,
    ) -> Batches:
        """Predictions for all of the input: whoever has enough of them closes the generator."""
        if not is_mine("predict"):
            return
        self._announce("predict")
        own_hooks = checked_hooks("hooks", hooks)
        checkpoint = self._checkpoint(checkpoint_path, "predicting with")
        with self._built(self._setup.whole_input(input_fn, ModeKeys.PREDICT)) as built:
            named = named_predictions(built.spec)
            saver = checkpoints.model_saver(built.spec.scaffold)
            every_hook = (*own_hooks, *built.spec.prediction_hooks)
            session = self._open_session(built, checkpoint, saver, every_hook)
        # No default graph is left on the stack while the caller has the generator suspended.
        with _ended_in(built.graph, session):
            while not session.should_stop():
                with built.graph.as_default(), told_as_limits(built.graph):
                    batch = session.run(named)
                yield batch

    def _announce(self, command: str) -> None:
        log.info("Running %s on this CPU", command)
        config = self._setup.config
        concerning = [
            f"{name}={getattr(config, name)}"
            for name, plain in _OF_THE_SYSTEM.items()
            if getattr(config, name) != plain
        ]
        if concerning:
            log.info("%s: for the CS system, without effect on this CPU", ", ".join(concerning))

    def _last_step(self, newest: str | None, steps: int | None, max_steps: int | None) -> int | None:
        """The global step at which a training ends; None where it ends with the input."""
        if steps is None and max_steps is None:
            return None
        first_step = checkpoints.step_of(newest)
        return last_step_of_job(self._setup.model_dir, tasks.current(), first_step, steps, max_steps)

    def _checkpoint(self, given: str | None, doing: str) -> str | None:
        model_dir = self._setup.model_dir
        checkpoint = checkpoints.chosen(given, model_dir)
        if checkpoint is None:
            log.warning("there is no checkpoint in '%s': %s freshly initialized variables", model_dir, doing)
        return checkpoint

    @contextmanager
    def _built(self, source: InputSource) -> Iterator[_Built]:
        """The graph of input and model, as default graph for the body."""
        import tensorflow as tf

        params, config = self._setup.params, self._setup.config
        with model_graph(config.tf_random_seed) as global_step, tf.device(config.device_fn):
            features, labels = in_model_graph(source)
            spec = call_model_fn(self._model_fn, features, labels, source.mode, params, config)
            yield _Built(tf.compat.v1.get_default_graph(), spec, global_step, features)

    def _loop(self, built: _Built, newest: str | None, saving_listeners: Sequence[Any]) -> TrainingLoop:
        """What is done step by step; adds to the graph what it needs there."""
        check_advances(built.spec.train_op, built.global_step)
        if newest is None and self._warm_start is not None:
            warm_start(self._warm_start)
        return TrainingLoop(
            self._setup.config,
            self._setup.model_dir,
            built.features,
            built.spec.loss,
            _with_layer_updates(built),
            built.global_step,
            built.spec.scaffold,
            saving_listeners,
        )

    def _open_session(self, built: _Built, checkpoint: str | None, saver: Any, hooks: tuple[Any, ...]) -> Any:
        """A MonitoredSession whose variables are restored from a checkpoint, or initialized."""
        import tensorflow as tf

        v1 = tf.compat.v1
        given = built.spec.scaffold or v1.train.Scaffold()
        scaffold = v1.train.Scaffold(saver=saver, copy_from_scaffold=given)
        creator = LeavingCreator(
            v1.train.ChiefSessionCreator(
                scaffold=scaffold,
                # As tf.estimator did: a device that is not there, or has no kernel for an op, is no error.
                config=self._setup.config.session_config or v1.ConfigProto(allow_soft_placement=True),
                checkpoint_filename_with_path=checkpoint,
            )
        )
        close_left()
        if checkpoint is not None:
            checkpoints.check_shapes(checkpoint, v1.global_variables())
        with checkpoints.restoring(checkpoint), told_as_limits(built.graph):
            return v1.train.MonitoredSession(session_creator=creator, hooks=list(hooks))


@contextmanager
def _ended_in(graph: Any, session: Any) -> Iterator[None]:
    """Ends a monitored session behind the body, with its graph as the default one for the hooks.

    The end of the input is the end of the body.
    """
    try:
        yield
    except BaseException as error:
        with graph.as_default():
            if not session.__exit__(type(error), error, error.__traceback__):
                raise
    else:
        with graph.as_default():
            session.__exit__(None, None, None)


def is_mine(command: str) -> bool:
    """Whether a run on a CPU is this task's; logs it where it is not."""
    if tasks.is_chief():
        return True
    log.info("nothing to do for worker %d: %s runs on a CPU, the chief's", tasks.current().index, command)
    return False


def _evaluated(
    built: _Built, metrics: Mapping[str, Any], session: Any, keeper: SessionKeeper, steps: int | None
) -> dict[str, Any]:
    """Values of metrics, and the global step, when a session has read its batches."""
    updates = [update for _, update in metrics.values()]
    values = {key: value for key, (value, _) in metrics.items()}
    started = time.perf_counter()
    done = 0
    results: dict[str, Any] | None = None
    with built.graph.as_default(), session, told_as_limits(built.graph):
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
    return results


def _with_layer_updates(built: _Built) -> Any:
    """The train op and what Keras layers keep up to date every step: dropout seeds, moving averages."""
    import tensorflow as tf

    from cgc.importers.tensorflow import keras_layer_updates

    return tf.group(built.spec.train_op, *keras_layer_updates(built.graph))


def _out_of_range() -> type[Exception]:
    """What TensorFlow raises at the end of the input."""
    import tensorflow as tf

    kind: type[Exception] = tf.errors.OutOfRangeError
    return kind
