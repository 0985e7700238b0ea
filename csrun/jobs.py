"""Identity, files and record of a job.

`job.json` in the log directory says what ran and how it ended; it is rewritten (atomically) at every change,
so whoever looks while the job runs reads a whole record.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from csrun.errors import LogDirError
from csrun.roles import Role
from csrun.schedulers.base import LaunchPlan

RECORD_NAME = "job.json"

TaskState = Literal["planned", "running", "ended"]


def new_job_id(launcher: str) -> str:
    """A readable identity such as local-20261120-101530-1a2b (local time, then random digits)."""
    return f"{launcher}-{time.strftime('%Y%m%d-%H%M%S')}-{token_hex(2)}"


def log_name(role: Role, index: int) -> str:
    """File name of a task's log."""
    return f"{role}-{index}.log"


def timestamp() -> str:
    """Now, in local time with its offset, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@dataclass(slots=True)
class TaskRecord:
    """How a task fared; exit_code as a shell counts it, 128 + n for signal n."""

    state: TaskState = "planned"
    pid: int | None = None
    exit_code: int | None = None
    ended: str | None = None


@dataclass(slots=True)
class JobRecord:
    """How a job fared; `tasks` by rank."""

    plan: LaunchPlan
    tasks: list[TaskRecord]
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
        temporary = self.plan.log_dir / f".{RECORD_NAME}.{os.getpid()}"
        temporary.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="ascii")
        temporary.replace(self.plan.log_dir / RECORD_NAME)


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
    except OSError as error:
        raise LogDirError(
            f"cannot write logs to {log_dir}: {error.strerror}; expected a directory that can be created and "
            f"written: give another one with --log-dir"
        ) from error
