"""Plan of a job on a cluster, and the text of --dry-run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from csrun.agent import plan as agents
from csrun.agent.plan import AgentPlan, agent_command, plan_notices
from csrun.schedulers.base import LaunchContext, LaunchRequest
from csrun.schedulers.slurm.allocation import components, host_file, with_whole_nodes
from csrun.schedulers.slurm.arguments import job_name, srun_job, srun_step
from csrun.schedulers.slurm.place import read_place
from csrun.schedulers.slurm.survey import ClusterSurvey
from csrun.schedulers.tasks import check_number_of_tasks, common_environment, job_log_dir, plan_tasks
from csrun.system_status import system_address

HOST_FILE_NAME = "hosts"  # of SLURM_HOSTFILE, which assigns a node to every task


@dataclass(frozen=True)
class SlurmPlan(AgentPlan):
    """A job for Slurm.

    Attributes:
        job_name: of the job in Slurm's queue, not necessarily unique.
        resource: generic resource or license of the CS system, such as "cs:1".
        owner: the node that holds it, if the site names it.
    """

    job_name: str
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
    agent = agent_command(read_place)
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
        system=system_address(request.command, context.site.system_addresses),
        notices=plan_notices(request, context),
        grace_s=request.grace_s,
        wind_down_s=request.wind_down_s,
        max_restarts=request.max_restarts,
        start=srun,
        files={HOST_FILE_NAME: hosts} if hosts else {},
        outer_job_id=allocation.job_id if allocation else "",
        restarts=allocation.restarts if allocation else 0,
        job_name=name,
        cpus_of_tasks=tuple(part.cpus_per_task for part in parts for _ in range(part.tasks)),
        ports=facts.ports if facts else None,
        ports_setting="SrunPortRange of slurm.conf",
        loopback=bool(facts and facts.loopback),
        resource=survey.options.resource,
        owner=survey.options.gres_node,
    )


def describe(plan: SlurmPlan) -> str:
    """Return the text of --dry-run: exactly what would be started."""
    hosts = plan.files.get(HOST_FILE_NAME, "").split()
    return agents.describe(plan, [f"  SLURM_HOSTFILE: {' '.join(hosts)}"] if hosts else [])
