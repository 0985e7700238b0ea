"""Training on the CS system: the same call in every task of a job, each does what its role asks for."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from cs_runtime import files, summaries
from cs_runtime.checkpoint_requests import CheckpointRequests, leave_for_requeue
from cs_runtime.errors import GlobalStepError, ModelDirError, NothingToDoError
from cs_runtime.goals import last_step_of_job
from cs_runtime.program import FrontEnd, Observer, State
from cs_runtime.progress import Progress
from cs_runtime.session import Session, next_run, open_session, prime
from cs_runtime.settings import RunSettings
from cs_runtime.timeline import Timeline
from cs_runtime.waiting import WaitLog, announced
from cs_runtime.worker import run_worker, worker_beside
from cs_toolkit.step import GLOBAL_STEP
from csrun.roles import TaskInfo

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
    """

    final_step: int
    loss: float | None
    samples: int
    seconds: float
    input_ended: bool
    requeued: bool = False


def train(front_end: FrontEnd, settings: RunSettings, observer: Observer) -> TrainResult | None:
    """Trains until `settings.last_step`, or `settings.steps` steps, or the end of the input.

    SIGUSR1 makes the chief write a checkpoint at the next step. If the job is started again after that
    (`TaskInfo.requeue`), the process then ends with `csrun.roles.EXIT_REQUEUE`.

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
            result = _chief(front_end, settings, observer, task, run, timeline, requests)
        except BaseException as error:
            _note_failure(settings, timeline, error)
            raise
    if result.requeued:
        leave_for_requeue(result.final_step)
    return result


def _chief(
    front_end: FrontEnd,
    settings: RunSettings,
    observer: Observer,
    task: TaskInfo,
    run: int,
    timeline: Timeline,
    requests: CheckpointRequests,
) -> TrainResult:
    with open_session(front_end, settings, task, run, timeline) as session:
        last_step = last_step_of_job(
            settings.model_dir, task, session.first_step, settings.steps, settings.last_step
        )
        progress = Progress(
            session.first_step, settings.batch_size, settings.log_every_steps, settings.model_dir
        )
        if session.first_step == 0:
            front_end.save(0, session.initial_state)
        with worker_beside(front_end, settings, task, run):
            prime(session, task, timeline)
            with timeline.phase("training") as training, requests.served_by(session.reservation.pause_steps):
                loop = _Loop(session, front_end, settings, observer, progress, timeline, requests)
                input_ended = loop.run(last_step, stop_on_request=task.requeue)
            session.reservation.stop(None)
    seconds = training.seconds or 0.0
    requeued = task.requeue and requests.pending and progress.step < last_step and not input_ended
    result = TrainResult(progress.step, progress.loss, progress.samples, seconds, input_ended, requeued)
    _note_success(settings, timeline, session, task, progress, result)
    return result


@dataclass
class _Loop:
    """The steps of a run, from one checkpoint to the next."""

    session: Session
    front_end: FrontEnd
    settings: RunSettings
    observer: Observer
    progress: Progress
    timeline: Timeline
    requests: CheckpointRequests
    wait_log: WaitLog = field(default_factory=WaitLog)

    def run(self, last_step: int, *, stop_on_request: bool) -> bool:
        """Runs until `last_step`, the end of the input, a saving listener's stop, or a request to stop.

        Returns:
            Whether the input ended.
        """
        progress, settings = self.progress, self.settings
        saved_step, saved_at = progress.step, time.monotonic()
        input_ended = stop = False
        while progress.step < last_step and not input_ended and not stop:
            # Without a step a job that is always asked too early would be put back into the queue for ever.
            asked = self.requests.pending and progress.step > self.session.first_step
            if not asked:
                input_ended = self._steps(_segment_end(progress.step, last_step, settings))
                asked = self.requests.pending
            due = asked or _save_is_due(progress.step, saved_at, settings)
            if progress.step == last_step or input_ended or due:
                if progress.step != saved_step:
                    with self.timeline.phase("checkpoint"):
                        stop = self.front_end.save(progress.step, _fetch(self.session, progress.step))
                saved_step, saved_at = progress.step, time.monotonic()
            if asked:
                log.info("checkpoint at global step %d, as SIGUSR1 asked for", saved_step)
                if stop_on_request:
                    break
                self.requests.done()
        if stop and progress.step < last_step:
            log.info("stopped at global step %d, as a saving listener asked", progress.step)
        if input_ended:
            log.warning(
                "the input ended at global step %d, before step %d; add repeat() to the dataset to train on",
                saved_step,
                last_step,
            )
        return input_ended

    def _steps(self, target_step: int) -> bool:
        """Runs to `target_step`, or less far where a checkpoint is asked for; whether the input ended."""
        progress = self.progress
        stream = self.session.reservation.run_steps(target_step - progress.step, self.wait_log)
        for span in stream:
            self.wait_log.reset()
            self.timeline.mark("first step")
            outputs = self.session.checked(span)
            progress.add(outputs)
            self.observer.steps(outputs)
        input_ended = stream.end_of_input
        if input_ended and progress.step == self.session.first_step:
            skipped = self.settings.input_position == "toolkit"
            raise NothingToDoError(self.session.first_step, skipped=skipped)
        return input_ended


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


def _fetch(session: Session, step: int) -> State:
    """The whole state: what the step does not change lies on the chief already."""
    with announced("give the state"):
        state = {**session.initial_state, **session.reservation.fetch_state()}
    if int(state[GLOBAL_STEP]) != step:
        raise GlobalStepError(step, int(state[GLOBAL_STEP]))
    return state


def _note_success(
    settings: RunSettings,
    timeline: Timeline,
    session: Session,
    task: TaskInfo,
    progress: Progress,
    result: TrainResult,
) -> None:
    rate = result.samples / result.seconds if result.seconds else 0.0
    if result.loss is None:
        log.info("nothing to do: global step %d has reached the last step asked for", result.final_step)
    else:
        log.info(
            "Training finished with %d samples in %.3f seconds, %.2f samples/second.",
            result.samples,
            result.seconds,
            rate,
        )
        log.info("Loss for final step: %.6g.", result.loss)
    artifact = session.compiled.artifact
    active_pes = artifact.estimates.active_pes
    files.write_json(
        settings.model_dir / "performance.json",
        summaries.performance_json(
            fabric=session.target.fabric,
            total_samples=result.samples,
            total_time_s=result.seconds,
            deltat_cycles=artifact.estimates.deltat_cycles,
            active_pes=active_pes,
            compile_time_s=timeline.seconds("compile"),
            programming_time_s=timeline.seconds("program the fabric"),
        ),
    )
    files.write_json(
        settings.model_dir / "fabric.json",
        summaries.fabric_json(session.target.fabric, active_pes, session.target.system),
    )
    files.write_json(
        settings.model_dir / "run_summary.json",
        summaries.run_summary(
            settings,
            timeline,
            "requeued" if result.requeued else "completed",
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
    )


def _note_failure(settings: RunSettings, timeline: Timeline, error: BaseException) -> None:
    """Leaves the cause in `run_summary.json`; a full disk must not hide the first error behind a second."""
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    summary = summaries.run_summary(
        settings, timeline, status, error={"type": type(error).__name__, "message": str(error)}
    )
    try:
        files.write_json(settings.model_dir / "run_summary.json", summary)
    except ModelDirError as second:
        log.warning("run_summary.json was not written: %s", second)
