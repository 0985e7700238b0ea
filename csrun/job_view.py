"""How a job fares, seen from this machine: reads its record, asks its scheduler, looks for its launcher."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from shlex import join
from typing import Any

from cs_toolkit.errors import ToolkitError
from csrun.job_registry import KnownJob, read_record, scheduler_number
from csrun.job_state import JobStatus, QueueView, job_status
from csrun.launcher_process import launcher_lives
from csrun.schedulers.registry import scheduler
from csrun.training_progress import read_progress


def status_of(job: KnownJob) -> JobStatus:
    """How one job fares.

    Raises:
        ToolkitError: its scheduler cannot be asked.
    """
    return statuses_of([job])[0]


def statuses_of(
    jobs: Iterable[KnownJob], complain: Callable[[ToolkitError], None] | None = None
) -> list[JobStatus]:
    """How several jobs fare; every scheduler is asked once for all of its jobs.

    Args:
        jobs: which.
        complain: gets the error if a scheduler cannot be asked; what the jobs' records say has to do then.

    Raises:
        ToolkitError: a scheduler cannot be asked, and there is no `complain`.
    """
    records = [(job, read_record(job)) for job in jobs]
    numbers: dict[str, set[str]] = defaultdict(set)
    for job, record in records:
        if number := scheduler_number(job, record):
            numbers[job.launcher].add(number)
    views: dict[str, Mapping[str, QueueView]] = {}
    for launcher, its_jobs in numbers.items():
        try:
            views[launcher] = scheduler(launcher).views(its_jobs, os.environ)
        except ToolkitError as error:
            if complain is None:
                raise
            complain(error)
    return [
        job_status(
            job,
            record,
            views.get(job.launcher, {}).get(scheduler_number(job, record)),
            launcher_lives(record),
            read_progress(Path(job.log_dir)),
        )
        for job, record in records
    ]


def state_text(found: JobStatus, with_detail: bool = True) -> str:
    """The state in a few words."""
    code = f", exit code {found.exit_code}" if found.over and found.exit_code else ""
    detail = f": {found.detail}" if found.detail and with_detail else ""
    return f"{found.state}{code}{detail}"


def status_text(found: JobStatus) -> str:
    """Everything about one job, for a terminal; pure."""
    facts = {
        "job": f"{found.job.job_id}{_number_text(found)}",
        "state": state_text(found),
        "nodes": found.nodes,
        "started": found.started,
        "ended": found.ended,
        "training": _training_text(found),
        "command": join(found.job.command),
        "logs": found.job.log_dir,
    }
    lines = [f"{name:<9} {value}" for name, value in facts.items() if value]
    if found.tasks:
        rows = [("task", "host", "state", "exit code"), *(_task_row(task) for task in found.tasks)]
        lines += ["", *columns(rows)]
    return "\n".join(lines) + "\n"


def _training_text(found: JobStatus) -> str | None:
    """How far its training is, and behind an end before the last step how to go on."""
    if found.progress is None:
        return None
    return (found.progress.how_to_go_on() if found.over else None) or found.progress.summary()


def _number_text(found: JobStatus) -> str:
    """The scheduler's number in words; a scheduler whose package has gone is called by its name."""
    if not found.scheduler_job_id:
        return ""
    try:
        title = scheduler(found.job.launcher).title
    except ToolkitError:
        title = found.job.launcher
    return f" ({title} job {found.scheduler_job_id})"


def columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """The rows as lines, their cells below each other."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _task_row(task: Mapping[str, Any]) -> tuple[str, ...]:
    name = "chief" if task.get("role") == "chief" else f"worker {task.get('index')}"
    code = task.get("exit_code")
    return name, str(task.get("host") or "-"), str(task.get("state")), "-" if code is None else str(code)
