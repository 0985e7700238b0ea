"""Batch scripts of jobs. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from cs_toolkit import __version__
from cs_toolkit.errors import UsageError
from csrun.jobs.registry import KnownJob
from csrun.schedulers.base import LaunchContext, LaunchRequest
from csrun.schedulers.slurm.allocation import components
from csrun.schedulers.slurm.arguments import job_name, node_lists, request_arguments
from csrun.schedulers.slurm.client import limit_seconds
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.tasks import job_log_dir, launcher_arguments

OUTPUT_NAME = "slurm-%j.out"
WARN_S = 120
# Shortest time from the start of a job to its warning. Slurm may send the signal a minute early, and it would
# end the job before csrun_wse handles it.
EARLIEST_S = 70


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A batch job.

    Attributes:
        name: of the job.
        components: all sbatch options of each component, the chief's first.
        output: absolute path of the script's output; %j in it is the number of the job.
        cwd: absolute directory in which the command starts.
        command: csrun_wse with its flags and the user's command.
        requeue: the job may be put back into the queue, after a lost node or at its own request.
        warn_s: seconds before the time limit at which csrun_wse gets SIGUSR1; 0 for never.
    """

    name: str
    components: tuple[tuple[str, ...], ...]
    output: Path
    cwd: Path
    command: tuple[str, ...]
    requeue: bool
    warn_s: int


def render(script: BatchScript) -> str:
    """Return the text of a script.

    Raises:
        UsageError: a path is not valid in a directive.
    """
    lines = [
        "#!/bin/bash",
        f"# Written by csrun_wse {__version__}. Submit it again with: sbatch FILE",
        directive("--job-name", script.name),
        directive("--output", _output_pattern(script.output)),
        # After a requeue the job continues, and so does its log.
        directive("--open-mode", "append"),
        directive("--requeue" if script.requeue else "--no-requeue"),
    ]
    if script.warn_s:
        lines.append(directive("--signal", f"B:USR1@{script.warn_s}"))
    # All options for each: Slurm copies only some of them from the first component to the others.
    for number, component in enumerate(script.components):
        if number:
            lines.append("#SBATCH hetjob")
        lines += [directive(*option.partition("=")[::2]) for option in component]
    lines += ["", f"cd -- {quote(str(script.cwd))} || exit", f"exec {join(script.command)}", ""]
    return "\n".join(lines)


def directive(name: str, value: str = "") -> str:
    """Return an #SBATCH line, with the value quoted if necessary."""
    if not value:
        return f"#SBATCH {name}"
    if "\n" in value:
        raise UsageError(
            f"{name}: got {value!r}, expected a value without a line break, which an #SBATCH line cannot have"
        )
    plain = all(character.isalnum() or character in "-_./:,=@%+" for character in value)
    quoted = value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH {name}={quoted}"


def _output_pattern(path: Path) -> str:
    """Return a path as a pattern of sbatch, in which only %j of the file name is replaced."""
    if "\\" in str(path):
        raise UsageError(
            f"--log-dir: got {str(path.parent)!r}, expected a path without a backslash, which has a special "
            f"meaning for sbatch; choose another directory"
        )
    return f"{str(path.parent).replace('%', '%%')}/{path.name}"


def batch_script(request: LaunchRequest, context: LaunchContext, options: SlurmOptions) -> BatchScript:
    """Plan the batch script of a job.

    Args:
        request: layout, command, log directory, times.
        context: where it starts and which toolkit it is.
        options: of the job, other than nodes and tasks.

    Raises:
        UsageError: it would be asked for its last checkpoint before its start.
    """
    parts = components(request.layout)
    named = node_lists(parts, options)
    return BatchScript(
        name=options.job_name or job_name(request.command, context.cwd, context.job_id),
        components=tuple(
            tuple(request_arguments(part, options, nodes)) for part, nodes in zip(parts, named, strict=True)
        ),
        output=job_log_dir(request, context) / OUTPUT_NAME,
        cwd=context.cwd,
        command=launcher_arguments(request, context, "slurm"),
        requeue=request.requeue,
        warn_s=warning_time(request.warn_before_s, options.time_limit),
    )


def warning_time(asked_s: float | None, time_limit: str) -> int:
    """Return the seconds before its time limit at which a job is asked for a checkpoint. Pure.

    Args:
        asked_s: as the user has given it; None for `WARN_S`, for half of a short time limit, and for 0,
            never, with a very short one.
        time_limit: in a format of --time; "" if unknown.

    Raises:
        UsageError: the time limit is not longer than `asked_s`.
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
    """Return the file of the output of a submitted job's batch script."""
    return Path(job.log_dir) / OUTPUT_NAME.replace("%j", job.scheduler_job_id)
