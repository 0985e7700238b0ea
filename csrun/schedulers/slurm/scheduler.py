"""The `slurm` scheduler: every task is started by Slurm, and an agent beside it answers for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from csrun.environment import program_environment, unset_notice
from csrun.schedulers.base import LaunchContext, LaunchPlan, LaunchRequest
from csrun.schedulers.slurm.allocation import Allocation, host_file
from csrun.schedulers.slurm.arguments import srun_job, srun_step
from csrun.schedulers.slurm.components import components, with_whole_nodes
from csrun.schedulers.slurm.facts import ClusterFacts
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.tasks import check_number_of_tasks, common_change, job_log_dir, planned_tasks, plural
from csrun.system_watch import system_address

HOST_FILE_NAME = "hosts"
LATER = "(random, made at the start, shown nowhere)"


@dataclass(frozen=True)
class SlurmPlan(LaunchPlan):
    """A job for Slurm.

    Attributes:
        srun: the words of the command that starts the agents.
        host_file: what SLURM_HOSTFILE has to hold; "" where srun needs none.
        allocation: that the job runs in; None where srun asks for one of its own.
        cpus_of_tasks: by rank, to how many CPUs the task is pinned where Slurm does not do it; None: to none.
        ports: range in which the launcher may listen; None: any port.
        loopback: nodes reach the launcher through this machine's loopback.
        resource: what stands for the CS system in the queue, such as "cs:1".
    """

    srun: tuple[str, ...]
    host_file: str
    allocation: Allocation | None
    cpus_of_tasks: tuple[int | None, ...]
    ports: tuple[int, int] | None
    loopback: bool
    resource: str


class SlurmScheduler:
    """Runs the tasks of a job on nodes of a cluster.

    Args:
        options: what the job asks for besides nodes and tasks.
        facts: of the cluster; None where nothing is known, then nothing is checked.
        allocation: that we are in; None: the job gets one of its own.
        system_node: node of the allocation that holds the CS system; "": its first one.
    """

    name = "slurm"

    def __init__(
        self,
        options: SlurmOptions,
        facts: ClusterFacts | None,
        allocation: Allocation | None = None,
        system_node: str = "",
    ) -> None:
        self._options = options
        self._facts = facts
        self._allocation = allocation
        self._system_node = system_node

    def plan(self, request: LaunchRequest, context: LaunchContext) -> SlurmPlan:
        """Decides everything about the job but its nodes; pure.

        Raises:
            CsrunError: it can never run on this cluster, or not in this allocation.
        """
        layout = request.layout
        check_number_of_tasks(layout)
        parts = components(layout)
        agent = agent_command()
        hosts = ""
        if self._allocation is None:
            asked = parts
            if self._facts is not None:
                self._facts.check(layout, self._options)
                # of the smallest node: site and user may ask for any of them (--nodelist, --constraint)
                asked = with_whole_nodes(parts, min(self._facts.cpus, default=1))
            srun = srun_job(context.job_id, asked, self._options, agent)
        else:
            self._allocation.check(layout, self._system_node)
            srun = srun_step(context.job_id, parts, self._allocation, agent)
            if not self._allocation.heterogeneous:
                hosts = host_file(layout, self._allocation.ordered(self._system_node))
        log_dir = job_log_dir(request, context)
        return SlurmPlan(
            job_id=context.job_id,
            launcher=self.name,
            command=request.command,
            executed=request.executed,
            cwd=context.cwd,
            change=common_change(request, context),
            tasks=planned_tasks(layout, log_dir),
            log_dir=log_dir,
            system=system_address(request.command, context.site.cs_ip),
            notices=tuple(_notices(request, context)),
            grace_s=request.grace_s,
            wind_down_s=request.wind_down_s,
            srun=srun,
            host_file=hosts,
            allocation=self._allocation,
            cpus_of_tasks=tuple(part.cpus_per_task for part in parts for _ in range(part.tasks)),
            ports=self._facts.ports if self._facts else None,
            loopback=bool(self._facts and self._facts.loopback),
            resource=self._options.gres or self._options.licence,
        )

    def describe(self, plan: SlurmPlan) -> str:
        """The text of --dry-run: exactly what `run` would do; pure."""
        where = (
            f"in the allocation of job {plan.allocation.job_id}" if plan.allocation else "on nodes of its own"
        )
        lines = [
            f"job {plan.job_id} (launcher {plan.launcher}), nothing is started: "
            f"{plural(len(plan.tasks), 'task')} {where}",
            f"working directory: {quote(str(plan.cwd))}",
            f"srun: {join(plan.srun)}",
            *([f"  SLURM_HOSTFILE: {' '.join(plan.host_file.split())}"] if plan.host_file else []),
            f"unset for every task: {' '.join(plan.change.unset) or '(nothing)'}",
            "set for every task:",
            *(f"  {name}={quote(value)}" for name, value in plan.change.values.items()),
            f"  CSRUN_JOB_TOKEN={LATER}",
            "  TF_CONFIG=(made when the nodes are known)",
        ]
        for task in plan.tasks:
            lines += [
                f"{task.label}: rank {task.rank}, node {task.node}",
                *(f"  {name}={quote(value)}" for name, value in task.values.items()),
                f"  log:     {quote(str(task.log_path))}",
                f"  command: {join(plan.executed)}",
            ]
        return "\n".join(lines) + "\n"

    def run(self, plan: SlurmPlan, environment: Mapping[str, str]) -> int:
        """Runs the job to its end and returns the exit code of the launcher.

        Raises:
            CsrunError: the job could not be started; nothing is left of it.
        """
        # Only here, so that --help and --dry-run do not pay for it.
        from csrun.schedulers.slurm.launch import run_job

        return run_job(plan, environment)


def agent_command() -> tuple[str, ...]:
    """The words that start an agent, with nothing of the user's Python in its way."""
    file = Path(__file__).resolve().parents[2] / "agent" / "__main__.py"
    return (str(Path(sys.executable).absolute()), "-I", "-S", str(file))


def _notices(request: LaunchRequest, context: LaunchContext) -> list[str]:
    site = context.site
    change = program_environment(context.environment, context.toolkit, site)
    hidden = unset_notice(context.environment, change)
    notices = [hidden] if hidden else []
    if request.mount_dirs and site.container == "none":
        notices.append("--mount-dirs has no effect here: without a container the tasks see all directories")
    return notices
