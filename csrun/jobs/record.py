"""Identity, files and record of a job.

`job.json` in the log directory says what ran and how it ended; it is rewritten (atomically) at every change,
so whoever looks while the job runs reads a whole record.
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

from cs_toolkit.files import replace_file
from csrun.errors import LogDirError
from csrun.jobs.progress import FILE_NAME as PROGRESS_NAME
from csrun.jobs.registry import KnownJob
from csrun.schedulers.base import LaunchPlan
from csrun.tasks.roles import Role

RECORD_NAME = "job.json"

TaskState = Literal["planned", "running", "ended", "lost"]


def new_job_id(launcher: str) -> str:
    """A readable identity such as local-20261120-101530-1a2b (local time, then random digits)."""
    return f"{launcher}-{time.strftime('%Y%m%d-%H%M%S')}-{_short_name()}"


def _short_name() -> str:
    """The end of an identity, by which users call a job: never a number alone, which is a scheduler's."""
    while (name := token_hex(2)).isdigit():
        pass
    return name


def log_name(role: Role, index: int) -> str:
    """File name of a task's log."""
    return f"{role}-{index}.log"


def known_job(plan: LaunchPlan) -> KnownJob:
    """The entry by which other commands find the job of this plan."""
    return KnownJob(plan.job_id, str(plan.log_dir), plan.launcher, plan.command)


def timestamp() -> str:
    """Now, in local time with its offset, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@dataclass(slots=True)
class TaskRecord:
    """How a task fared; exit_code as a shell counts it, 128 + n for signal n. `host` where it is not ours."""

    state: TaskState = "planned"
    pid: int | None = None
    host: str | None = None
    exit_code: int | None = None
    ended: str | None = None


@dataclass(slots=True)
class JobRecord:
    """How a job fared; `tasks` by rank.

    Attributes:
        scheduler_job_id: the scheduler's number of the job, once it has one.
        scheduler_step_id: the scheduler's name of our part, where we run in a job that somebody else has made
            and will end; None where the whole job is ours.
    """

    plan: LaunchPlan
    tasks: list[TaskRecord]
    scheduler_job_id: str | None = None
    scheduler_step_id: str | None = None
    started: str = field(default_factory=timestamp)
    ended: str | None = None
    exit_code: int | None = None

    @classmethod
    def of(cls, plan: LaunchPlan) -> JobRecord:
        """The record of a job that is about to start."""
        return cls(plan, [TaskRecord() for _ in plan.tasks])

    def to_json(self) -> dict[str, Any]:
        """The content of job.json. It holds no environment, hence no token."""
        return {
            "job_id": self.plan.job_id,
            "launcher": self.plan.launcher,
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
                }
                for task, record in zip(self.plan.tasks, self.tasks, strict=True)
            ],
        }

    def write(self) -> None:
        """Writes job.json into the log directory.

        Raises:
            OSError: the directory is not writable any more.
        """
        replace_file(self.plan.log_dir / RECORD_NAME, json.dumps(self.to_json(), indent=2) + "\n")


def start_ticks(pid: int) -> int | None:
    """When a process of this machine has started, in clock ticks since boot; None if there is none.

    Together with the pid it names one process for as long as the machine runs: pids are used again.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19])  # field 22 of proc(5); the first two are before the parenthesis


def prepare_log_dir(log_dir: Path) -> None:
    """Creates the log directory and makes sure that files can be written into it.

    Raises:
        LogDirError: neither is possible.
    """
    probe = log_dir / f".{RECORD_NAME}.probe.{os.getpid()}"
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
        (log_dir / PROGRESS_NAME).unlink(missing_ok=True)  # of a job before, in the same directory
    except OSError as error:
        raise LogDirError(
            f"cannot write logs to {log_dir}: {error.strerror}; expected a directory that can be created and "
            f"written: give another one with --log-dir"
        ) from error
