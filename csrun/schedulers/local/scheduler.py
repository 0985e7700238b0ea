"""The `local` scheduler: all tasks are processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from cs_toolkit.errors import UsageError
from csrun.doctor import Finding
from csrun.jobs.registry import KnownJob
from csrun.schedulers.base import (
    Asked,
    Examination,
    Flag,
    LaunchContext,
    LaunchPlan,
    LaunchRequest,
    Presence,
    ProgramPlan,
    ProgramRequest,
    QueueView,
    Survey,
)
from csrun.site import Site
from csrun.tasks.command import require_container


class LocalScheduler:
    """Runs all tasks of a job on this machine, whatever the number of nodes."""

    name = "local"
    title = "this machine"
    about = "processes of this machine"
    flags: tuple[Flag, ...] = ()
    settings = None
    submit_flag = ""
    has_nodes = False

    def presence(self, site: Site, environment: Mapping[str, str]) -> Presence:
        """Return "installed": it always is, and other schedulers take precedence."""
        return "installed"

    def job_here(self, environment: Mapping[str, str]) -> None:
        """Return None: further jobs do not run inside a job of this scheduler."""

    def task_place(self, environment: Mapping[str, str]) -> None:
        """Return None: only csrun starts tasks on this machine, and its own variables identify them."""

    def task_variables(
        self, environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
    ) -> Mapping[str, str]:
        """Return nothing: the launcher itself sets all variables of a local task."""
        return {}

    def survey(self, asked: Asked) -> Survey:
        """Return the site's defaults and the number of CPUs that this process may use.

        Raises:
            CsrunError: the site's container cannot be used here.
        """
        if not asked.dry_run:
            require_container(asked.site, asked.environment.get("PATH", ""))
        return Survey(asked.site, len(os.sched_getaffinity(0)))

    def plan(self, request: LaunchRequest, context: LaunchContext, survey: Survey) -> LaunchPlan:
        """Plan a job whose tasks are processes of this machine."""
        # Here and in the other methods: every --help loads this class, and needs none of these modules.
        from csrun.schedulers.local.plan import make_plan

        return make_plan(request, context, self.name)

    def describe(self, plan: LaunchPlan) -> str:
        """Return the text of --dry-run."""
        from csrun.schedulers.local.plan import describe

        return describe(plan)

    def run(self, plan: LaunchPlan, environment: Mapping[str, str]) -> int:
        """Run the tasks to their end and return the job's exit code."""
        from csrun.schedulers.local.run import run_job

        return run_job(plan, environment)

    def script(self, request: LaunchRequest, context: LaunchContext, survey: Survey) -> str:
        """Refuse: this machine has no queue."""
        raise _no_queue()

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """Refuse: this machine has no queue."""
        raise _no_queue()

    def output_file(self, job: KnownJob) -> Path:
        """Refuse: this machine has no queue."""
        raise _no_queue()

    def views(self, numbers: Collection[str], environment: Mapping[str, str]) -> Mapping[str, QueueView]:
        """Return nothing: the state of a local job is in its record and its launcher's process."""
        return {}

    def cancel(self, job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Send SIGTERM to the launcher of the job.

        Raises:
            CsrunError: the launcher is not a living process of this machine.
        """
        from csrun.jobs.state import end_launcher

        end_launcher(job, record)

    def plan_program(self, request: ProgramRequest, asked: Asked) -> ProgramPlan:
        """Plan a program that replaces this process.

        Raises:
            CsrunError: the site's container cannot be used here.
        """
        if not asked.dry_run:
            require_container(asked.site, asked.environment.get("PATH", ""))
        return ProgramPlan(request.command, request.environment, "on this machine")

    def run_program(self, plan: ProgramPlan) -> int:
        """Replace this process by the program."""
        from csrun.schedulers.local.program import run_program

        run_program(plan)

    def checks(self, examination: Examination) -> Iterator[Finding]:
        """Check that tasks of this machine can connect to each other."""
        from csrun.doctor.machine import port_finding

        yield port_finding(None)


def _no_queue() -> UsageError:
    return UsageError(
        "--submit with --launcher=local: got both, expected one: this machine has no queue; leave --submit "
        "out, or choose a launcher that has one"
    )
