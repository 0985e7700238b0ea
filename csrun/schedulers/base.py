"""What passes between the commands and a scheduler: a request, the plan made from it, the machine it is for.

Making a plan is a pure function, so that `--dry-run` shows, and tests compare, what would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from csrun.environment import EnvironmentChange, Toolkit
from csrun.layout import JobLayout
from csrun.roles import EXIT_REQUEUE, Role
from csrun.site.model import Site


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What the user asked for.

    Attributes:
        command: program and arguments, exactly as given.
        executed: the words that are executed for it, which differ from it where it runs in a container.
        layout: nodes, tasks, CPUs.
        log_dir: where the logs go; None: a directory of the job below ./csrun_logs.
        mount_dirs: directories that the program needs to see.
        grace_s: seconds from asking a task to end until it is killed.
        wind_down_s: seconds that workers may go on after the chief has finished.
        wait: queue for a busy CS system instead of failing.
        requeue: the job is started again after a checkpoint that SIGUSR1 asked for.
    """

    command: tuple[str, ...]
    executed: tuple[str, ...]
    layout: JobLayout
    log_dir: Path | None
    mount_dirs: tuple[Path, ...]
    grace_s: float
    wind_down_s: float
    wait: bool = False
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What a plan depends on besides the request.

    Attributes:
        job_id: identity of the new job.
        cwd: absolute directory in which the tasks start.
        environment: the launcher's own.
        toolkit: where interpreter and modules are.
        site: its settings.
        cpus: CPU numbers that this machine lets us use, ascending.
    """

    job_id: str
    cwd: Path
    environment: Mapping[str, str]
    toolkit: Toolkit
    site: Site
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task: its place in the job and what it gets beyond the environment of all tasks.

    Attributes:
        cpus: CPUs that it is pinned to; empty: not pinned.
        values: environment variables of this task alone.
        log_path: absolute path of its log.
    """

    rank: int
    role: Role
    index: int
    node: int
    cpus: tuple[int, ...]
    values: Mapping[str, str]
    log_path: Path

    @property
    def label(self) -> str:
        """How the task is called on the terminal; there is one chief, so it needs no number."""
        return "chief" if self.role == "chief" else f"worker {self.index}"


@dataclass(frozen=True)  # no slots: a scheduler adds its own fields in a class below
class LaunchPlan:
    """A job ready to be started. The job's secret token is no part of it: it is made when the job starts.

    Attributes:
        command: the user's words.
        executed: the words that are executed for them.
        change: what all tasks get in their environment.
        tasks: by rank.
        system: address of the CS system to watch; None for none.
        notices: one line each about what may differ from what the user expects.
    """

    job_id: str
    launcher: str
    command: tuple[str, ...]
    executed: tuple[str, ...]
    cwd: Path
    change: EnvironmentChange
    tasks: tuple[PlannedTask, ...]
    log_dir: Path
    system: tuple[str, int] | None
    notices: tuple[str, ...]
    grace_s: float
    wind_down_s: float

    @property
    def requeue_code(self) -> int | None:
        """How the chief leaves for the queue; None where the job cannot go back there."""
        return EXIT_REQUEUE if "CSRUN_REQUEUE" in self.change.values else None


Plan = TypeVar("Plan", bound=LaunchPlan)


class Scheduler(Protocol[Plan]):
    """A place where jobs run, with plans of its own kind."""

    name: str

    def plan(self, request: LaunchRequest, context: LaunchContext) -> Plan:
        """Decides everything about the job; pure."""
        ...

    def describe(self, plan: Plan) -> str:
        """The text of --dry-run: exactly what `run` would do; pure."""
        ...

    def run(self, plan: Plan, environment: Mapping[str, str]) -> int:
        """Runs the job to its end and returns the exit code of the launcher."""
        ...
