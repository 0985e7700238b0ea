"""How a job fares, seen from this machine: reads its record, asks Slurm, looks for its launcher's process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from shlex import join
from typing import Any

from cs_toolkit.errors import ToolkitError
from csrun.job_registry import KnownJob, read_record
from csrun.job_state import JobStatus, SlurmView, job_status
from csrun.jobs import start_ticks


def status_of(job: KnownJob) -> JobStatus:
    """How one job fares.

    Raises:
        ToolkitError: it is a job of Slurm, and Slurm cannot be asked.
    """
    return statuses_of([job])[0]


def statuses_of(
    jobs: Iterable[KnownJob], complain: Callable[[ToolkitError], None] | None = None
) -> list[JobStatus]:
    """How several jobs fare; Slurm is asked once for all of them.

    Args:
        jobs: which.
        complain: gets the error if Slurm cannot be asked; what the jobs' own records say has to do then.

    Raises:
        ToolkitError: there are jobs of Slurm among them, Slurm cannot be asked, and there is no `complain`.
    """
    records = [(job, read_record(job)) for job in jobs]
    numbers = {job.job_id: _slurm_number(job, record) for job, record in records}
    try:
        views = _slurm_views({number for number in numbers.values() if number})
    except ToolkitError as error:
        if complain is None:
            raise
        complain(error)
        views = {}
    return [
        job_status(job, record, views.get(numbers[job.job_id]), launcher_lives(record))
        for job, record in records
    ]


def launcher_lives(record: Mapping[str, Any] | None) -> bool | None:
    """Whether the launcher that has written the record is there; None where that cannot be seen from here."""
    if not record or record.get("host") != socket.gethostname():
        return None
    ticks = record.get("launcher_start_ticks")
    return ticks is not None and start_ticks(int(record.get("launcher_pid") or 0)) == ticks


def state_text(found: JobStatus, with_detail: bool = True) -> str:
    """The state in a few words."""
    code = f", exit code {found.exit_code}" if found.over and found.exit_code else ""
    detail = f": {found.detail}" if found.detail and with_detail else ""
    return f"{found.state}{code}{detail}"


def status_text(found: JobStatus) -> str:
    """Everything about one job, for a terminal; pure."""
    slurm = f" (Slurm job {found.slurm_job_id})" if found.slurm_job_id else ""
    facts = {
        "job": f"{found.job.job_id}{slurm}",
        "state": state_text(found),
        "nodes": found.nodes,
        "started": found.started,
        "ended": found.ended,
        "command": join(found.job.command),
        "logs": found.job.log_dir,
    }
    lines = [f"{name:<9} {value}" for name, value in facts.items() if value]
    if found.tasks:
        rows = [("task", "host", "state", "exit code"), *(_task_row(task) for task in found.tasks)]
        lines += ["", *columns(rows)]
    return "\n".join(lines) + "\n"


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


def _slurm_number(job: KnownJob, record: Mapping[str, Any] | None) -> str:
    if job.launcher != "slurm":
        return ""
    return str((record or {}).get("slurm_job_id") or job.slurm_job_id)


def _slurm_views(numbers: set[str]) -> dict[str, SlurmView]:
    """What Slurm knows of its jobs, by their number."""
    if not numbers:
        return {}
    # Only here: local jobs need none of it.
    from csrun.schedulers.slurm.client import SlurmClient
    from csrun.schedulers.slurm.queue import waiting
    from csrun.site.loading import load_site

    client = SlurmClient(os.environ)
    jobs = client.jobs()
    site = load_site(os.environ).site
    views = {}
    for number in numbers:
        components = [job for job in jobs if job.job_id == number]
        if components:
            found = waiting(components, jobs, site.gres_resource or site.licence)
            nodes = ",".join(component.nodes for component in components if component.nodes)
            views[number] = SlurmView(components[0].state, nodes, found.sentence() if found else "")
        elif ended := client.ended_state(number):
            views[number] = SlurmView(ended[0])
    return views
