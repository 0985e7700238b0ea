"""Survey of a Flux instance, plan of a job on it, and its batch script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join, quote

from cs_toolkit import __version__
from cs_toolkit.errors import UsageError
from csrun.agent.launch import run_agents
from csrun.agent.plan import AgentPlan, agent_command, plan_notices
from csrun.jobs.registry import KnownJob
from csrun.schedulers.base import Asked, JobHere, LaunchContext, LaunchRequest, Survey
from csrun.schedulers.tasks import (
    check_number_of_tasks,
    common_environment,
    job_log_dir,
    launcher_arguments,
    plan_tasks,
)
from csrun.system_status import system_address
from csrun_flux.client import FluxClient, FluxError, Resources, duration_seconds, submission_environment
from csrun_flux.options import FluxOptions, node_arguments, task_arguments
from csrun_flux.place import PLACE_ARGUMENTS, ascii_id, read_place
from csrun_flux.starter import FluxRunStarter

OUTPUT_NAME = "flux.out"
WARN_S = 120.0


@dataclass(frozen=True)
class FluxSurvey(Survey):
    """The survey of an instance.

    Attributes:
        options: of the job.
        nodes: that jobs can use; None if unknown, then nothing is checked.
        outer_job_id: id of the batch job whose instance this is; "" for another instance.
        loopback: the whole instance is this machine.
    """

    options: FluxOptions = field(default_factory=FluxOptions)
    nodes: Resources | None = None
    outer_job_id: str = ""
    loopback: bool = False


def job_here(environment: Mapping[str, str]) -> JobHere | None:
    """Return the batch job in whose instance this process is; None outside of one."""
    if not environment.get("FLUX_ENCLOSING_ID"):
        return None
    return JobHere(None, on_node=True)


def survey(asked: Asked) -> FluxSurvey:
    """Query the instance.

    Raises:
        FluxError: it does not answer, or has no such queue.
    """
    options = FluxOptions.of_site(asked.site, asked.flags)
    outer = "" if asked.submit else ascii_id(asked.environment.get("FLUX_ENCLOSING_ID", ""))
    client = FluxClient(asked.environment)
    defaults, notices = asked.site, []
    nodes, loopback = None, False
    try:
        nodes, loopback = client.resources()["up"], client.is_local()
        queues = client.queues()
        if options.queue and options.queue not in queues and not outer:
            raise UsageError(
                f"--queue: there is no queue {options.queue!r}; expected one of: "
                f"{', '.join(queues) or 'none'}"
            )
    except FluxError as error:
        if not asked.dry_run:
            raise
        notices.append(f"{error}; nothing is checked against the instance")
    return FluxSurvey(
        defaults, nodes.node_cores if nodes else 1, tuple(notices), options, nodes, outer, loopback
    )


def make_plan(request: LaunchRequest, context: LaunchContext, survey: FluxSurvey) -> AgentPlan:
    """Plan a job completely, except for the nodes that it will get.

    Raises:
        UsageError: the job can never run on this instance.
    """
    layout = request.layout
    check_number_of_tasks(layout)
    _check_nodes(request, survey.nodes)
    # A batch job has its queue and limits already; its instance has none.
    options = FluxOptions(extra=survey.options.extra) if survey.outer_job_id else survey.options
    start = (
        *("flux", "run", "--verbose", f"--job-name={_job_name(request, context, survey)}"),
        *("--input=/dev/null", "--cwd=/"),
        *node_arguments(layout),
        *task_arguments(layout),
        *options.arguments,
        *PLACE_ARGUMENTS,
        *agent_command(read_place),
    )
    log_dir = job_log_dir(request, context)
    return AgentPlan(
        job_id=context.job_id,
        launcher="flux",
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
        start=start,
        files={},
        outer_job_id=survey.outer_job_id,
        restarts=0,
        cpus_of_tasks=(layout.cpus_per_task,) * layout.num_tasks,
        ports=None,
        ports_setting="",
        loopback=survey.loopback,
    )


def _job_name(request: LaunchRequest, context: LaunchContext, survey: FluxSurvey) -> str:
    subject = Path(next((word for word in request.command if word.endswith(".py")), request.command[0])).stem
    return survey.options.job_name or f"{subject}-{context.job_id.rpartition('-')[2]}"


def _check_nodes(request: LaunchRequest, nodes: Resources | None) -> None:
    layout = request.layout
    if nodes is None:
        return
    if layout.total_nodes > len(nodes.nodes):
        raise UsageError(
            f"--total-nodes={layout.total_nodes}: this Flux instance has {len(nodes.nodes)} nodes; expected "
            f"no more: lower --total-nodes"
        )
    wanted = layout.tasks_per_node * (layout.cpus_per_task or 1)
    if wanted > nodes.node_cores:  # Flux distributes no more tasks than cores
        each = f" with --cpus-per-task={layout.cpus_per_task}" if layout.cpus_per_task else ""
        raise UsageError(
            f"--tasks-per-node={layout.tasks_per_node}{each} needs {wanted} cores on a node, and the nodes "
            f"have {nodes.node_cores}; expected no more: lower one of them"
        )


def run_job(plan: AgentPlan, environment: Mapping[str, str]) -> int:
    """Run the job on the instance and return its exit code."""
    starter = FluxRunStarter(FluxClient(environment))
    return run_agents(plan, starter, environment, submission_environment(environment))


def script(request: LaunchRequest, context: LaunchContext, survey: FluxSurvey) -> str:
    """Return the batch script of a job.

    Raises:
        UsageError: Flux cannot take the job.
    """
    if request.requeue:
        raise UsageError(
            "--requeue: got it, expected none: Flux does not put jobs back into the queue; submit the same "
            "command again, which resumes from the last checkpoint"
        )
    _check_nodes(request, survey.nodes)
    limit_s = duration_seconds(survey.options.time_limit) or float("inf")
    warn_s = request.warn_before_s
    if warn_s is None:
        warn_s = 0 if limit_s == float("inf") else min(WARN_S, limit_s / 2)
    if warn_s >= limit_s:
        raise UsageError(
            f"--warn-before={warn_s:g} with a time limit of {survey.options.time_limit}: the job would be "
            f"asked for its last checkpoint as soon as it starts; lower --warn-before"
        )
    output = job_log_dir(request, context) / OUTPUT_NAME
    options = [
        f"--job-name={_job_name(request, context, survey)}",
        f"--output={output}",
        *node_arguments(request.layout),
        *survey.options.arguments,
        *([f"--signal=USR1@{warn_s:g}s"] if warn_s else []),
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Written by csrun_wse {__version__}. Submit it again with: flux batch FILE",
            *(f"#flux: {quote(option)}" for option in options),
            "",
            f"cd -- {quote(str(context.cwd))} || exit",
            f"exec {join(launcher_arguments(request, context, 'flux'))}",
            "",
        ]
    )


def output_file(job: KnownJob) -> Path:
    """Return the file of the output of a submitted job's batch script."""
    return Path(job.log_dir) / OUTPUT_NAME
