"""The training that this process runs, as far as others want to know: its log line, the file beside the logs.

A process trains one model at a time. Whoever writes a checkpoint says so here, whatever front end it is of.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from cs_system.errors import CsSystemError
from csrun.training_progress import TrainingProgress, write_progress

log = logging.getLogger("cs_runtime")

_LOG_DIR = "CSRUN_LOG_DIR"

_present: TrainingProgress | None = None
_newest: tuple[int, str] | None = None


def begin(model_dir: Path, first_step: int, last_step: int | None, *, resumes: bool = True) -> None:
    """A training begins.

    Args:
        model_dir: of the run.
        first_step: global step of the checkpoint that it goes on from; 0 for a new one.
        last_step: where it ends; None: with the input.
        resumes: the same command would go on from the newest checkpoint.
    """
    known = _newest if _newest is not None and _newest[0] == first_step else None
    step, path = known or (first_step or None, "")
    _note(
        TrainingProgress(
            first_step,
            first_step,
            last_step,
            str(model_dir),
            checkpoint_step=step,
            checkpoint=path,
            resumes=resumes,
        )
    )
    if first_step:
        log.info("%s", continuing_text(first_step, last_step))


def continuing_text(first_step: int, last_step: int | None) -> str:
    """That a training goes on from a checkpoint."""
    end = "the end of its input" if last_step is None else str(last_step)
    return f"continuing at step {first_step} of {end}"


def reached(
    step: int,
    loss: float | None,
    steps_per_s: float,
    samples_per_s: float | None = None,
    input_wait: float | None = None,
) -> None:
    """Logs a line of progress and notes it.

    Args:
        step: global step.
        loss: of that step.
        steps_per_s: since the line before.
        samples_per_s: the same in samples.
        input_wait: share of that time in which the device had no batch.
    """
    before = _present or TrainingProgress(step, step, None, "")
    noted = replace(
        before,
        step=step,
        loss=loss,
        steps_per_s=steps_per_s,
        samples_per_s=samples_per_s,
        input_wait=input_wait,
        waits_for="",
    )
    log.info("%s", noted.line())
    _note(noted)


def checkpoint_saved(step: int, path: str | os.PathLike[str]) -> None:
    """A checkpoint has been written."""
    global _newest
    _newest = step, os.fspath(path)
    if _present is not None:
        _note(
            replace(_present, step=max(step, _present.step), checkpoint_step=step, checkpoint=os.fspath(path))
        )


def now_at(step: int) -> None:
    """Notes a step without a line, for what is said where the training ends."""
    if _present is not None:
        _note(replace(_present, step=step, waits_for=""), write=bool(_present.waits_for))


def waits_for(text: str) -> None:
    """No step has ended for a while; `text` says why."""
    if _present is not None:
        _note(replace(_present, waits_for=text))


def log_how_to_go_on(error: BaseException) -> None:
    """Says what a user does with the training that an error has ended, where it may simply go on.

    Of an interruption the launcher of a job says it, which knows of all ways in which a job is interrupted.
    """
    interrupted = isinstance(error, KeyboardInterrupt)
    if _present is None or (interrupted and os.environ.get(_LOG_DIR)):
        return
    text = _present.how_to_go_on()
    if text and (interrupted or isinstance(error, CsSystemError)):
        log.info("%s", text)


def end(step: int) -> None:
    """The training has ended well, at this global step."""
    global _present
    if _present is not None:
        _note(replace(_present, step=step))
    _present = None


def _note(progress: TrainingProgress, *, write: bool = True) -> None:
    global _present
    _present = progress
    directory = os.environ.get(_LOG_DIR)
    if write and directory:
        write_progress(Path(directory), progress)
