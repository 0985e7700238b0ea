"""Where a training ends when its job is started again: a requeued `train(steps=100)` trains no 100 more.

A job that may be started again notes the last step of each of its calls of `train`, in their order; the
program makes the same calls again, and each then ends where it would have ended without the interruption.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from cs_runtime import files
from csrun.roles import TaskInfo

FILE_NAME = ".train_goals.json"

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


def _read(path: Path, job_id: str) -> list[int]:
    """The goals that an earlier start of this job has noted; none where the file is of another job."""
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        return [int(step) for step in noted["last_steps"]] if noted["job"] == job_id else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
