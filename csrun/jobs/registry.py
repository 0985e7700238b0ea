"""Finds the log directory of a job by its name, from any directory: for `csrun status`, `logs` and `cancel`.

One small file a job in $XDG_STATE_HOME/csrun/jobs (~/.local/state/csrun/jobs), which all nodes of a cluster
share with the home directory. It holds where the job's own record is, nothing about how the job fares.
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
from cs_toolkit.files import replace_file

KEPT_DAYS = 60
"""Entries of older jobs are removed when a new one is written."""

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job that this user has started.

    Attributes:
        job_id: our own id.
        log_dir: absolute path of its logs, with its record job.json once it has started.
        launcher: name of its scheduler.
        command: the user's words.
        scheduler_job_id: the scheduler's number where it was known from the start, as it is for jobs that
            were submitted; else "".
        created_s: seconds since the epoch.
    """

    job_id: str
    log_dir: str
    launcher: str
    command: tuple[str, ...]
    scheduler_job_id: str = ""
    created_s: float = 0.0


def registry_dir(environment: Mapping[str, str]) -> Path:
    """Where the entries are."""
    home = Path(environment.get("HOME") or "~").expanduser()
    return Path(environment.get("XDG_STATE_HOME") or home / ".local" / "state") / "csrun" / "jobs"


def register(job: KnownJob, environment: Mapping[str, str]) -> None:
    """Writes the entry of a new job; a home directory that cannot be written is no reason to stop a job."""
    folder = registry_dir(environment)
    before = _read(folder / f"{job.job_id}.json")
    if before is not None:  # written when the batch job was submitted, of which this is the start
        number = job.scheduler_job_id or before.scheduler_job_id
        job = replace(job, scheduler_job_id=number, created_s=before.created_s)
    entry = {**asdict(job), "created_s": job.created_s or time.time()}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{job.job_id}.json", json.dumps(entry) + "\n")
        _forget_old(folder)


def known_jobs(environment: Mapping[str, str]) -> list[KnownJob]:
    """All jobs that are known, the newest first; what cannot be read is left out."""
    jobs = []
    with suppress(OSError):
        for path in registry_dir(environment).glob("[!.]*.json"):
            job = _read(path)
            if job is not None:
                jobs.append(job)
    return sorted(jobs, key=lambda job: job.created_s, reverse=True)


def find_job(text: str, environment: Mapping[str, str]) -> KnownJob:
    """The job that the user means: an id or its beginning or end, the scheduler's number, or a log directory.

    Raises:
        UsageError: no such job is known, or several are meant.
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
        return _of_directory(path)
    # A number is a scheduler's, be it of somebody else's job: `csrun cancel 34` must not end ...-1a34.
    is_part = bool(text) and not text.isdigit()
    near = [job for job in jobs if is_part and (job.job_id.startswith(text) or job.job_id.endswith(text))]
    if len(near) == 1:
        return near[0]
    if near:
        shown = ", ".join(job.job_id for job in near[:5])
        raise UsageError(f"{text!r} means several jobs: {shown}; expected one: write more of its id")
    raise UsageError(
        f"no job {text!r} is known; expected an id that 'csrun status' lists, the scheduler's number of a "
        f"job that csrun has started, or a log directory: check the spelling"
    )


def read_record(job: KnownJob) -> dict[str, Any] | None:
    """The job's own record, job.json in its log directory; None before its start, or if it is unreadable."""
    try:
        record = json.loads((Path(job.log_dir) / "job.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def scheduler_number(job: KnownJob, record: Mapping[str, Any] | None) -> str:
    """The scheduler's number of a job; where it got one after it was registered, its record has it."""
    return str((record or {}).get("scheduler_job_id") or job.scheduler_job_id)


def _of_directory(path: Path) -> KnownJob:
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
        values = json.loads(path.read_text(encoding="utf-8"))
        return KnownJob(
            job_id=str(values["job_id"]),
            log_dir=str(values["log_dir"]),
            launcher=str(values["launcher"]),
            command=tuple(map(str, values["command"])),
            scheduler_job_id=str(values.get("scheduler_job_id", "")),
            created_s=float(values["created_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _forget_old(folder: Path) -> None:
    oldest_s = time.time() - KEPT_DAYS * _DAY_S
    for path in folder.glob("*.json"):
        with suppress(OSError):
            if path.stat().st_mtime < oldest_s:
                path.unlink()
