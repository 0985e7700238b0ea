"""The `slurm` scheduler: Slurm starts an agent for every task, which runs and supervises it."""

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
from csrun.schedulers.slurm.options import FLAGS, SlurmSettings
from csrun.site import Site
from csrun.tasks.command import find_command
from csrun.tasks.place import TaskPlace

if TYPE_CHECKING:
    from csrun.schedulers.slurm.plan import SlurmPlan
    from csrun.schedulers.slurm.survey import ClusterSurvey


class SlurmScheduler:
    """Runs the tasks of a job on nodes of a cluster."""

    name = "slurm"
    title = "Slurm"
    about = "nodes of a cluster"
    flags = FLAGS
    settings: type[Any] | None = SlurmSettings
    submit_flag = "--use-sbatch"
    has_nodes = True

    def presence(self, site: Site, environment: Mapping[str, str]) -> Presence:
        """Return "wanted" if the site has a Slurm resource for the CS system, or in an allocation."""
        settings = SlurmSettings.of_site(site)
        if settings.gres_resource or settings.gres_node or settings.licence:
            return "wanted"
        try:
            find_command("srun", environment.get("PATH", ""))
        except ToolkitError:
            return "absent"
        return "wanted" if environment.get("SLURM_JOB_ID") else "installed"

    def job_here(self, environment: Mapping[str, str]) -> JobHere | None:
        """Return the allocation that this process is in; None outside an allocation."""
        # Here and in the other methods: every --help loads this class, and needs none of these modules.
        from csrun.schedulers.slurm.allocation import job_here

        return job_here(environment)

    def task_place(self, environment: Mapping[str, str]) -> TaskPlace | None:
        """Return the place of a task of a step, which plain srun may have started."""
        from csrun.schedulers.slurm.place import read_place

        return read_place(environment)

    def task_variables(
        self, environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
    ) -> Mapping[str, str]:
        """Return the variables that Slurm would set for a task of a step."""
        from csrun.schedulers.slurm.allocation import step_variables

        return step_variables(environment, rank, tasks, cpus)

    def survey(self, asked: Asked) -> ClusterSurvey:
        """Query the cluster and the current allocation."""
        from csrun.schedulers.slurm.survey import survey

        return survey(asked)

    def plan(self, request: LaunchRequest, context: LaunchContext, survey: ClusterSurvey) -> SlurmPlan:
        """Plan the srun and the tasks of a job."""
        from csrun.schedulers.slurm.plan import make_plan

        return make_plan(request, context, survey)

    def describe(self, plan: SlurmPlan) -> str:
        """Return the text of --dry-run."""
        from csrun.schedulers.slurm.plan import describe

        return describe(plan)

    def run(self, plan: SlurmPlan, environment: Mapping[str, str]) -> int:
        """Run the job on the cluster and return its exit code."""
        from csrun.schedulers.slurm.run import run_job

        return run_job(plan, environment)

    def script(self, request: LaunchRequest, context: LaunchContext, survey: ClusterSurvey) -> str:
        """Return the batch script of a job."""
        from csrun.schedulers.slurm.batch import batch_script, render

        return render(batch_script(request, context, survey.options))

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """Submit a batch script with sbatch and return the number of the job."""
        from csrun.schedulers.slurm.client import SlurmClient

        return SlurmClient(environment).submit(script)

    def output_file(self, job: KnownJob) -> Path:
        """Return the file of the output of a submitted job."""
        from csrun.schedulers.slurm.batch import output_file

        return output_file(job)

    def views(self, numbers: Collection[str], environment: Mapping[str, str]) -> Mapping[str, QueueView]:
        """Return Slurm's views of jobs, by number."""
        from csrun.schedulers.slurm.queue import views

        return views(numbers, environment)

    def cancel(self, job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        """Ask Slurm, or the launcher, to end a job."""
        from csrun.schedulers.slurm.queue import cancel

        cancel(job, record, environment)

    def plan_program(self, request: ProgramRequest, asked: Asked) -> ProgramPlan:
        """Plan the srun that runs a program on a node."""
        from csrun.schedulers.slurm.program import plan_program

        return plan_program(request, asked)

    def run_program(self, plan: ProgramPlan) -> int:
        """Run the program with srun and return its exit code."""
        from csrun.schedulers.slurm.program import run_program

        return run_program(plan)

    def checks(self, examination: Examination) -> Iterator[Finding]:
        """Check the cluster and its nodes for `csrun doctor`."""
        from csrun.schedulers.slurm.checks import checks

        return checks(examination)
