"""Registry of the user's jobs, with which `csrun status`, `logs` and `cancel` find a job by its name.

Each job has a small file in $XDG_STATE_HOME/csrun/jobs (~/.local/state/csrun/jobs). It locates the record of
the job and has nothing about its state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cs_toolkit.errors import UsageError
from cs_toolkit.files import read_json, replace_file

KEPT_DAYS = 60  # entries of older jobs are removed when a new one is written

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job that this user has started.

    Attributes:
        job_id: csrun's id.
        log_dir: absolute path of its logs, with its record job.json once it has started.
        launcher: name of its scheduler.
        command: program and arguments of the user.
        scheduler_job_id: the scheduler's number of a submitted job, known at its registration; else "".
        created_s: seconds since the epoch.
    """

    job_id: str
    log_dir: str
    launcher: str
    command: tuple[str, ...]
    scheduler_job_id: str = ""
    created_s: float = 0.0


def registry_dir(environment: Mapping[str, str]) -> Path:
    """Return the directory of the entries."""
    # In the home directory, which all nodes of a cluster share.
    home = Path(environment.get("HOME") or "~").expanduser()
    return Path(environment.get("XDG_STATE_HOME") or home / ".local" / "state") / "csrun" / "jobs"


def register(job: KnownJob, environment: Mapping[str, str]) -> None:
    """Write the entry of a new job; errors are ignored."""
    folder = registry_dir(environment)
    submitted = _read(folder / f"{job.job_id}.json")
    if submitted is not None:  # this is the start of a batch job that was registered when it was submitted
        number = job.scheduler_job_id or submitted.scheduler_job_id
        job = replace(job, scheduler_job_id=number, created_s=submitted.created_s)
    entry = {**asdict(job), "created_s": job.created_s or time.time()}
    with suppress(OSError):  # a job can run without an entry
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{job.job_id}.json", json.dumps(entry) + "\n")
        oldest_s = time.time() - KEPT_DAYS * _DAY_S
        for path in folder.glob("*.json"):
            with suppress(OSError):
                if path.stat().st_mtime < oldest_s:
                    path.unlink()


def known_jobs(environment: Mapping[str, str]) -> list[KnownJob]:
    """Return all registered jobs, newest first, without unreadable entries."""
    jobs = []
    with suppress(OSError):
        for path in registry_dir(environment).glob("[!.]*.json"):
            job = _read(path)
            if job is not None:
                jobs.append(job)
    return sorted(jobs, key=lambda job: job.created_s, reverse=True)


def find_job(text: str, environment: Mapping[str, str]) -> KnownJob:
    """Find a job by its id, the start or end of its id, the scheduler's number, or its log directory.

    Raises:
        UsageError: no job matches, or several do.
    """
    jobs = known_jobs(environment)
    exact = [job for job in jobs if text and text in (job.job_id, job.scheduler_job_id)]
    exact = exact or [job for job in jobs if text and text == scheduler_number(job, read_record(job))]
    if exact:
        return exact[0]
    path = Path(text).absolute()
    for job in jobs:
        if Path(job.log_dir) == path:
            return job
    if (path / "job.json").is_file():
        return _from_directory(path)
    # A number is always the scheduler's, even of another user: `csrun cancel 34` must not end ...-1a34.
    is_part = bool(text) and not text.isdigit()
    near = [job for job in jobs if is_part and (job.job_id.startswith(text) or job.job_id.endswith(text))]
    if len(near) == 1:
        return near[0]
    if near:
        shown = ", ".join(job.job_id for job in near[:5])
        raise UsageError(f"{text!r} matches several jobs: {shown}; expected one: give more of its id")
    raise UsageError(
        f"unknown job {text!r}; expected an id that 'csrun status' lists, the scheduler's number of a "
        f"job that csrun has started, or a log directory: check the spelling"
    )


def read_record(job: KnownJob) -> dict[str, Any] | None:
    """Read job.json in the log directory of a job; None before its start, or if it is unreadable."""
    try:
        record = read_json(Path(job.log_dir) / "job.json")
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def scheduler_number(job: KnownJob, record: Mapping[str, Any] | None) -> str:
    """Return the scheduler's number of a job, from its record or from its entry; "" for none."""
    return str((record or {}).get("scheduler_job_id") or job.scheduler_job_id)


def _from_directory(path: Path) -> KnownJob:
    unnamed = KnownJob("", str(path), "local", ())
    record = read_record(unnamed) or {}
    command = record.get("command")
    return KnownJob(
        job_id=str(record.get("job_id", path.name)),
        log_dir=str(path),
        launcher=str(record.get("launcher", "local")),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        scheduler_job_id=str(record.get("scheduler_job_id") or ""),
    )


def _read(path: Path) -> KnownJob | None:
    try:
        values = read_json(path)
        return KnownJob(
            job_id=str(values["job_id"]),
            log_dir=str(values["log_dir"]),
            launcher=str(values["launcher"]),
            command=tuple(map(str, values["command"])),
            scheduler_job_id=str(values.get("scheduler_job_id", "")),
            created_s=float(values["created_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
