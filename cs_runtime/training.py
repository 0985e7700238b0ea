"""Training on the CS system.

An estimator only calls `train`, in every task of a job: the role of a task determines whether it is the
chief, which drives the system, or a worker, which streams batches. A program that has its own loop enters
`training_run` on the chief and advances the `TrainingRun` itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cs_runtime import files, run_files
from cs_runtime.errors import GlobalStepError, ModelDirError, NothingToDoError
from cs_runtime.input_record import InputRecord, OrderLog, append_record, schedule_from
from cs_runtime.options import RunSettings
from cs_runtime.program import FrontEnd, Observer, State
from cs_runtime.progress import (
    Progress,
    Timeline,
    begin_training,
    end_training,
    log_end,
    log_how_to_resume,
    report_wait,
)
from cs_runtime.requeue import (
    CheckpointRequests,
    last_step_of_job,
    leave_for_requeue,
    log_requested_checkpoint,
)
from cs_runtime.run_files import write_run_files
from cs_runtime.session import Session, next_run, open_session, prime
from cs_runtime.terminal import WaitLog, log_while_blocked
from cs_runtime.training_lock import training_lock
from cs_runtime.worker import run_in_process_worker, run_worker
from cs_system.client import StateStream, StepOutputs, StepStream
from cs_system.errors import CsSystemError, TensorDamagedError
from cs_toolkit.step import GLOBAL_STEP
from csrun.tasks.roles import TaskInfo

log = logging.getLogger("cs_runtime")


class TrainingRun:
    """The chief's handle of a training run on a system that is programmed, initialized and receiving batches.

    Attributes:
        session: The chief's connection to the system.
        settings: Options of the run.
        progress: Steps, samples and the last loss so far.
        input_ended: True when no worker has a batch left; `advance` then does nothing.
        should_stop: True if the observer asked to stop, or the front end did when it wrote a background
            checkpoint.
    """

    def __init__(
        self,
        session: Session,
        front_end: FrontEnd,
        settings: RunSettings,
        observer: Observer,
        progress: Progress,
        timeline: Timeline,
    ) -> None:
        self.session = session
        self.settings = settings
        self.progress = progress
        self.input_ended = False
        self._front_end = front_end
        self._observer = observer
        self._timeline = timeline
        self._wait_log = WaitLog()
        self._snapshot: StateReader | None = None
        self._snapshot_record = record = session.input_record
        folder = settings.record_dir or settings.model_dir
        self._order_log = (
            OrderLog(folder, record, schedule_from(settings, record)) if record.cursors else None
        )
        self.should_stop = False

    @property
    def first_step(self) -> int:
        """Global step at the start of the run."""
        return self.session.first_step

    @property
    def step(self) -> int:
        """Current global step."""
        return self.progress.step

    def advance(self, steps: int) -> int:
        """Train on the next `steps` batches, and pass their outputs to the observer.

        Returns:
            The number of steps done. It is less than `steps` if the input ended (`input_ended`) or
            `Reservation.pause_steps` was called.

        Raises:
            NothingToDoError: The input ended before the first step of the run.
            NonFiniteLossError: The loss became NaN or infinite.
            OutOfRangeError: A label is not a class, or an id is not a row of its table.
            cs_system.errors.CsSystemError: The system failed, or a worker was lost.
        """
        before = self.step
        for _ in self.iterate_outputs(steps):
            pass
        return self.step - before

    def iterate_outputs(self, steps: int) -> Iterator[StepOutputs]:
        """Train like `advance`, yielding outputs as they arrive while the system computes on.

        The steps begin with the call, not with the first output that is read.
        """
        if self.input_ended:
            return iter(())
        stream = self.session.reservation.run_steps(steps, self._log_wait, self.session.every)
        return self._receive_outputs(stream)

    def _receive_outputs(self, stream: StepStream) -> Iterator[StepOutputs]:
        try:
            for span in stream:
                self._wait_log.reset()
                self._timeline.mark("first step")
                outputs = self.session.check_outputs(span)
                record = self.session.input_record
                self.session.input_record = record.at(span.first_step + span.count, span.position)
                if self._order_log is not None:
                    self._order_log.add(span.shards)
                self.progress.add(outputs)
                if self._observer.steps(outputs) and not self.should_stop:
                    self.should_stop = True
                    self.session.reservation.pause_steps()
                yield outputs
                if self._snapshot is not None and self._snapshot.is_complete:
                    self.finish_checkpoint()
                    if self.should_stop:
                        self.session.reservation.pause_steps()
        except GeneratorExit:  # the program leaves its loop
            raise
        except BaseException:
            # If only the steps failed, the state of the background checkpoint can still be read.
            with contextlib.suppress(CsSystemError):
                self.finish_checkpoint()
            raise
        self.input_ended = stream.end_of_input
        if self.input_ended and self.step == self.first_step:
            raise NothingToDoError(self.first_step, skipped=not self.settings.options.program_skips_batches)

    def state(self, kept: StateStream | None = None) -> State:
        """Return the whole state by resource name; it is valid until the next step.

        Args:
            kept: The state, which `Reservation.snapshot` has kept after the current step; further steps may
                run on the system, but their outputs must not have been read.

        Raises:
            GlobalStepError: The system's global step differs from the number of steps of this run.
        """
        with log_while_blocked("give the state"):
            state = self.session.reservation.state() if kept is None else kept.read()
        _check_global_step(state, self.step)
        self._record_input(self.session.input_record)
        return state

    def checkpoint(self) -> bool:
        """Let the front end write a checkpoint of the current state; return True if it asks to stop."""
        self.finish_checkpoint()
        writing = self.session.reservation.activity("writing a checkpoint")
        with self._timeline.phase("checkpoint"), writing:
            return self._front_end.save(self.step, self.state())

    def start_checkpoint(self) -> bool:
        """Checkpoint while further steps run; like `checkpoint` if the state is large or the front end waits.

        If the front end then asks to stop, `should_stop` becomes true and `advance` pauses.
        """
        self.finish_checkpoint()
        if self._front_end.saves_between_steps:
            return self.checkpoint()
        stream = self.session.reservation.snapshot()
        if stream is None:
            return self.checkpoint()
        self._snapshot, self._snapshot_record = StateReader(self.step, stream), self.session.input_record
        return self.should_stop

    def finish_checkpoint(self) -> None:
        """Wait for the background checkpoint, if there is one, and write it.

        One that arrives damaged after further steps have run is left out, with a warning.
        """
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return
        with self._timeline.phase("checkpoint"):
            try:
                with log_while_blocked("give the state"):
                    state = snapshot.state()
            except TensorDamagedError as error:
                if self.step > snapshot.step:  # the system has this state no longer
                    log.warning(
                        "no checkpoint of step %d: %s; training continues",
                        snapshot.step,
                        str(error).partition(",")[0],
                    )
                    return
                state = self.session.reservation.state()
            _check_global_step(state, snapshot.step)
            self._record_input(self._snapshot_record)
            self.should_stop |= self._front_end.save(snapshot.step, state)

    def _record_input(self, record: InputRecord) -> None:
        """Record the input at a step whose state the program can save from now on."""
        append_record(self.settings.record_dir or self.settings.model_dir, record)

    def _log_wait(self, text: str) -> None:
        if self._wait_log(text):
            report_wait(text)


def _check_global_step(state: State, step: int) -> None:
    if int(state[GLOBAL_STEP]) != step:
        raise GlobalStepError(step, int(state[GLOBAL_STEP]))


@contextmanager
def training_run(
    front_end: FrontEnd,
    settings: RunSettings,
    observer: Observer,
    task: TaskInfo,
    run: int,
    timeline: Timeline,
) -> Iterator[TrainingRun]:
    """Prepare the system for the first step of a training run, and release it at the end of the body.

    A run that starts at step 0 writes its first checkpoint here.

    Args:
        front_end: Front end of the user's program.
        settings: Options of the run.
        observer: Receives the outputs of every step.
        task: This task, which must be the chief.
        run: Number of the run in the program (`cs_runtime.session.next_run`).
        timeline: Records the phases.

    Raises:
        NoSystemError: `settings.cs_ip` is missing.
        cs_system.errors.CsSystemError: The system is unreachable or busy, or a worker did not connect.
    """
    with open_session(front_end, settings, task, run, timeline) as session:
        progress = Progress(
            session.first_step,
            settings.batch_size,
            settings.log_every_steps,
            settings.model_dir,
            session.metrics,
        )
        if session.first_step == 0:
            front_end.save(0, session.initial_state)
        with run_in_process_worker(front_end, settings, task, run) as check:
            prime(session, task, timeline, check)
            training = TrainingRun(session, front_end, settings, observer, progress, timeline)
            yield training
            training.finish_checkpoint()
            session.reservation.stop(None)


class StateReader:
    """Reads a snapshot of the state in a background thread.

    Args:
        step: Global step of the snapshot.
        stream: Transfers the state to the chief.
    """

    def __init__(self, step: int, stream: StateStream) -> None:
        self.step = step
        self._stream = stream
        self._state: State | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_complete(self) -> bool:
        """True if `state` returns without waiting."""
        return not self._thread.is_alive()

    def state(self) -> State:
        """Wait for the transfer to complete, and return the state.

        Raises:
            cs_system.errors.CsSystemError: The system failed.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._state is not None
        return self._state

    def _read(self) -> None:
        try:
            self._state = self._stream.read()
        except BaseException as error:  # `state` raises it in the chief's thread
            self._error = error


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a training run, on the chief.

    Attributes:
        final_step: Global step of the last checkpoint.
        loss: Loss of the last step; None if no step was left to do.
        samples: Samples trained on in this run.
        seconds: Time of the training loop, including checkpoints.
        input_ended: True if the input ended before the last step.
        requeued: True if a checkpoint request interrupted the run; it resumes when the job is requeued.
        left: True if the program left its loop before the last step.
    """

    final_step: int
    loss: float | None
    samples: int
    seconds: float
    input_ended: bool
    requeued: bool = False
    left: bool = False

    @property
    def status(self) -> str:
        """The value of `status` in `run_summary.json`."""
        return "requeued" if self.requeued else "left" if self.left else "completed"


def record_success(
    settings: RunSettings,
    timeline: Timeline,
    session: Session,
    task: TaskInfo,
    progress: Progress,
    result: TrainResult,
) -> None:
    """Log the result of a training run, and write the run files to `model_dir`."""
    rate = result.samples / result.seconds if result.seconds else 0.0
    record = session.input_record
    if result.loss is None:
        log.info(
            "nothing to do: global step %d is the requested last step already; raise the number of steps to "
            "continue, or use an empty model_dir to start from step 0",
            result.final_step,
        )
    else:
        log_end(result.samples, result.seconds, result.loss, left=result.left)
        log.info(
            "order digest of the input, steps %d to %d over %d shard(s): %s",
            *(record.digest_from, record.step, record.shards, record.digest),
        )
    artifact = session.compiled.artifact
    files.write_json(
        settings.model_dir / "fabric.json",
        run_files.fabric_json(session.target.fabric, artifact.estimates, session.target.system),
    )
    write_run_files(
        settings.model_dir,
        run_files.run_summary(
            settings,
            timeline,
            result.status,
            job=task.job_id,
            workers=task.num_workers,
            artifact=str(artifact.path),
            compile_reused=session.compiled.reused,
            first_step=session.first_step,
            last_step=result.final_step,
            loss=result.loss,
            samples=result.samples,
            samples_per_sec=rate,
            input_ended=result.input_ended,
        ),
        run_files.performance_json(
            fabric=session.target.fabric,
            total_samples=result.samples,
            total_time_s=result.seconds,
            estimates=artifact.estimates,
            compile_time_s=timeline.seconds("compile"),
            programming_time_s=timeline.seconds("program the fabric"),
            order_digest=record.digest or None,
            order_digest_from=record.digest_from,
        ),
    )
    from cgc.manifest import REPORT_TEXT  # late: workers have no compiler

    reports = (settings.model_dir / run_files.RUN_SUMMARY, artifact.path / REPORT_TEXT)
    end_training(result.final_step, progress.input_wait, reports)


def record_failure(settings: RunSettings, timeline: Timeline, error: BaseException) -> None:
    """Record the error that ended a training run in `run_summary.json`."""
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    summary = run_files.run_summary(
        settings, timeline, status, error={"type": type(error).__name__, "message": str(error)}
    )
    log_how_to_resume(error)
    try:
        write_run_files(settings.model_dir, summary)
    except ModelDirError as second:  # a full disk must not hide the first error
        log.warning("run_summary.json was not written: %s", second)


# Returns the options of a run as the program changes them when it is traced.
Adjust = Callable[[RunSettings], RunSettings]


def train(
    front_end: FrontEnd, settings: RunSettings, observer: Observer, adjust: Adjust | None = None
) -> TrainResult | None:
    """Train until `settings.last_step`, for `settings.steps` steps, or to the end of the input.

    On SIGUSR1 the chief writes a checkpoint after the current step. If the job is requeueable
    (`TaskInfo.requeue`), the process then exits with `csrun.tasks.place.EXIT_REQUEUE`.

    Args:
        front_end: Front end of the program.
        settings: Options of the run.
        observer: Receives the outputs of every step, and may ask to stop.
        adjust: Changes the end of the run and its checkpoint interval once the program has been traced.

    Returns:
        The chief's result; None in a worker.

    Raises:
        ModelDirError: `model_dir` is not writable.
        ModelDirInUseError: Another process trains there.
        NonFiniteLossError: The loss became NaN or infinite.
        OutOfRangeError: A label is not a class, or an id is not a row of its table.
        cs_system.errors.CsSystemError: The system is unreachable, busy or failed, or a worker was lost.
    """
    task, run = TaskInfo.from_environment(), next_run()
    # In workers, too: a signal to the whole job would end those that do not handle it.
    with CheckpointRequests() as requests:
        if task.role == "worker":
            run_worker(front_end, settings, task, run)
            return None
        files.check_writable(settings.model_dir)
        timeline = Timeline()
        with training_lock(settings.model_dir):
            try:
                result = _run_chief(front_end, settings, observer, adjust, task, run, timeline, requests)
            except BaseException as error:
                record_failure(settings, timeline, error)
                raise
    if result.requeued:
        leave_for_requeue(result.final_step)
    return result


def _run_chief(
    front_end: FrontEnd,
    settings: RunSettings,
    observer: Observer,
    adjust: Adjust | None,
    task: TaskInfo,
    run: int,
    timeline: Timeline,
    requests: CheckpointRequests,
) -> TrainResult:
    with training_run(front_end, settings, observer, task, run, timeline) as training:
        if adjust is not None:
            training.settings = settings = adjust(settings)
        last_step = last_step_of_job(
            settings.model_dir, task, training.first_step, settings.steps, settings.last_step
        )
        begin_training(settings.model_dir, training.first_step, last_step)
        with (
            timeline.phase("training") as phase,
            requests.pause_steps_with(training.session.reservation.pause_steps),
        ):
            _train_to(training, last_step, requests, requeue=task.requeue)
    progress, ended = training.progress, training.input_ended
    requeued = task.requeue and requests.pending and progress.step < last_step and not ended
    result = TrainResult(
        progress.step, progress.loss, progress.samples, phase.seconds or 0.0, ended, requeued
    )
    record_success(settings, timeline, training.session, task, progress, result)
    return result


def _train_to(run: TrainingRun, last_step: int, requests: CheckpointRequests, *, requeue: bool) -> None:
    """Train until `last_step`, the end of the input, a saving listener's stop, or a request to requeue.

    Args:
        run: The run to advance.
        last_step: Global step.
        requests: Checkpoint requests.
        requeue: A checkpoint request ends the run.
    """
    settings = run.settings
    saved_step, saved_at = run.step, time.monotonic()
    stop = False
    while run.step < last_step and not run.input_ended and not stop:
        # At least one step: a job that always gets the signal early would be requeued without progress.
        requested = requests.pending and run.step > run.first_step
        every, every_s = settings.save_every_steps, settings.save_every_s
        if not requested:
            # Steps run without a pause to the next one at which a checkpoint may be due.
            end = last_step
            if every:
                end = min(end, run.step - run.step % every + every)
            elif every_s:
                end = min(end, run.step + (settings.log_every_steps or 100))
            run.advance(end - run.step)
            requested = requests.pending
        if every:
            due = requested or run.step % every == 0
        else:
            due = requested or bool(every_s and time.monotonic() - saved_at >= every_s)
        ends = run.step == last_step or run.input_ended or run.should_stop
        if ends or due:
            if run.step != saved_step:
                stop = run.checkpoint() if ends or requested else run.start_checkpoint()
            saved_step, saved_at = run.step, time.monotonic()
        stop |= run.should_stop
        if requested:
            log_requested_checkpoint(saved_step)
            if requeue:
                break
            requests.clear()
    if stop and run.step < last_step:
        log.info(
            "stopped at global step %d of %d, requested by a hook or saving listener", run.step, last_step
        )
    if run.input_ended:
        log.warning(
            "the input ended at global step %d, before step %d; add repeat() to the dataset to continue",
            saved_step,
            last_step,
        )
