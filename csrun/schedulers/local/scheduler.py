"""The `local` scheduler: every task is a process of this machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from csrun.doctor.findings import Finding
from csrun.jobs.registry import KnownJob
from csrun.jobs.state import QueueView
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
    Survey,
)
from csrun.site.model import Site


class LocalScheduler:
    """Runs all tasks of a job on this machine, however many nodes were asked for."""

    name = "local"
    title = "this machine"
    about = "processes of this machine"
    flags: tuple[Flag, ...] = ()
    submit_flag = ""
    has_nodes = False

    def presence(self, site: Site, environment: Mapping[str, str]) -> Presence:
        """It is always there, and never wanted before another one."""
        return "installed"

    def job_here(self, environment: Mapping[str, str]) -> None:
        """A job of this scheduler is no place for further ones."""

    def task_variables(
        self, environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
    ) -> Mapping[str, str]:
        """Nothing: csrun has told everything."""
        return {}

    def survey(self, asked: Asked) -> Survey:
        """See `csrun.schedulers.local.survey`."""
        from csrun.schedulers.local.survey import survey

        return survey(asked)

    def plan(self, request: LaunchRequest, context: LaunchContext, survey: Survey) -> LaunchPlan:
        """See `csrun.schedulers.local.plan`."""
        from csrun.schedulers.local.plan import make_plan

        return make_plan(request, context, self.name)

    def describe(self, plan: LaunchPlan) -> str:
        """See `csrun.schedulers.local.plan`."""
        from csrun.schedulers.local.plan import describe

        return describe(plan)

    def run(self, plan: LaunchPlan, environment: Mapping[str, str]) -> int:
        """See `csrun.schedulers.local.run`."""
        from csrun.schedulers.local.run import run_job

        return run_job(plan, environment)

    def script(self, request: LaunchRequest, context: LaunchContext, survey: Survey) -> str:
        """See `csrun.schedulers.local.submit`."""
        from csrun.schedulers.local.submit import refuse

        refuse()

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """See `csrun.schedulers.local.submit`."""
        from csrun.schedulers.local.submit import refuse

        refuse()

    def output_file(self, job: KnownJob) -> Path:
        """See `csrun.schedulers.local.submit`."""
        from csrun.schedulers.local.submit import refuse

        refuse()

    def views(self, numbers: Collection[str], environment: Mapping[str, str]) -> Mapping[str, QueueView]:
        """See `csrun.schedulers.local.state`."""
        from csrun.schedulers.local.state import views

        return views()

    def cancel(self, job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """See `csrun.schedulers.local.state`."""
        from csrun.schedulers.local.state import cancel

        cancel(job, record)

    def plan_program(self, request: ProgramRequest, asked: Asked) -> ProgramPlan:
        """See `csrun.schedulers.local.program`."""
        from csrun.schedulers.local.program import plan_program

        return plan_program(request, asked)

    def run_program(self, plan: ProgramPlan) -> int:
        """See `csrun.schedulers.local.program`."""
        from csrun.schedulers.local.program import run_program

        run_program(plan)

    def checks(self, examination: Examination) -> Iterator[Finding]:
        """See `csrun.schedulers.local.checks`."""
        from csrun.schedulers.local.checks import checks

        return checks()
