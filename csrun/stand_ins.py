"""What a process finds that stands for a worker of a job, in an analysis or a report of an input function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from csrun.schedulers.registry import task_variables
from csrun.tasks.roles import tf_config


def worker_place(workers: int, index: int) -> tuple[int, int]:
    """Rank of a worker and number of tasks; an only worker is all of its job, chief and worker at once."""
    return (index + 1, workers + 1) if workers > 1 else (0, 1)


def worker_config(workers: int, index: int) -> dict[str, Any]:
    """TF_CONFIG of a worker in a job whose tasks are all on this machine."""
    rank, tasks = worker_place(workers, index)
    return tf_config(rank, ["127.0.0.1"] * tasks)


def worker_variables(environment: Mapping[str, str], workers: int, index: int) -> dict[str, str]:
    """TF_CONFIG, and what the scheduler that has started this process tells a task.

    Args:
        environment: of this process.
        workers: of the job.
        index: of the worker.
    """
    rank, tasks = worker_place(workers, index)
    config = json.dumps(worker_config(workers, index))
    return {"TF_CONFIG": config, **task_variables(environment, rank, tasks)}
