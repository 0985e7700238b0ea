"""Id, log directory and record of a job.

The record, `job.json` in the log directory, describes the command, the tasks and their ends.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from cs_toolkit import __version__
from cs_toolkit.files import read_json, replace_file
from csrun.errors import LogDirError
from csrun.jobs.progress import FILE_NAME as PROGRESS_NAME
from csrun.jobs.registry import KnownJob
from csrun.schedulers.base import LaunchPlan
from csrun.tasks.place import Role

RECORD_NAME = "job.json"
SPANS_DIR = "spans"

TaskState = Literal["planned", "running", "restarting", "ended", "lost"]


def new_job_id(launcher: str) -> str:
    """Return a readable id such as local-20261120-101530-1a2b (local time, then random digits)."""
    # Users call a job by the last part, which must not look like a number of a scheduler.
    while (suffix := token_hex(2)).isdigit():
        pass
    return f"{launcher}-{time.strftime('%Y%m%d-%H%M%S')}-{suffix}"


def log_name(role: Role, index: int) -> str:
    """Return the file name of a task's log."""
    return f"{role}-{index}.log"


def known_job(plan: LaunchPlan) -> KnownJob:
    """Return the registry entry for the job of a plan."""
    return KnownJob(plan.job_id, str(plan.log_dir), plan.launcher, plan.command)


def timestamp() -> str:
    """Return the local time with its UTC offset, in seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@dataclass(slots=True)
class TaskRecord:
    """The state of a task.

    Attributes:
        host: None for this machine.
        exit_code: of its last process; 128 + n for signal n.
        restarts: how often its process was replaced by a new one.
    """

    state: TaskState = "planned"
    pid: int | None = None
    host: str | None = None
    exit_code: int | None = None
    ended: str | None = None
    restarts: int = 0


@dataclass(slots=True)
class JobRecord:
    """The state of a job; `tasks` by rank.

    Attributes:
        scheduler_job_id: the scheduler's number of the job, once it has one.
        scheduler_step_id: the scheduler's id of this step in a job that was allocated before csrun started;
            None if the whole job is this one.
        resume: how to continue a training run that has ended early; None for none.
    """

    plan: LaunchPlan
    tasks: list[TaskRecord]
    scheduler_job_id: str | None = None
    scheduler_step_id: str | None = None
    started: str = field(default_factory=timestamp)
    ended: str | None = None
    exit_code: int | None = None
    resume: dict[str, Any] | None = None

    @classmethod
    def of(cls, plan: LaunchPlan) -> JobRecord:
        """Return the record of a job that is about to start."""
        return cls(plan, [TaskRecord() for _ in plan.tasks])

    def to_json(self) -> dict[str, Any]:
        """Return the content of job.json, which has no environment and hence no token."""
        return {
            "job_id": self.plan.job_id,
            "launcher": self.plan.launcher,
            "toolkit_version": __version__,
            "launcher_pid": os.getpid(),
            "launcher_start_ticks": start_ticks(os.getpid()),
            "host": socket.gethostname(),
            "scheduler_job_id": self.scheduler_job_id,
            "scheduler_step_id": self.scheduler_step_id,
            "command": list(self.plan.command),
            "cwd": str(self.plan.cwd),
            "started": self.started,
            "ended": self.ended,
            "exit_code": self.exit_code,
            "resume": self.resume,
            "tasks": [
                {
                    "rank": task.rank,
                    "role": task.role,
                    "index": task.index,
                    "node": task.node,
                    "log": task.log_path.name,
                    "state": record.state,
                    "pid": record.pid,
                    "host": record.host,
                    "exit_code": record.exit_code,
                    "ended": record.ended,
                    "restarts": record.restarts,
                }
                for task, record in zip(self.plan.tasks, self.tasks, strict=True)
            ],
        }

    def write(self) -> None:
        """Write job.json into the log directory.

        Raises:
            OSError: the directory is no longer writable.
        """
        # Atomically: `csrun status` may read it at any time, and must find a complete record.
        replace_file(self.plan.log_dir / RECORD_NAME, json.dumps(self.to_json(), indent=2) + "\n")


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it does not exist."""
    # Pids are reused; pid and start time together identify a process until the next boot.
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19])  # field 22 of proc(5); the first two are before the parenthesis


def read_finished_workers(log_dir: Path, job_id: str) -> set[int]:
    """Read which workers of a job have ended with 0 and so are not restarted; empty if that is unknown."""
    try:
        record = read_json(log_dir / RECORD_NAME)
        if record["job_id"] != job_id:  # of an earlier job in the same directory
            return set()
        tasks = [(task["role"], task["state"], task["exit_code"], task["index"]) for task in record["tasks"]]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {index for *ending, index in tasks if ending == ["worker", "ended", 0]}


def prepare_log_dir(log_dir: Path, *, is_requeued: bool = False) -> None:
    """Create the log directory, check that it is writable, and remove records of an earlier job.

    Args:
        log_dir: Of the job.
        is_requeued: The job has run before in this directory; the spans of its processes are kept.

    Raises:
        LogDirError: it cannot be created or written.
    """
    probe = log_dir / f".{RECORD_NAME}.probe.{os.getpid()}"
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
        (log_dir / PROGRESS_NAME).unlink(missing_ok=True)
        for spans in () if is_requeued else (log_dir / SPANS_DIR).glob("*.json"):
            spans.unlink(missing_ok=True)
    except OSError as error:
        raise LogDirError(
            f"cannot write logs to {log_dir}: {error.strerror}; expected a directory that can be created and "
            f"written: choose another one with --log-dir"
        ) from error
