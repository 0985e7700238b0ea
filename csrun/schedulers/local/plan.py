"""Plan of a job on this machine, and the text of --dry-run. Pure."""

from __future__ import annotations

from shlex import join, quote

from csrun.jobs.layout import pin_cpus
from csrun.schedulers.base import LaunchContext, LaunchPlan, LaunchRequest
from csrun.schedulers.tasks import (
    check_number_of_tasks,
    common_environment,
    job_log_dir,
    plan_tasks,
    plural,
)
from csrun.system_status import system_address
from csrun.tasks.environment import program_environment, unset_notice

LOOPBACK = "127.0.0.1"


def make_plan(request: LaunchRequest, context: LaunchContext, launcher: str) -> LaunchPlan:
    """Plan a job.

    Args:
        request: of the user.
        context: further inputs of the plan.
        launcher: name of the scheduler, which may be another one that runs tasks on this machine.

    Raises:
        UsageError: there are more tasks than port numbers.
    """
    layout = request.layout
    check_number_of_tasks(layout)
    log_dir = job_log_dir(request, context)
    pins = pin_cpus(layout.num_tasks, layout.cpus_per_task, context.cpus)
    return LaunchPlan(
        job_id=context.job_id,
        launcher=launcher,
        command=request.command,
        cwd=context.cwd,
        executed=request.executed,
        change=common_environment(request, context),
        tasks=plan_tasks(layout, log_dir, pins, [LOOPBACK] * layout.num_tasks),
        log_dir=log_dir,
        system=system_address(request.command, context.site.system_addresses),
        notices=tuple(_notices(request, context)),
        grace_s=request.grace_s,
        wind_down_s=request.wind_down_s,
        max_restarts=request.max_restarts,
    )


def describe(plan: LaunchPlan) -> str:
    """Return the text of --dry-run: exactly what would be started."""
    command = join(plan.executed)
    lines = [
        f"job {plan.job_id} (launcher {plan.launcher}), nothing is started: "
        f"{plural(len(plan.tasks), 'task')} on this machine",
        f"working directory: {quote(str(plan.cwd))}",
        f"unset for every task: {' '.join(plan.change.unset) or '(nothing)'}",
        "set for every task:",
        *(f"  {name}={quote(value)}" for name, value in plan.change.values.items()),
        "  CSRUN_JOB_TOKEN=(random, drawn at the start, never shown)",
        "  CSRUN_NODE=(name of this machine)",
    ]
    for task in plan.tasks:
        pinned = f"CPUs {','.join(map(str, task.cpus))}" if task.cpus else "not pinned to CPUs"
        lines += [
            f"{task.label}: rank {task.rank}, node {task.node}, {pinned}",
            *(f"  {name}={quote(value)}" for name, value in task.values.items()),
            f"  log:     {quote(str(task.log_path))}",
            f"  command: {command}",
        ]
    return "\n".join(lines) + "\n"


def _notices(request: LaunchRequest, context: LaunchContext) -> list[str]:
    layout, cpus = request.layout, len(context.cpus)
    change = program_environment(context.environment, context.toolkit, context.site)
    notices = [unset_notice(context.environment, change)]
    if layout.total_nodes > 1:
        notices.append(
            f"--total-nodes={layout.total_nodes}: there is no cluster here, the tasks of all nodes run on "
            f"this machine"
        )
    if layout.cyclic:
        notices.append("--cyclic has no effect here: all tasks are on this machine")
    wanted = layout.num_tasks * (layout.cpus_per_task or 1)
    if wanted > cpus:
        each = f" x {plural(layout.cpus_per_task, 'CPU')}" if layout.cpus_per_task else ""
        notices.append(
            f"{plural(layout.num_tasks, 'task')}{each} on a machine of {plural(cpus, 'CPU')}: "
            f"the tasks share them and none is pinned"
        )
    if request.mount_dirs and context.site.container == "none":
        notices.append("--mount-dirs has no effect here: without a container the tasks see all directories")
    return [notice for notice in notices if notice]
