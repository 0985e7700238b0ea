"""Training on the CS system: the same call in every task of a job, each does what its role asks for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cs_runtime import files, progress_notes
from cs_runtime.checkpoint_requests import CheckpointRequests, leave_for_requeue
from cs_runtime.goals import last_step_of_job
from cs_runtime.program import FrontEnd, Observer
from cs_runtime.session import next_run
from cs_runtime.settings import RunSettings
from cs_runtime.timeline import Timeline
from cs_runtime.training_result import TrainResult, note_failure, note_success
from cs_runtime.training_run import TrainingRun, training_run
from cs_runtime.worker import run_worker
from csrun.roles import TaskInfo

log = logging.getLogger("cs_runtime")


Adjust = Callable[[RunSettings], RunSettings]
"""What a program changes of the settings of its run when it has been traced."""


def train(
    front_end: FrontEnd, settings: RunSettings, observer: Observer, adjust: Adjust | None = None
) -> TrainResult | None:
    """Trains until `settings.last_step`, or `settings.steps` steps, or the end of the input.

    SIGUSR1 makes the chief write a checkpoint at the next step. If the job is started again after that
    (`TaskInfo.requeue`), the process then ends with `csrun.roles.EXIT_REQUEUE`.

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
        progress_notes.begin(settings.model_dir, training.first_step, last_step)
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
