"""Where a training begins and ends when its job is started again: `train(steps=100)` trains no 100 more.

A job that may be started again notes the last step of each of its calls of `train`, in their order; the
program makes the same calls again, and each then ends where it would have ended without the interruption.
A training that began with a checkpoint of another run goes on from the newest one that its job has noted.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from cs_runtime import files
from csrun.tasks.roles import TaskInfo

FILE_NAME = ".train_goals.json"
CHECKPOINT_FILE_NAME = ".train_checkpoint.json"

_calls: Counter[Path] = Counter()


def last_step_of_job(
    model_dir: Path, task: TaskInfo, first_step: int, steps: int | None, last_step: int | None
) -> int:
    """The step at which this call of train ends.

    Args:
        model_dir: of the training.
        task: says whether the job may be started again.
        first_step: global step of the checkpoint that it goes on from.
        steps: at most that many more steps; None: no such limit.
        last_step: at most up to this step; None: no such limit.

    Raises:
        ModelDirError: the note cannot be written.
    """
    ends = [] if last_step is None else [last_step]
    if steps is not None:
        ends.append(first_step + steps)
    end = min(ends)
    if not task.requeue:
        return end
    call = _calls[model_dir]
    _calls[model_dir] += 1
    goals = _read(model_dir / FILE_NAME, task.job_id)
    if call < len(goals):
        return goals[call]
    files.write_json(model_dir / FILE_NAME, {"job": task.job_id, "last_steps": [*goals, end]})
    return end


def note_checkpoint(model_dir: Path, task: TaskInfo, checkpoint: Path) -> None:
    """Notes that this job has written a checkpoint, where it may be started again.

    Raises:
        ModelDirError: the note cannot be written.
    """
    if task.requeue:
        noted = {"job": task.job_id, "checkpoint": str(checkpoint)}
        files.write_json(model_dir / CHECKPOINT_FILE_NAME, noted)


def checkpoint_of_job(model_dir: Path, task: TaskInfo) -> Path | None:
    """The newest checkpoint of earlier starts of this job; None where there is none."""
    found = _noted(model_dir / CHECKPOINT_FILE_NAME, task.job_id).get("checkpoint")
    return Path(found) if task.requeue and found else None


def _read(path: Path, job_id: str) -> list[int]:
    """The goals that an earlier start of this job has noted; none where the file is of another job."""
    try:
        return [int(step) for step in _noted(path, job_id).get("last_steps", [])]
    except (ValueError, TypeError):
        return []


def _noted(path: Path, job_id: str) -> dict[str, Any]:
    """What a job has noted in a file; nothing where it is of another job."""
    try:
        noted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return noted if noted["job"] == job_id else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
