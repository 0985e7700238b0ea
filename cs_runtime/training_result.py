"""How a training ended: what the log says, and the files beside it in `model_dir`."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cs_runtime import files, progress_notes, summaries
from cs_runtime.errors import ModelDirError
from cs_runtime.progress import Progress
from cs_runtime.run_files import write_run_files
from cs_runtime.session import Session
from cs_runtime.settings import RunSettings
from cs_runtime.timeline import Timeline
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
        summaries.fabric_json(session.target.fabric, artifact.estimates, session.target.system),
    )
    write_run_files(
        settings.model_dir,
        summaries.run_summary(
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
        summaries.performance_json(
            fabric=session.target.fabric,
            total_samples=result.samples,
            total_time_s=result.seconds,
            estimates=artifact.estimates,
            compile_time_s=timeline.seconds("compile"),
            programming_time_s=timeline.seconds("program the fabric"),
        ),
    )
    progress_notes.end(result.final_step)


def note_failure(settings: RunSettings, timeline: Timeline, error: BaseException) -> None:
    """Leaves the cause in `run_summary.json`; a full disk must not hide the first error behind a second."""
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    summary = summaries.run_summary(
        settings, timeline, status, error={"type": type(error).__name__, "message": str(error)}
    )
    progress_notes.log_how_to_go_on(error)
    try:
        write_run_files(settings.model_dir, summary)
    except ModelDirError as second:
        log.warning("run_summary.json was not written: %s", second)
