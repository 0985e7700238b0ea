"""Training, evaluation and prediction on this CPU, by TensorFlow itself, and what TensorFlow lacks there."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from cs_runtime import tasks
from cs_runtime.errors import NonFiniteLossError
from cs_runtime.files import write_text
from cs_runtime.options import Command
from cs_runtime.progress import HostProgress, end_training, log_how_to_resume
from cs_runtime.requeue import (
    CheckpointRequests,
    last_step_of_job,
    leave_for_requeue,
    log_requested_checkpoint,
)
from cs_runtime.run_files import write_params
from cs_runtime.training_lock import training_lock
from estimator.backend import Batches, Setup
from estimator.calling import call_model_fn, check_advances, model_graph, with_mean_loss
from estimator.checkpoints import (
    CheckpointWriter,
    check_variables,
    checkpoint_step,
    explain_restore_errors,
    latest_checkpoint,
    literal_path,
    model_saver,
    resolve_checkpoint,
)
from estimator.config import CSRunConfig
from estimator.errors import CallError, CpuLimitError, essence
from estimator.input.analysis import log_report
from estimator.input.dataset import DeferredCloseCreator, InputSource, close_deferred, read_in_model_graph
from estimator.spec import (
    EstimatorSpec,
    ModeKeys,
    WarmStartSettings,
    apply_warm_start,
    predictions_by_name,
    validate_hooks,
)
from estimator.summaries import EventWriter, report_evaluation

log = logging.getLogger("estimator")

_CAUSE_LENGTH = 160  # TensorFlow lists all labels of a batch
_CHANNELS_FIRST = (b"NCHW", b"NCDHW")
_CHANNELS_LAST = re.compile(r"\bN(H|DH)WC\b")
_LABEL = re.compile(r"Received a label value of -1 ")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_NO_KERNEL = re.compile(r"No OpKernel was registered|Could not find device for node|no supported kernel")


@dataclass(frozen=True)
class _ModelGraph:
    graph: Any
    spec: EstimatorSpec
    global_step: Any
    features: Any


class CpuBackend:
    """Runs the calls of an estimator on this CPU; in a job of several tasks, in the chief only.

    Args:
        setup: The setup of the estimator.
        model_fn: The user's function.
        warm_start: The source of initial values if there is no checkpoint.
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
        """Train until the limit, the end of the input, or the request of a hook to stop.

        Raises:
            ModelDirInUseError: Another process trains in `model_dir`.
            CheckpointReadError: The newest checkpoint is not of this model.
            CheckpointWriteError: No space or no permission.
            NonFiniteLossError: The loss became NaN or infinite.
            CpuLimitError: TensorFlow does not support something in the graph on a CPU.
        """
        if not runs_in_this_task("train"):
            return
        with training_lock(self._setup.model_dir):
            stopped_at = self._train(input_fn, hooks, steps, max_steps, saving_listeners)
        if stopped_at is not None:
            leave_for_requeue(stopped_at)

    def _train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> int | None:
        """Train; return the step at which a request to requeue stopped the run, or None."""
        model_dir = self._setup.model_dir
        newest = latest_checkpoint(model_dir)
        last_step = None  # to the end of the input
        if steps is not None or max_steps is not None:
            first_step = checkpoint_step(newest)
            last_step = last_step_of_job(model_dir, tasks.current(), first_step, steps, max_steps)
        write_params(model_dir, self._setup.params)
        source = self._setup.whole_input(input_fn, ModeKeys.TRAIN)
        log_report(source, shared=False)
        self._log_start("train")
        own_hooks = validate_hooks("hooks", hooks)
        with self._build_graph(source) as built:
            loop = self._make_loop(built, newest, tuple(saving_listeners or ()))
            raw_hook = RawSessionHook()
            spec_hooks = (*built.spec.training_hooks, *built.spec.training_chief_hooks)
            session = self._open_session(built, newest, loop.saver, (raw_hook, *own_hooks, *spec_hooks))
        write_text(model_dir / "graph.pbtxt", str(built.graph.as_graph_def()))
        requeue = tasks.current().requeue
        in_graph = built.graph.as_default()  # hooks use the default graph
        try:
            with (
                CheckpointRequests() as requests,
                in_graph,
                session,
                loop.events,
                explain_cpu_limits(built.graph),
            ):
                return loop.run(session, raw_hook, last_step, requests, stop_on_request=requeue)
        except KeyboardInterrupt as error:
            log_how_to_resume(error)
            raise

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        """Return the metrics over `steps` batches or all of the input, the mean `loss` and `global_step`."""
        if not runs_in_this_task("eval"):
            return {}
        self._log_start("eval")
        own_hooks = validate_hooks("hooks", hooks)
        checkpoint = self._checkpoint(checkpoint_path, "evaluating")
        with self._build_graph(self._setup.whole_input(input_fn, ModeKeys.EVAL)) as built:
            metrics = with_mean_loss(built.spec)
            saver = model_saver(built.spec.scaffold)
            raw_hook = RawSessionHook()
            every_hook = (raw_hook, *own_hooks, *built.spec.evaluation_hooks)
            session = self._open_session(built, checkpoint, saver, every_hook)
        return report_evaluation(
            self._setup.model_dir, _run_evaluation(built, metrics, session, raw_hook, steps), name
        )

    def predict(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        num_samples: int | None,
    ) -> Batches:
        """Yield the predictions for all of the input; the caller may close the generator earlier."""
        if not runs_in_this_task("predict"):
            return
        self._log_start("predict")
        own_hooks = validate_hooks("hooks", hooks)
        checkpoint = self._checkpoint(checkpoint_path, "predicting with")
        with self._build_graph(self._setup.whole_input(input_fn, ModeKeys.PREDICT)) as built:
            named = predictions_by_name(built.spec)
            saver = model_saver(built.spec.scaffold)
            every_hook = (*own_hooks, *built.spec.prediction_hooks)
            session = self._open_session(built, checkpoint, saver, every_hook)
        # The default graph is set for each batch, not left on the stack while the generator is suspended.
        with _end_session(built.graph, session):
            while not session.should_stop():
                with built.graph.as_default(), explain_cpu_limits(built.graph):
                    batch = session.run(named)
                yield batch

    def _log_start(self, command: Command) -> None:
        log.info("%s", self._setup.destination.describe(command))
        unused = [f"{name}={value}" for name, value in self._setup.config.changed_options().items()]
        if unused:
            log.info("%s: settings of the CS system, without effect on this CPU", ", ".join(unused))

    def _checkpoint(self, given: str | None, doing: str) -> str | None:
        model_dir = self._setup.model_dir
        checkpoint = resolve_checkpoint(given, model_dir)
        if checkpoint is None:
            log.warning("no checkpoint in '%s': %s freshly initialized variables", model_dir, doing)
        return checkpoint

    @contextmanager
    def _build_graph(self, source: InputSource) -> Iterator[_ModelGraph]:
        """Build the graph of input and model, the default graph of the body."""
        import tensorflow as tf

        params, config = self._setup.params, self._setup.config
        with model_graph(config.tf_random_seed) as global_step, tf.device(config.device_fn):
            features, labels = read_in_model_graph(source)
            spec = call_model_fn(self._model_fn, features, labels, source.mode, params, config)
            yield _ModelGraph(tf.compat.v1.get_default_graph(), spec, global_step, features)

    def _make_loop(
        self, built: _ModelGraph, newest: str | None, saving_listeners: Sequence[Any]
    ) -> TrainingLoop:
        """Make the training loop, which adds its own ops to the graph."""
        import tensorflow as tf

        from cgc.importers.tensorflow import keras_layer_updates

        check_advances(built.spec.train_op, built.global_step)
        if newest is None and self._warm_start is not None:
            apply_warm_start(self._warm_start)
        # Dropout seeds and moving averages of Keras layers are not part of the user's train op.
        train_op = tf.group(built.spec.train_op, *keras_layer_updates(built.graph))
        return TrainingLoop(
            self._setup.config,
            self._setup.model_dir,
            built.features,
            built.spec.loss,
            train_op,
            built.global_step,
            built.spec.scaffold,
            saving_listeners,
        )

    def _open_session(
        self, built: _ModelGraph, checkpoint: str | None, saver: Any, hooks: tuple[Any, ...]
    ) -> Any:
        """Open a MonitoredSession whose variables are restored from a checkpoint, or initialized."""
        import tensorflow as tf

        v1 = tf.compat.v1
        given = built.spec.scaffold or v1.train.Scaffold()
        scaffold = v1.train.Scaffold(saver=saver, copy_from_scaffold=given)
        creator = DeferredCloseCreator(
            v1.train.ChiefSessionCreator(
                scaffold=scaffold,
                # As tf.estimator did: a device that is missing, or has no kernel for an op, is no error.
                config=self._setup.config.session_config or v1.ConfigProto(allow_soft_placement=True),
                checkpoint_filename_with_path=checkpoint and literal_path(checkpoint),
            )
        )
        close_deferred()
        if checkpoint is not None:
            check_variables(checkpoint, v1.global_variables())
        with explain_restore_errors(checkpoint), explain_cpu_limits(built.graph):
            return v1.train.MonitoredSession(session_creator=creator, hooks=list(hooks))


@contextmanager
def _end_session(graph: Any, session: Any) -> Iterator[None]:
    """End a monitored session after the body, within its graph, which hooks use.

    The end of the input ends the body without an error.
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


def runs_in_this_task(command: str) -> bool:
    """Return True if this task does the runs on a CPU: the chief. Log it otherwise."""
    if tasks.is_chief():
        return True
    tasks.log_idle(f"{command} runs on the CPU of the chief")
    return False


def _run_evaluation(
    built: _ModelGraph, metrics: Mapping[str, Any], session: Any, raw_hook: RawSessionHook, steps: int | None
) -> dict[str, Any]:
    """Update metrics over the batches of a session; return their values and the global step."""
    import tensorflow as tf

    updates = [update for _, update in metrics.values()]
    values = {key: value for key, (value, _) in metrics.items()}
    started = time.perf_counter()
    done = 0
    results: dict[str, Any] | None = None
    with built.graph.as_default(), session, explain_cpu_limits(built.graph):
        try:
            while (steps is None or done < steps) and not session.should_stop():
                session.run(updates)
                done += 1
        except tf.errors.OutOfRangeError:
            pass
        if done == 0:
            raise CallError("the input of evaluate() has no batch; expected at least one")
        results = raw_hook.session.run({**values, "global_step": built.global_step})
    if results is None:  # the value read a batch, and the session took the end of the input for its own end
        raise CallError(
            "the value of a metric is computed from a batch, but the input has ended; expected a value "
            "computed from variables that the update op of the metric changes, as in tf.compat.v1.metrics"
        )
    log.info("evaluated %d batches in %.2f seconds", done, time.perf_counter() - started)
    return results


class RawSessionHook:
    """A session hook that holds the raw session, in which reading a variable runs no hooks."""

    # Not a subclass of SessionRunHook: that would import TensorFlow. The methods are called by name.

    session: Any = None

    def begin(self) -> None:
        """Add nothing to the graph."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Hold the session; called again if TensorFlow has to create a new one."""
        self.session = session

    def before_run(self, run_context: Any) -> None:
        """Fetch nothing."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Do nothing after a step."""

    def end(self, session: Any) -> None:
        """Do nothing at the end."""


class TrainingLoop:
    """Runs training steps, and writes log lines, summaries and checkpoints when they are due.

    Created before the session, as it adds ops to the graph.

    Args:
        config: Sets the intervals.
        model_dir: Directory of checkpoints and events.
        features: The features passed to `model_fn`; their first dimension is the batch.
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
        self.saver = model_saver(scaffold)
        self.events = EventWriter(model_dir)
        self._writer = CheckpointWriter(
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
        raw_hook: RawSessionHook,
        last_step: int | None,
        requests: CheckpointRequests,
        *,
        stop_on_request: bool,
    ) -> int | None:
        """Run steps until the global step is `last_step`, the input ends, or a hook or listener stops.

        Args:
            session: The monitored session.
            raw_hook: Holds the raw session.
            last_step: The last global step; None to train to the end of the input.
            requests: Requests for a checkpoint, by signal.
            stop_on_request: End the loop after a requested checkpoint.

        Returns:
            The global step at which a request ended the loop early; None if none did.

        Raises:
            NonFiniteLossError: The loss became NaN or infinite.
            CheckpointWriteError: No space or no permission.
        """
        import tensorflow as tf

        first_step, loss = int(raw_hook.session.run(self._global_step)), math.nan
        if first_step == 0:
            if self._config.save_summary_steps:
                self.events.add_graph(self._global_step.graph)
            self._writer.write(raw_hook.session, 0)  # the initial values
        else:
            log.info("resuming on this CPU: the input starts from its beginning, no batch is skipped")
        every_steps = self._config.log_step_count_steps
        progress = HostProgress(self._model_dir, first_step, last_step, every_steps)
        saved_at = time.perf_counter()
        stop = asked = False
        while not stop and (last_step is None or progress.step < last_step) and not session.should_stop():
            with_summary = _is_due(progress.step + 1, self._config.save_summary_steps)
            try:
                result = session.run({**self._fetches, **(self._summary_fetches if with_summary else {})})
            except tf.errors.OutOfRangeError:
                break
            loss = float(result["loss"])
            if not math.isfinite(loss):
                raise NonFiniteLossError(int(result["step"]), loss, self._model_dir)
            progress.add(int(result["step"]), int(result["samples"]), partial(float, loss))
            if with_summary:
                if "summary" in result:
                    self.events.add_summary(progress.step, result["summary"])
                self.events.scalars(progress.step, progress.scalars(loss))
            if progress.is_line_due:
                progress.log_line(loss)
            asked = requests.pending
            if asked or self._save_is_due(progress.step, time.perf_counter() - saved_at):
                stop = self._writer.write(raw_hook.session, progress.step)
                saved_at = time.perf_counter()
            if asked:
                log_requested_checkpoint(progress.step)
                requests.clear()
                stop = stop or stop_on_request
        if progress.step > first_step and self._writer.last_step != progress.step:
            self._writer.write(raw_hook.session, progress.step)
        self._writer.end(raw_hook.session, progress.step)
        progress.log_end(None if math.isnan(loss) else loss)
        end_training(progress.step)
        return progress.step if asked and stop_on_request and progress.step != last_step else None

    def _save_is_due(self, step: int, seconds_since: float) -> bool:
        if self._config.save_checkpoints_steps:
            return _is_due(step, self._config.save_checkpoints_steps)
        every_s = self._config.save_checkpoints_secs
        return bool(every_s) and seconds_since >= every_s


def batch_size(features: Any) -> Any:
    """Return the first dimension of the first dense feature as a tensor; 1 if it has none."""
    import tensorflow as tf

    composite = (tf.SparseTensor, tf.RaggedTensor)
    dense = [leaf for leaf in tf.nest.flatten(features) if not isinstance(leaf, composite)]
    if not dense or tf.convert_to_tensor(dense[0]).shape.rank == 0:
        return tf.constant(1)
    return tf.shape(dense[0])[0]


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and every > 0 and step % every == 0


@contextmanager
def explain_cpu_limits(graph: Any) -> Iterator[None]:
    """Turn errors of operations that TensorFlow does not support on a CPU into messages; pass on all others.

    Args:
        graph: The graph that the body runs.

    Raises:
        CpuLimitError: TensorFlow does not support an operation on a CPU.
    """
    # Labels of -1 and images with channels first, which the CS system supports, and types for which an op has
    # no kernel. No check in advance: which convolutions with channels first exist depends on the CPU and on
    # oneDNN.
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        op, name = error.op, _NODE.search(error.message)
        if op is None and name:
            with suppress(KeyError):  # in the body of a branch or loop, or made by TensorFlow itself
                op = graph.get_operation_by_name(name[1])
        explained = op and _explain_limit(error, op)
        if not explained:
            raise
        from cgc.importers.tensorflow.origin import user_line

        limit, advice = explained
        cause = shorten(essence(error), _CAUSE_LENGTH, placeholder=" ...")
        raise CpuLimitError("TensorFlow", limit, op.name, user_line(op), cause, advice) from None


def _explain_limit(error: Any, op: Any) -> tuple[str, str] | None:
    """Return the limit of TensorFlow that an error is about, and advice; None for other errors."""
    import tensorflow as tf

    if _LABEL.search(error.message):
        return (
            "has no labels of -1",
            "Off the CS system, which ignores such rows, give them the label 0 and a weight of 0",
        )
    channels_first = op.node_def.attr["data_format"].s in _CHANNELS_FIRST
    if channels_first and _CHANNELS_LAST.search(error.message):
        return (
            f"has no {op.type} of {_op_dtype(op)} with channels first",
            "Off the CS system, build the model with channels last (data_format)",
        )
    if isinstance(error, tf.errors.UnimplementedError) or _NO_KERNEL.search(error.message):
        return (
            f"has no {op.type} of {_op_dtype(op)}",
            "Off the CS system, cast to float32 around it, or build the model without it",
        )
    return None


def _op_dtype(op: Any) -> str:
    floats = (tensor.dtype for tensor in (*op.outputs, *op.inputs) if tensor.dtype.is_floating)
    return str(next((dtype.name for dtype in floats), "such tensors"))
