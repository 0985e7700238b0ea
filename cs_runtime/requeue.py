"""Records of a job that can be requeued, so that an interruption does not change where training runs end.

The job records the last step of each call of `train`, in order; the program repeats the calls, and each ends
where it would have ended without the interruption. A run that started from a checkpoint of another run
resumes from the newest checkpoint that the job has recorded.
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


def forget_calls() -> None:
    """Count calls of train from 0 again, for another program in this process."""
    _calls.clear()


def last_step_of_job(
    model_dir: Path, task: TaskInfo, first_step: int, steps: int | None, last_step: int | None
) -> int:
    """Return the global step at which this call of train ends.

    Args:
        model_dir: Directory of the run.
        task: This task, which knows whether the job can be requeued.
        first_step: Global step of the checkpoint that the run resumes from.
        steps: Maximum number of further steps; None for no limit.
        last_step: Maximum global step; None for no limit.

    Raises:
        ModelDirError: The record cannot be written.
    """
    ends = [] if last_step is None else [last_step]
    if steps is not None:
        ends.append(first_step + steps)
    end = min(ends)
    if not task.requeue:
        return end
    # Without the record, `train(steps=100)` would train 100 more steps after every start.
    call = _calls[model_dir]
    _calls[model_dir] += 1
    try:
        recorded = [int(step) for step in _read(model_dir / FILE_NAME, task.job_id).get("last_steps", [])]
    except (ValueError, TypeError):
        recorded = []
    if call < len(recorded):
        return recorded[call]
    files.write_json(model_dir / FILE_NAME, {"job": task.job_id, "last_steps": [*recorded, end]})
    return end


def record_checkpoint(model_dir: Path, task: TaskInfo, checkpoint: Path) -> None:
    """Record the newest checkpoint of a job that can be requeued.

    Raises:
        ModelDirError: The record cannot be written.
    """
    if task.requeue:
        record = {"job": task.job_id, "checkpoint": str(checkpoint)}
        files.write_json(model_dir / CHECKPOINT_FILE_NAME, record)


def checkpoint_of_job(model_dir: Path, task: TaskInfo) -> Path | None:
    """Return the newest checkpoint that earlier starts of this job recorded, or None."""
    found = _read(model_dir / CHECKPOINT_FILE_NAME, task.job_id).get("checkpoint")
    return Path(found) if task.requeue and found else None


def _read(path: Path, job_id: str) -> dict[str, Any]:
    """Return the record of a job; empty if the file is missing, damaged or of another job."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record if record["job"] == job_id else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
