"""The `flux` scheduler: Flux starts an agent for every task, which runs and supervises it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cs_toolkit.errors import ToolkitError
from csrun.doctor import Finding
from csrun.jobs.registry import KnownJob
from csrun.schedulers.base import (
    Asked,
    Examination,
    JobHere,
    LaunchContext,
    LaunchRequest,
    Presence,
    ProgramPlan,
    ProgramRequest,
    QueueView,
)
from csrun.site import Site
from csrun.tasks.command import find_command
from csrun.tasks.place import TaskPlace
from csrun_flux.options import FLAGS, FluxSettings

if TYPE_CHECKING:
    from csrun.agent.plan import AgentPlan
    from csrun_flux.plan import FluxSurvey


class FluxScheduler:
    """Runs the tasks of a job on nodes of a Flux instance."""

    name = "flux"
    title = "Flux"
    about = "nodes of a Flux instance"
    flags = FLAGS
    settings = FluxSettings
    submit_flag = ""
    has_nodes = True

    def presence(self, site: Site, environment: Mapping[str, str]) -> Presence:
        """Return "wanted" in an instance that the environment names, or if the site has a section for it."""
        try:
            find_command("flux", environment.get("PATH", ""))
        except ToolkitError:
            return "absent"
        wanted = bool(environment.get("FLUX_URI")) or "flux" in site.sections
        return "wanted" if wanted else "installed"

    def job_here(self, environment: Mapping[str, str]) -> JobHere | None:
        """Return the batch job that this process is in."""
        from csrun_flux.plan import job_here

        return job_here(environment)

    def task_place(self, environment: Mapping[str, str]) -> TaskPlace | None:
        """Return the place of a task that plain flux run may have started."""
        from csrun_flux.place import read_place

        return read_place(environment)

    def task_variables(
        self, environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
    ) -> Mapping[str, str]:
        """Return the variables that Flux would set for a task of a job on this node."""
        if "FLUX_TASK_RANK" not in environment:
            return {}
        number = str(rank)
        own = {"FLUX_TASK_RANK": number, "FLUX_TASK_LOCAL_ID": number}
        return {**own, "FLUX_JOB_SIZE": str(tasks), "FLUX_JOB_NNODES": "1"}

    def survey(self, asked: Asked) -> FluxSurvey:
        """Query the instance."""
        from csrun_flux.plan import survey

        return survey(asked)

    def plan(self, request: LaunchRequest, context: LaunchContext, survey: FluxSurvey) -> AgentPlan:
        """Plan the flux run and the tasks of a job."""
        from csrun_flux.plan import make_plan

        return make_plan(request, context, survey)

    def describe(self, plan: AgentPlan) -> str:
        """Return the text of --dry-run."""
        from csrun.agent.plan import describe

        return describe(plan)

    def run(self, plan: AgentPlan, environment: Mapping[str, str]) -> int:
        """Run the job on the instance and return its exit code."""
        from csrun_flux.plan import run_job

        return run_job(plan, environment)

    def script(self, request: LaunchRequest, context: LaunchContext, survey: FluxSurvey) -> str:
        """Return the batch script of a job."""
        from csrun_flux.plan import script

        return script(request, context, survey)

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """Submit a batch script and return the id of the job."""
        from csrun_flux.client import FluxClient

        return FluxClient(environment).submit(script)

    def output_file(self, job: KnownJob) -> Path:
        """Return the file of the output of a submitted job."""
        from csrun_flux.plan import output_file

        return output_file(job)

    def views(self, numbers: Collection[str], environment: Mapping[str, str]) -> Mapping[str, QueueView]:
        """Return Flux's views of jobs, by id."""
        from csrun_flux.queue import views

        return views(numbers, environment)

    def cancel(self, job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Ask Flux, or the launcher, to end a job."""
        from csrun_flux.queue import cancel

        cancel(job, record, environment)

    def plan_program(self, request: ProgramRequest, asked: Asked) -> ProgramPlan:
        """Plan the flux run that runs a program on a node."""
        from csrun_flux.program import plan_program

        return plan_program(request, asked)

    def run_program(self, plan: ProgramPlan) -> int:
        """Run the program with flux run and return its exit code."""
        from csrun_flux.program import run_program

        return run_program(plan)

    def checks(self, examination: Examination) -> Iterator[Finding]:
        """Check the instance and its nodes for `csrun doctor`."""
        from csrun_flux.checks import checks

        return checks(examination)
