"""Jobs as batch jobs: the script and what belongs to it. Pure."""

from __future__ import annotations

import math
from pathlib import Path

from cs_toolkit.errors import UsageError
from csrun.jobs.registry import KnownJob
from csrun.schedulers.base import LaunchContext, LaunchRequest
from csrun.schedulers.slurm.arguments import node_lists, request_words
from csrun.schedulers.slurm.components import components
from csrun.schedulers.slurm.names import job_name
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.script import BatchScript
from csrun.schedulers.slurm.times import limit_seconds
from csrun.schedulers.tasks import job_log_dir, launcher_words

OUTPUT_NAME = "slurm-%j.out"
WARN_S = 120
EARLIEST_S = 70
"""From the start of a job to its time of warning, at least. Slurm may send the signal a minute before that,
and until csrun_wse handles it, it ends the job."""


def batch_script(request: LaunchRequest, context: LaunchContext, options: SlurmOptions) -> BatchScript:
    """The script of a job.

    Args:
        request: layout, command, log directory, times.
        context: where it starts and which toolkit it is.
        options: what it asks of Slurm besides nodes and tasks.

    Raises:
        UsageError: it would be asked for its last checkpoint before its start.
    """
    parts = components(request.layout)
    named = node_lists(parts, options)
    return BatchScript(
        name=options.job_name or job_name(request.command, context.cwd, context.job_id),
        components=tuple(
            tuple(request_words(part, options, nodes)) for part, nodes in zip(parts, named, strict=True)
        ),
        output=job_log_dir(request, context) / OUTPUT_NAME,
        cwd=context.cwd,
        command=launcher_words(request, context, "slurm"),
        requeue=request.requeue,
        warn_s=warning_time(request.warn_before_s, options.time_limit),
    )


def warning_time(asked_s: float | None, time_limit: str) -> int:
    """Seconds before its time limit at which a job is asked for a checkpoint. Pure.

    Args:
        asked_s: what the user wants; None: `WARN_S`, or half of a short time limit, and never (0) within a
            very short one.
        time_limit: as for --time; "": not known.

    Raises:
        UsageError: the time limit is no longer than that.
    """
    limit_s = limit_seconds(time_limit) or math.inf  # 0 asks for no limit (sbatch(1))
    if asked_s is None:
        return int(max(0, min(WARN_S, limit_s / 2, limit_s - EARLIEST_S)))
    if asked_s >= limit_s:
        raise UsageError(
            f"--warn-before={asked_s:g} with --time={time_limit}: the job would be asked for its last "
            f"checkpoint as soon as it starts; expected fewer seconds than the time limit has: lower "
            f"--warn-before or raise --time"
        )
    return int(asked_s)


def output_file(job: KnownJob) -> Path:
    """What the batch script of a submitted job writes into."""
    return Path(job.log_dir) / OUTPUT_NAME.replace("%j", job.scheduler_job_id)
