"""Plan of a job on a cluster, and the text of --dry-run. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from csrun.schedulers.base import LaunchContext, LaunchPlan, LaunchRequest
from csrun.schedulers.slurm.allocation import Allocation, components, host_file, with_whole_nodes
from csrun.schedulers.slurm.arguments import job_name, srun_job, srun_step
from csrun.schedulers.slurm.survey import ClusterSurvey
from csrun.schedulers.tasks import check_number_of_tasks, common_environment, job_log_dir, plan_tasks, plural
from csrun.system_status import system_address
from csrun.tasks.environment import program_environment, unset_notice

HOST_FILE_NAME = "hosts"
TOKEN_TEXT = "(random, drawn at the start, never shown)"


@dataclass(frozen=True)
class SlurmPlan(LaunchPlan):
    """A job for Slurm.

    Attributes:
        srun: command line of the srun that starts the agents.
        job_name: of the job in Slurm's queue, not necessarily unique.
        host_file: content of the file of SLURM_HOSTFILE; "" if srun needs none.
        allocation: in which the job runs; None if srun allocates nodes.
        cpus_of_tasks: number of CPUs to which the launcher pins each task, by rank; None not to pin it.
        ports: range in which the launcher may listen; None for any port.
        loopback: nodes reach the launcher through the loopback of this machine.
        resource: generic resource or license of the CS system, such as "cs:1".
        owner: the node that holds it, if the site names it.
    """

    srun: tuple[str, ...]
    job_name: str
    host_file: str
    allocation: Allocation | None
    cpus_of_tasks: tuple[int | None, ...]
    ports: tuple[int, int] | None
    loopback: bool
    resource: str
    owner: str


def make_plan(request: LaunchRequest, context: LaunchContext, survey: ClusterSurvey) -> SlurmPlan:
    """Plan a job completely, except for the nodes that it will get.

    Raises:
        ToolkitError: the job can never run on this cluster, or not in this allocation.
    """
    layout, facts, allocation = request.layout, survey.facts, survey.allocation
    name = survey.options.job_name or job_name(request.command, context.cwd, context.job_id)
    check_number_of_tasks(layout)
    parts = components(layout)
    agent = agent_command()
    hosts = ""
    if allocation is None:
        asked = parts
        if facts is not None:
            facts.check(layout, survey.options)
            # CPUs of the smallest node: --nodelist and --constraint may select any
            asked = with_whole_nodes(parts, min(facts.cpus, default=1))
        srun = srun_job(name, asked, survey.options, agent)
    else:
        allocation.check(layout, survey.system_node)
        srun = srun_step(name, parts, allocation, agent)
        if not allocation.heterogeneous:
            hosts = host_file(layout, allocation.ordered(survey.system_node))
    log_dir = job_log_dir(request, context)
    return SlurmPlan(
        job_id=context.job_id,
        launcher="slurm",
        command=request.command,
        executed=request.executed,
        cwd=context.cwd,
        change=common_environment(request, context),
        tasks=plan_tasks(layout, log_dir),
        log_dir=log_dir,
        system=system_address(request.command, context.site.cs_ip),
        notices=tuple(_notices(request, context)),
        grace_s=request.grace_s,
        wind_down_s=request.wind_down_s,
        srun=srun,
        job_name=name,
        host_file=hosts,
        allocation=allocation,
        cpus_of_tasks=tuple(part.cpus_per_task for part in parts for _ in range(part.tasks)),
        ports=facts.ports if facts else None,
        loopback=bool(facts and facts.loopback),
        resource=survey.options.resource,
        owner=survey.options.gres_node,
    )


def describe(plan: SlurmPlan) -> str:
    """Return the text of --dry-run: exactly what would be started."""
    where = f"in the allocation of job {plan.allocation.job_id}" if plan.allocation else "on separate nodes"
    lines = [
        f"job {plan.job_id} (launcher {plan.launcher}), nothing is started: "
        f"{plural(len(plan.tasks), 'task')} {where}",
        f"working directory: {quote(str(plan.cwd))}",
        f"srun: {join(plan.srun)}",
        *([f"  SLURM_HOSTFILE: {' '.join(plan.host_file.split())}"] if plan.host_file else []),
        f"unset for every task: {' '.join(plan.change.unset) or '(nothing)'}",
        "set for every task:",
        *(f"  {name}={quote(value)}" for name, value in plan.change.values.items()),
        f"  CSRUN_JOB_TOKEN={TOKEN_TEXT}",
        "  TF_CONFIG=(set when the nodes are known)",
    ]
    for task in plan.tasks:
        lines += [
            f"{task.label}: rank {task.rank}, node {task.node}",
            *(f"  {name}={quote(value)}" for name, value in task.values.items()),
            f"  log:     {quote(str(task.log_path))}",
            f"  command: {join(plan.executed)}",
        ]
    return "\n".join(lines) + "\n"


def agent_command() -> tuple[str, ...]:
    """Return the command line of an agent, isolated from the user's Python settings."""
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
