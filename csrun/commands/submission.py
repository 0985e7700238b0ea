"""A job that is handed to a queue, and followed there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from csrun.commands.logs import follow_log
from csrun.console import STDOUT, say, write_text
from csrun.errors import LogDirError
from csrun.jobs.record import known_job, prepare_log_dir
from csrun.jobs.registry import KnownJob, register
from csrun.schedulers.base import LaunchPlan, Scheduler

PROGRAM = "csrun_wse"
SCRIPT_NAME = "job.sh"
EXIT_CTRL_C = 130
WHOLE_FILE_LINES = 1_000_000


def submit(
    scheduler: Scheduler[Any, Any],
    script: str,
    plan: LaunchPlan,
    environment: Mapping[str, str],
    *,
    follow: bool,
) -> int:
    """Writes the script into the job's log directory, hands it to the queue, and registers the job.

    Args:
        scheduler: whose queue.
        script: its text.
        plan: of the job.
        environment: of the launcher; the job inherits it.
        follow: stay until the job has ended.

    Returns:
        The exit code: that of the job, if it was followed to its end.

    Raises:
        LogDirError: the script cannot be written.
        ToolkitError: the scheduler refuses the job; nothing was submitted.
    """
    prepare_log_dir(plan.log_dir)
    path = plan.log_dir / SCRIPT_NAME
    try:
        path.write_text(script, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    except OSError as error:
        raise LogDirError(
            f"cannot write {path}: {error.strerror}; expected a writable log directory: give another one "
            f"with --log-dir"
        ) from error
    job = replace(known_job(plan), scheduler_job_id=scheduler.submit(path, environment))
    register(job, environment)
    # As sbatch prints it, so that scripts that read sbatch's answer can read ours.
    write_text(STDOUT, f"Submitted batch job {job.scheduler_job_id}\n")
    say(PROGRAM, f"job {job.job_id}, script {path}")
    return _follow(job, scheduler.output_file(job)) if follow else 0


def _follow(job: KnownJob, output: Path) -> int:
    """Shows what the job writes until it has ended; returns its exit code.

    Ctrl-C ends the showing, not the job.
    """
    number = job.scheduler_job_id
    try:
        return follow_log(job, output, lines=WHOLE_FILE_LINES)
    except KeyboardInterrupt:
        say(
            PROGRAM,
            f"job {number} goes on: 'csrun status {number}', 'csrun logs --follow {number}', 'csrun cancel "
            f"{number}' look after it",
        )
        return EXIT_CTRL_C
