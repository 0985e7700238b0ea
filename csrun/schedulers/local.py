"""The `local` scheduler: every task is a process of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import join, quote

from csrun.environment import EnvironmentChange, program_environment, unset_notice
from csrun.errors import UsageError
from csrun.jobs import log_name
from csrun.layout import pin_cpus
from csrun.roles import TF_CONFIG_PORT_BASE, role_of_rank, tf_config
from csrun.schedulers.base import LaunchPlan, LaunchRequest, PlannedTask, Surroundings

LOOPBACK = "127.0.0.1"
MAX_TASKS = 65536 - TF_CONFIG_PORT_BASE
"""More would leave no port number for the last ones in TF_CONFIG."""


class LocalScheduler:
    """Runs all tasks of a job on this machine, however many nodes were asked for."""

    name = "local"

    def plan(self, request: LaunchRequest, surroundings: Surroundings) -> LaunchPlan:
        """Decides everything about the job; pure.

        Raises:
            UsageError: more tasks than there are port numbers.
        """
        layout = request.layout
        if layout.num_tasks > MAX_TASKS:
            raise UsageError(
                f"nodes and tasks per node make {layout.num_tasks} tasks; expected at most {MAX_TASKS} on "
                f"one machine: lower --total-nodes or --tasks-per-node"
            )
        log_dir = surroundings.cwd / (request.log_dir or Path("csrun_logs", surroundings.job_id))
        return LaunchPlan(
            job_id=surroundings.job_id,
            launcher=self.name,
            command=request.command,
            cwd=surroundings.cwd,
            change=_common_change(layout.num_tasks, request.wait, log_dir, surroundings),
            tasks=_tasks(request, surroundings, log_dir),
            log_dir=log_dir,
            notices=tuple(_notices(request, surroundings)),
            grace_s=request.grace_s,
            wind_down_s=request.wind_down_s,
        )

    def describe(self, plan: LaunchPlan) -> str:
        """The text of --dry-run: exactly what `run` would start; pure."""
        command = join(plan.command)
        lines = [
            f"job {plan.job_id} (launcher {plan.launcher}), nothing is started: "
            f"{_plural(len(plan.tasks), 'task')} on this machine",
            f"working directory: {quote(str(plan.cwd))}",
            f"unset for every task: {' '.join(plan.change.unset) or '(nothing)'}",
            "set for every task:",
            *(f"  {name}={quote(value)}" for name, value in plan.change.values.items()),
            "  CSRUN_JOB_TOKEN=(random, made at the start, shown nowhere)",
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

    def run(self, plan: LaunchPlan, environment: Mapping[str, str]) -> int:
        """Runs the job to its end and returns the exit code of the launcher.

        Raises:
            CsrunError: the command, the log directory or a task could not be used; nothing is left running.
        """
        # Only here, so that --help and --dry-run do not pay for ctypes, selectors and subprocess.
        from csrun.local_run import run_job

        return run_job(plan, environment)


def _common_change(
    num_tasks: int, wait: bool, log_dir: Path, surroundings: Surroundings
) -> EnvironmentChange:
    base = program_environment(surroundings.environment, surroundings.toolkit)
    values = {
        **base.values,
        # Without it a task's last lines would sit in its buffer when it is killed.
        "PYTHONUNBUFFERED": "1",
        "CSRUN_JOB_ID": surroundings.job_id,
        "CSRUN_NUM_TASKS": str(num_tasks),
        "CSRUN_LOG_DIR": str(log_dir),
    }
    if wait:
        values["CSRUN_WAIT"] = "1"
    return EnvironmentChange(values, base.unset)


def _tasks(request: LaunchRequest, surroundings: Surroundings, log_dir: Path) -> tuple[PlannedTask, ...]:
    layout = request.layout
    nodes = layout.nodes_of_tasks()
    pins = pin_cpus(layout.num_tasks, layout.cpus_per_task, surroundings.cpus)
    hosts = [LOOPBACK] * layout.num_tasks
    tasks = []
    for rank, node in enumerate(nodes):
        role, index = role_of_rank(rank)
        values = {
            "CSRUN_RANK": str(rank),
            "CSRUN_ROLE": role,
            "CSRUN_TASK_INDEX": str(index),
            "TF_CONFIG": json.dumps(tf_config(rank, hosts)),
        }
        cpus = pins[rank] if pins else ()
        tasks.append(PlannedTask(rank, role, index, node, cpus, values, log_dir / log_name(role, index)))
    return tuple(tasks)


def _notices(request: LaunchRequest, surroundings: Surroundings) -> list[str]:
    layout, cpus = request.layout, len(surroundings.cpus)
    change = program_environment(surroundings.environment, surroundings.toolkit)
    notices = [unset_notice(surroundings.environment, change)]
    if layout.total_nodes > 1:
        notices.append(
            f"--total-nodes={layout.total_nodes}: there is no cluster here, the tasks of all nodes run on "
            f"this machine"
        )
    wanted = layout.num_tasks * (layout.cpus_per_task or 1)
    if wanted > cpus:
        each = f" x {_plural(layout.cpus_per_task, 'CPU')}" if layout.cpus_per_task else ""
        notices.append(
            f"{_plural(layout.num_tasks, 'task')}{each} on a machine of {_plural(cpus, 'CPU')}: "
            f"the tasks share them and none is pinned"
        )
    if request.mount_dirs:
        notices.append("--mount-dirs has no effect here: without a container the tasks see all directories")
    return [notice for notice in notices if notice]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
