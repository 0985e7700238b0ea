"""Jobs as batch jobs: writes the script, submits it, follows what it writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cs_toolkit.errors import UsageError
from csrun.console import STDOUT, say, write_text
from csrun.environment import Toolkit
from csrun.errors import LogDirError
from csrun.job_registry import KnownJob, register
from csrun.jobs import prepare_log_dir
from csrun.roles import EXIT_REQUEUE
from csrun.schedulers.base import LaunchContext, LaunchRequest
from csrun.schedulers.slurm.arguments import request_words
from csrun.schedulers.slurm.client import SlurmClient
from csrun.schedulers.slurm.components import components
from csrun.schedulers.slurm.lost_nodes import await_lost_nodes
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.script import BatchScript, render
from csrun.schedulers.slurm.times import limit_seconds
from csrun.schedulers.tasks import job_log_dir

PROGRAM = "csrun_wse"
SCRIPT_NAME = "job.sh"
OUTPUT_NAME = "slurm-%j.out"
EXIT_CTRL_C = 130
WARN_S = 120


def batch_script(
    request: LaunchRequest,
    context: LaunchContext,
    options: SlurmOptions,
    *,
    requeue: bool,
    warn_s: int,
) -> BatchScript:
    """The script of a job; pure.

    Args:
        request: layout, command, log directory, times.
        context: where it starts and which toolkit it is.
        options: what it asks of Slurm besides nodes and tasks.
        requeue: the job may be put back into the queue.
        warn_s: seconds before the time limit at which it is asked for a checkpoint.
    """
    layout = request.layout
    log_dir = job_log_dir(request, context)
    words = [
        str(launcher_file(context.toolkit)),
        "--launcher=slurm",
        f"--job-id={context.job_id}",
        f"--log-dir={log_dir}",
        f"--total-nodes={layout.total_nodes}",
        f"--tasks-per-node={layout.tasks_per_node}",
        *([f"--cpus-per-task={layout.cpus_per_task}"] if layout.cpus_per_task else []),
        *([f"--single-task-nodes={layout.single_task_nodes}"] if layout.single_task_nodes else []),
        *(["--cyclic"] if layout.cyclic else []),
        *([f"--mount-dirs={','.join(map(str, request.mount_dirs))}"] if request.mount_dirs else []),
        f"--grace-period={request.grace_s:g}",
        f"--wind-down={request.wind_down_s:g}",
        *(["--wait"] if request.wait else []),
        *(["--requeue"] if requeue else []),
        "--",
        *request.command,
    ]
    return BatchScript(
        name=context.job_id,
        components=tuple(tuple(request_words(part, options)) for part in components(layout)),
        output=log_dir / OUTPUT_NAME,
        cwd=context.cwd,
        command=tuple(words),
        requeue=requeue,
        warn_s=warn_s,
    )


def warning_time(asked_s: float | None, time_limit: str) -> int:
    """Seconds before its time limit at which a job is asked for a checkpoint. Pure.

    Args:
        asked_s: what the user wants; None: `WARN_S`, or half of a short time limit.
        time_limit: as for --time; "": not known.

    Raises:
        UsageError: the time limit is no longer than that.
    """
    limit_s = limit_seconds(time_limit) or math.inf  # 0 asks for no limit (sbatch(1))
    if asked_s is None:
        return int(min(WARN_S, limit_s / 2))
    if asked_s >= limit_s:
        raise UsageError(
            f"--warn-before={asked_s:g} with --time={time_limit}: the job would be asked for its last "
            f"checkpoint as soon as it starts; expected fewer seconds than the time limit has: lower "
            f"--warn-before or raise --time"
        )
    return int(asked_s)


def launcher_file(toolkit: Toolkit) -> Path:
    """csrun_wse of this toolkit, in a checkout or where it is installed."""
    folder = toolkit.bin_dir if toolkit.import_root is None else toolkit.import_root / "bin"
    return folder / PROGRAM


def goes_back_into_queue(exit_code: int, record: Mapping[str, Any] | None) -> bool:
    """Whether a batch job that may be put back into the queue has ended in a way that asks for it.

    That is a checkpoint before the time limit (the program leaves with `EXIT_REQUEUE`), and a task that was
    lost with its node.
    """
    tasks = (record or {}).get("tasks") or ()
    return exit_code == EXIT_REQUEUE or any(task.get("state") == "lost" for task in tasks)


def put_back(slurm_job_id: str, environment: Mapping[str, str], record: Mapping[str, Any] | None) -> None:
    """Puts the batch job that this process is part of back into the queue; Slurm then ends the process.

    Args:
        slurm_job_id: Slurm's number of the job.
        environment: of the batch script.
        record: the job's own.

    Raises:
        SlurmError: Slurm does not put it back.
    """
    say(PROGRAM, f"job {slurm_job_id} goes back into the queue, and on from its last checkpoint")
    tasks = (record or {}).get("tasks") or ()
    lost = {str(task.get("host")) for task in tasks if task.get("state") == "lost"}
    await_lost_nodes(lost, environment, lambda text: say(PROGRAM, text))
    SlurmClient(environment).requeue(slurm_job_id)


def submit(script: BatchScript, job: KnownJob, environment: Mapping[str, str]) -> KnownJob:
    """Writes the script into the job's log directory and submits it.

    Args:
        script: what to submit.
        job: the job's entry in the registry, without Slurm's number.
        environment: of the launcher; the job inherits it, without the variables of an enclosing job.

    Returns:
        The entry with Slurm's number, registered.

    Raises:
        LogDirError: the script cannot be written.
        SlurmError: Slurm refuses the job; nothing was submitted.
    """
    log_dir = Path(job.log_dir)
    prepare_log_dir(log_dir)
    path = log_dir / SCRIPT_NAME
    text = render(script)
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    except OSError as error:
        raise LogDirError(
            f"cannot write {path}: {error.strerror}; expected a writable log directory: give another one "
            f"with --log-dir"
        ) from error
    submitted = replace(job, slurm_job_id=SlurmClient(environment).submit(path))
    register(submitted, environment)
    # As sbatch prints it, so that scripts that read sbatch's answer can read ours.
    write_text(STDOUT, f"Submitted batch job {submitted.slurm_job_id}\n")
    say(PROGRAM, f"job {job.job_id}, script {path}")
    return submitted


def follow(job: KnownJob) -> int:
    """Shows what the job writes until it has ended; returns its exit code.

    Ctrl-C ends the showing, not the job.
    """
    from csrun.commands.logs import follow_log

    path = Path(job.log_dir) / OUTPUT_NAME.replace("%j", job.slurm_job_id)
    try:
        return follow_log(job, path, lines=1_000_000)
    except KeyboardInterrupt:
        say(
            PROGRAM,
            f"job {job.slurm_job_id} goes on: 'csrun status {job.slurm_job_id}', 'csrun logs --follow "
            f"{job.slurm_job_id}', 'csrun cancel {job.slurm_job_id}' look after it",
        )
        return EXIT_CTRL_C
