"""The `slurm` scheduler: every task is started by Slurm, and an agent beside it answers for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cs_toolkit.errors import ToolkitError
from csrun.doctor.findings import Finding
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
from csrun.schedulers.slurm.options import FLAGS
from csrun.site.model import Site
from csrun.tasks.command import find_command

if TYPE_CHECKING:
    from csrun.schedulers.slurm.plan import SlurmPlan
    from csrun.schedulers.slurm.survey import ClusterSurvey


class SlurmScheduler:
    """Runs the tasks of a job on nodes of a cluster."""

    name = "slurm"
    title = "Slurm"
    about = "nodes of a cluster"
    flags = FLAGS
    submit_flag = "--use-sbatch"
    has_nodes = True

    def presence(self, site: Site, environment: Mapping[str, str]) -> Presence:
        """Wanted where a resource of Slurm's stands for the CS system, or srun is there in an allocation."""
        if site.gres_resource or site.gres_node or site.licence:
            return "wanted"
        try:
            find_command("srun", environment.get("PATH", ""))
        except ToolkitError:
            return "absent"
        return "wanted" if environment.get("SLURM_JOB_ID") else "installed"

    def job_here(self, environment: Mapping[str, str]) -> JobHere | None:
        """See `csrun.schedulers.slurm.allocation`."""
        from csrun.schedulers.slurm.allocation import job_here

        return job_here(environment)

    def task_variables(
        self, environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
    ) -> Mapping[str, str]:
        """See `csrun.schedulers.slurm.allocation`."""
        from csrun.schedulers.slurm.allocation import step_variables

        return step_variables(environment, rank, tasks, cpus)

    def survey(self, asked: Asked) -> ClusterSurvey:
        """See `csrun.schedulers.slurm.survey`."""
        from csrun.schedulers.slurm.survey import survey

        return survey(asked)

    def plan(self, request: LaunchRequest, context: LaunchContext, survey: ClusterSurvey) -> SlurmPlan:
        """See `csrun.schedulers.slurm.plan`."""
        from csrun.schedulers.slurm.plan import make_plan

        return make_plan(request, context, survey)

    def describe(self, plan: SlurmPlan) -> str:
        """See `csrun.schedulers.slurm.plan`."""
        from csrun.schedulers.slurm.plan import describe

        return describe(plan)

    def run(self, plan: SlurmPlan, environment: Mapping[str, str]) -> int:
        """See `csrun.schedulers.slurm.run`."""
        from csrun.schedulers.slurm.run import run_job

        return run_job(plan, environment)

    def script(self, request: LaunchRequest, context: LaunchContext, survey: ClusterSurvey) -> str:
        """See `csrun.schedulers.slurm.batch`."""
        from csrun.schedulers.slurm.batch import batch_script, render

        return render(batch_script(request, context, survey.options))

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """See `csrun.schedulers.slurm.client`."""
        from csrun.schedulers.slurm.client import SlurmClient

        return SlurmClient(environment).submit(script)

    def output_file(self, job: KnownJob) -> Path:
        """See `csrun.schedulers.slurm.batch`."""
        from csrun.schedulers.slurm.batch import output_file

        return output_file(job)

    def views(self, numbers: Collection[str], environment: Mapping[str, str]) -> Mapping[str, QueueView]:
        """See `csrun.schedulers.slurm.queue`."""
        from csrun.schedulers.slurm.queue import views

        return views(numbers, environment)

    def cancel(self, job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """See `csrun.schedulers.slurm.queue`."""
        from csrun.schedulers.slurm.queue import cancel

        cancel(job, record, environment)

    def plan_program(self, request: ProgramRequest, asked: Asked) -> ProgramPlan:
        """See `csrun.schedulers.slurm.program`."""
        from csrun.schedulers.slurm.program import plan_program

        return plan_program(request, asked)

    def run_program(self, plan: ProgramPlan) -> int:
        """See `csrun.schedulers.slurm.program`."""
        from csrun.schedulers.slurm.program import run_program

        return run_program(plan)

    def checks(self, examination: Examination) -> Iterator[Finding]:
        """See `csrun.schedulers.slurm.checks`."""
        from csrun.schedulers.slurm.checks import checks

        return checks(examination)
