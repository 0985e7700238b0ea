"""Planning of tasks for all schedulers, and the environment of simulated tasks in an input analysis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import JobLayout
from csrun.jobs.record import log_name
from csrun.schedulers.base import LaunchContext, LaunchRequest, PlannedTask
from csrun.schedulers.registry import task_variables
from csrun.tasks.environment import EnvironmentChange, program_environment
from csrun.tasks.place import TF_CONFIG_PORT_BASE, role_of_rank, tf_config

LAUNCHER = "csrun_wse"

MAX_TASKS = 65536 - TF_CONFIG_PORT_BASE  # each task has a port number in TF_CONFIG


def check_number_of_tasks(layout: JobLayout) -> None:
    """Check that there are enough port numbers for the tasks.

    Raises:
        UsageError: there are not.
    """
    if layout.num_tasks > MAX_TASKS:
        raise UsageError(
            f"nodes and tasks per node make {layout.num_tasks} tasks; expected at most {MAX_TASKS}, each has "
            f"a port number in TF_CONFIG: lower --total-nodes or --tasks-per-node"
        )


def job_log_dir(request: LaunchRequest, context: LaunchContext) -> Path:
    """Return the absolute directory of the job's logs."""
    return context.cwd / (request.log_dir or Path("csrun_logs", context.job_id))


def common_environment(request: LaunchRequest, context: LaunchContext) -> EnvironmentChange:
    """Return the environment of all tasks, without the job's secret token, which is drawn at the start."""
    base = program_environment(context.environment, context.toolkit, context.site)
    values = {
        **base.values,
        # Otherwise the last lines of a task would be lost in its buffer when it is killed.
        "PYTHONUNBUFFERED": "1",
        "CSRUN_JOB_ID": context.job_id,
        "CSRUN_NUM_TASKS": str(request.layout.num_tasks),
        "CSRUN_LOG_DIR": str(job_log_dir(request, context)),
    }
    if request.wait:
        values["CSRUN_WAIT"] = "1"
    if request.requeue:
        values["CSRUN_REQUEUE"] = "1"
    if request.allow_input_change:
        values["CSRUN_ALLOW_INPUT_CHANGE"] = "1"
    if request.input_order:
        values["CSRUN_INPUT_ORDER"] = request.input_order
    return EnvironmentChange(values, base.unset)


def plan_tasks(
    layout: JobLayout,
    log_dir: Path,
    pins: Sequence[tuple[int, ...]] = (),
    hosts: Sequence[str] = (),
) -> tuple[PlannedTask, ...]:
    """Plan all tasks, by rank.

    Args:
        layout: of the job.
        log_dir: absolute directory of the logs.
        pins: CPUs of every task; empty if tasks are not pinned here.
        hosts: of every task, for TF_CONFIG; empty if they are known only after the start.
    """
    tasks = []
    for rank, node in enumerate(layout.nodes_of_tasks()):
        role, index = role_of_rank(rank)
        values = {"CSRUN_RANK": str(rank), "CSRUN_ROLE": role, "CSRUN_TASK_INDEX": str(index)}
        if hosts:
            values["TF_CONFIG"] = json.dumps(tf_config(rank, hosts))
        cpus = pins[rank] if pins else ()
        tasks.append(PlannedTask(rank, role, index, node, cpus, values, log_dir / log_name(role, index)))
    return tuple(tasks)


def launcher_arguments(request: LaunchRequest, context: LaunchContext, name: str) -> tuple[str, ...]:
    """Return the command line of csrun_wse that runs this job, for a batch script.

    Args:
        request: layout, command, log directory, times.
        context: directory of the start, and the toolkit.
        name: of the scheduler.
    """
    # The wrapper of a checkout sets the import path; a package has the command next to its interpreter.
    layout, toolkit = request.layout, context.toolkit
    folder = toolkit.bin_dir if toolkit.import_root is None else toolkit.import_root / "bin"
    return (
        str(folder / LAUNCHER),
        f"--launcher={name}",
        f"--job-id={context.job_id}",
        f"--log-dir={job_log_dir(request, context)}",
        f"--total-nodes={layout.total_nodes}",
        f"--tasks-per-node={layout.tasks_per_node}",
        *([f"--cpus-per-task={layout.cpus_per_task}"] if layout.cpus_per_task else []),
        *([f"--single-task-nodes={layout.single_task_nodes}"] if layout.single_task_nodes else []),
        *(["--cyclic"] if layout.cyclic else []),
        *([f"--mount-dirs={','.join(map(str, request.mount_dirs))}"] if request.mount_dirs else []),
        f"--grace-period={request.grace_s:g}",
        f"--wind-down={request.wind_down_s:g}",
        f"--max-restarts={request.max_restarts}",
        *(["--wait"] if request.wait else []),
        *(["--requeue"] if request.requeue else []),
        *(["--allow-input-change"] if request.allow_input_change else []),
        *([f"--input-order={request.input_order}"] if request.input_order else []),
        "--",
        *request.command,
    )


def plural(count: int, noun: str) -> str:
    """ "1 task", "2 tasks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def worker_place(workers: int, index: int) -> tuple[int, int]:
    """Return the rank of a worker and the number of tasks; a single worker is also the chief."""
    return (index + 1, workers + 1) if workers > 1 else (0, 1)


def worker_config(workers: int, index: int) -> dict[str, Any]:
    """Return TF_CONFIG of a worker in a job whose tasks are all on this machine."""
    rank, tasks = worker_place(workers, index)
    return tf_config(rank, ["127.0.0.1"] * tasks)


def worker_variables(environment: Mapping[str, str], workers: int, index: int) -> dict[str, str]:
    """Return the environment variables of a simulated worker: TF_CONFIG, and those that the scheduler sets.

    Args:
        environment: of this process.
        workers: number of workers of the simulated job.
        index: of the worker.
    """
    rank, tasks = worker_place(workers, index)
    config = json.dumps(worker_config(workers, index))
    return {"TF_CONFIG": config, **task_variables(environment, rank, tasks)}
