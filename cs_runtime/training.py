"""Training on the CS system: the same call in every task of a job, each does what its role asks for."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cs_runtime import files, run_files
from cs_runtime.checkpoint_requests import CheckpointRequests, leave_for_requeue
from cs_runtime.errors import GlobalStepError, ModelDirError, NothingToDoError
from cs_runtime.options import RunSettings
from cs_runtime.program import FrontEnd, Observer, State
from cs_runtime.progress import (
    Progress,
    Timeline,
    begin_training,
    end_training,
    log_how_to_resume,
    report_wait,
)
from cs_runtime.requeue import last_step_of_job
from cs_runtime.run_files import write_run_files
from cs_runtime.session import Session, next_run, open_session, prime
from cs_runtime.terminal import WaitLog, announced
from cs_runtime.worker import run_worker, worker_beside
from cs_system.client import StateStream, StepOutputs
from cs_system.errors import CsSystemError
from cs_toolkit.step import GLOBAL_STEP
from csrun.tasks.roles import TaskInfo


class TrainingRun:
    """A system that is programmed, has its state and gets batches; on the chief.

    Attributes:
        session: The chief's side of the system.
        settings: Of the run.
        progress: Steps, samples and the last loss so far.
        input_ended: No worker has a batch left; `advance` does nothing more.
        is_to_stop: Whether the observer has asked to stop, or the front end with a checkpoint that was
            written beside steps.
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
        self._reading: ReadingState | None = None
        self.is_to_stop = False

    @property
    def first_step(self) -> int:
        """Global step at which the run began."""
        return self.session.first_step

    @property
    def step(self) -> int:
        """Global step that has been reached."""
        return self.progress.step

    def advance(self, steps: int) -> int:
        """Trains on the next batches; the observer sees what the steps put out.

        Args:
            steps: How many steps.

        Returns:
            The number of steps done: fewer where the input ends (`input_ended`) or
            `Reservation.pause_steps` was called.

        Raises:
            NothingToDoError: the input ended before the first step of the run.
            NonFiniteLossError: the loss became NaN or infinite.
            OutOfRangeError: a label is no class, or an id no row of its table.
            cs_system.errors.CsSystemError: the system failed; a worker was lost.
        """
        before = self.step
        for _ in self.spans(steps):
            pass
        return self.step - before

    def spans(self, steps: int) -> Iterator[StepOutputs]:
        """As `advance`, but hands the outputs over as they come: the system computes while they are used."""
        if self.input_ended:
            return
        stream = self.session.reservation.run_steps(steps, self._waits_for, self.session.every)
        try:
            for span in stream:
                self._wait_log.reset()
                self._timeline.mark("first step")
                outputs = self.session.checked(span)
                self.progress.add(outputs)
                if self._observer.steps(outputs) and not self.is_to_stop:
                    self.is_to_stop = True
                    self.session.reservation.pause_steps()
                yield outputs
                self._save_what_is_here()
        except CsSystemError:
            # Where only the steps have failed, the checkpoint before them is still to be had.
            with contextlib.suppress(CsSystemError):
                self.end_checkpoint()
            raise
        self.input_ended = stream.end_of_input
        if self.input_ended and self.step == self.first_step:
            raise NothingToDoError(self.first_step, skipped=self.settings.input_position == "toolkit")

    def state(self) -> State:
        """The whole state by resource name, to be used before the next step.

        Raises:
            GlobalStepError: the system has done another number of steps than this run knows of.
        """
        with announced("give the state"):
            found = self.session.reservation.state()
        return self._checked_state(self.step, found)

    def checkpoint(self) -> bool:
        """Has the front end write a checkpoint of the state; returns whether it asks to stop there."""
        self.end_checkpoint()
        with self._timeline.phase("checkpoint"):
            return self._front_end.save(self.step, self.state())

    def begin_checkpoint(self) -> bool:
        """As `checkpoint`, but where the system keeps the state, it is read and written while steps run.

        `advance` then pauses where the front end asks to stop, see `is_to_stop`.
        """
        self.end_checkpoint()
        stream = self.session.reservation.snapshot()
        if stream is None:
            return self.checkpoint()
        self._reading = ReadingState(self.step, stream)
        return self.is_to_stop

    def end_checkpoint(self) -> None:
        """Waits for the checkpoint that `begin_checkpoint` has begun, if there is one, and has it written."""
        reading, self._reading = self._reading, None
        if reading is None:
            return
        with self._timeline.phase("checkpoint"):
            with announced("give the state"):
                found = reading.state()
            state = self._checked_state(reading.step, found)
            self.is_to_stop |= self._front_end.save(reading.step, state)

    def _waits_for(self, text: str) -> None:
        if self._wait_log(text):
            report_wait(text)

    def _save_what_is_here(self) -> None:
        if self._reading is not None and self._reading.is_here:
            self.end_checkpoint()
            if self.is_to_stop:
                self.session.reservation.pause_steps()

    def _checked_state(self, step: int, found: State) -> State:
        if int(found[GLOBAL_STEP]) != step:
            raise GlobalStepError(step, int(found[GLOBAL_STEP]))
        return found


@contextmanager
def training_run(
    front_end: FrontEnd,
    settings: RunSettings,
    observer: Observer,
    task: TaskInfo,
    run: int,
    timeline: Timeline,
) -> Iterator[TrainingRun]:
    """Brings the system to the first step of a training, and gives it back at the end of the body.

    A training that begins at step 0 writes its first checkpoint here.

    Args:
        front_end: Of the user's program.
        settings: Of the run.
        observer: Is shown what the steps put out.
        task: This task, the chief.
        run: Number of the run in the program (`cs_runtime.session.next_run`).
        timeline: Gets the phases.

    Raises:
        NoSystemError: no `cs_ip`.
        cs_system.errors.CsSystemError: the system is not there or busy; a worker did not come.
    """
    with open_session(front_end, settings, task, run, timeline) as session:
        progress = Progress(
            session.first_step, settings.batch_size, settings.log_every_steps, settings.model_dir
        )
        if session.first_step == 0:
            front_end.save(0, session.initial_state)
        with worker_beside(front_end, settings, task, run) as check:
            prime(session, task, timeline, check)
            training = TrainingRun(session, front_end, settings, observer, progress, timeline)
            yield training
            training.end_checkpoint()
            session.reservation.stop(None)


class ReadingState:
    """The state after a step on its way to the chief, taken by a thread of its own.

    Args:
        step: Global step.
        stream: Of the state.
    """

    def __init__(self, step: int, stream: StateStream) -> None:
        self.step = step
        self._stream = stream
        self._state: State | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether `state` returns at once."""
        return not self._thread.is_alive()

    def state(self) -> State:
        """Waits for all of it.

        Raises:
            cs_system.errors.CsSystemError: the system failed.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._state is not None
        return self._state

    def _read(self) -> None:
        try:
            self._state = self._stream.read()
        except BaseException as error:  # it is raised where the state is asked for
            self._error = error


log = logging.getLogger("cs_runtime")


@dataclass(frozen=True)
class TrainResult:
    """How a training ended, on the chief.

    Attributes:
        final_step: Global step of the last checkpoint.
        loss: Loss of the last step; None when no step was left to do.
        samples: Samples trained on in this run.
        seconds: Time of the training loop, checkpoints included.
        input_ended: The input ended before the last step.
        requeued: It was interrupted by a request for a checkpoint, and goes on when the job is started again.
        left: The program has left its loop before the last step.
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
        """As `run_summary.json` has it."""
        return "requeued" if self.requeued else "left" if self.left else "completed"


def note_success(
    settings: RunSettings,
    timeline: Timeline,
    session: Session,
    task: TaskInfo,
    progress: Progress,
    result: TrainResult,
) -> None:
    """Says how a training ended, in the log and in the files of `model_dir`."""
    rate = result.samples / result.seconds if result.seconds else 0.0
    if result.loss is None:
        log.info(
            "nothing to do: global step %d has reached the last step asked for; give more steps to train on, "
            "or an empty model_dir to begin again",
            result.final_step,
        )
    else:
        log.info(
            "Training %s with %d samples in %.3f seconds, %.2f samples/second.",
            "left by the program" if result.left else "finished",
            result.samples,
            result.seconds,
            rate,
        )
        log.info("Loss for final step: %.6g.", result.loss)
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
        ),
    )
    end_training(result.final_step)


def note_failure(settings: RunSettings, timeline: Timeline, error: BaseException) -> None:
    """Leaves the cause in `run_summary.json`; a full disk must not hide the first error behind a second."""
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    summary = run_files.run_summary(
        settings, timeline, status, error={"type": type(error).__name__, "message": str(error)}
    )
    log_how_to_resume(error)
    try:
        write_run_files(settings.model_dir, summary)
    except ModelDirError as second:
        log.warning("run_summary.json was not written: %s", second)


Adjust = Callable[[RunSettings], RunSettings]
"""What a program changes of the settings of its run when it has been traced."""


def train(
    front_end: FrontEnd, settings: RunSettings, observer: Observer, adjust: Adjust | None = None
) -> TrainResult | None:
    """Trains until `settings.last_step`, or `settings.steps` steps, or the end of the input.

    SIGUSR1 makes the chief write a checkpoint at the next step. If the job is started again after that
    (`TaskInfo.requeue`), the process then ends with `csrun.tasks.roles.EXIT_REQUEUE`.

    Args:
        front_end: Of the program.
        settings: Of the run.
        observer: Is shown what the steps put out, and may ask to stop.
        adjust: Changes when the run ends and when it writes checkpoints.

    Returns:
        The chief's result; None in a worker.

    Raises:
        ModelDirError: `model_dir` is not writable.
        NonFiniteLossError: the loss became NaN or infinite.
        OutOfRangeError: a label is no class, or an id no row of its table.
        cs_system.errors.CsSystemError: the system is not there, busy, or failed; a worker was lost.
    """
    task, run = TaskInfo.from_environment(), next_run()
    with CheckpointRequests() as requests:
        if task.role == "worker":
            run_worker(front_end, settings, task, run)
            return None
        files.check_writable(settings.model_dir)
        timeline = Timeline()
        try:
            result = _chief(front_end, settings, observer, adjust, task, run, timeline, requests)
        except BaseException as error:
            note_failure(settings, timeline, error)
            raise
    if result.requeued:
        leave_for_requeue(result.final_step)
    return result


def _chief(
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
            requests.served_by(training.session.reservation.pause_steps),
        ):
            _train_to(training, last_step, requests, requeue=task.requeue)
    progress, ended = training.progress, training.input_ended
    requeued = task.requeue and requests.pending and progress.step < last_step and not ended
    result = TrainResult(
        progress.step, progress.loss, progress.samples, phase.seconds or 0.0, ended, requeued
    )
    note_success(settings, timeline, training.session, task, progress, result)
    return result


def _train_to(run: TrainingRun, last_step: int, requests: CheckpointRequests, *, requeue: bool) -> None:
    """Trains until `last_step`, the end of the input, a saving listener's stop, or a request to leave.

    Args:
        run: To be advanced.
        last_step: Global step.
        requests: For checkpoints.
        requeue: A request ends the training.
    """
    settings = run.settings
    saved_step, saved_at = run.step, time.monotonic()
    stop = False
    while run.step < last_step and not run.input_ended and not stop:
        # Without a step a job that is always asked too early would be put back into the queue for ever.
        asked = requests.pending and run.step > run.first_step
        if not asked:
            run.advance(_segment_end(run.step, last_step, settings) - run.step)
            asked = requests.pending
        due = asked or _save_is_due(run.step, saved_at, settings)
        ends = run.step == last_step or run.input_ended or run.is_to_stop
        if ends or due:
            if run.step != saved_step:
                stop = run.checkpoint() if ends or asked else run.begin_checkpoint()
            saved_step, saved_at = run.step, time.monotonic()
        stop |= run.is_to_stop
        if asked:
            log.info("checkpoint at global step %d, as SIGUSR1 asked for", saved_step)
            if requeue:
                break
            requests.done()
    if stop and run.step < last_step:
        log.info("stopped at global step %d of %d, as a hook or saving listener asked", run.step, last_step)
    if run.input_ended:
        log.warning(
            "the input ended at global step %d, before step %d; add repeat() to the dataset to train on",
            saved_step,
            last_step,
        )


def _segment_end(step: int, last_step: int, settings: RunSettings) -> int:
    """The next step at which a checkpoint may be due: steps between two of them need no pause."""
    ends = [last_step]
    if settings.save_every_steps:
        ends.append(step - step % settings.save_every_steps + settings.save_every_steps)
    elif settings.save_every_s:
        ends.append(step + (settings.log_every_steps or 100))
    return min(ends)


def _save_is_due(step: int, saved_at: float, settings: RunSettings) -> bool:
    if settings.save_every_steps:
        return step % settings.save_every_steps == 0
    return bool(settings.save_every_s) and time.monotonic() - saved_at >= (settings.save_every_s or 0)
