"""csrun cancel: ends a job."""

from __future__ import annotations

import os
import time

import click

from csrun.commands.completion import job_ids
from csrun.commands.flags import seconds
from csrun.console import say
from csrun.errors import CsrunError
from csrun.jobs.registry import find_job, read_record
from csrun.jobs.status import state_text, status_of
from csrun.schedulers.registry import scheduler

PROGRAM = "csrun"
LOOK_INTERVAL_S = 0.5
WAIT_LIMIT_S = 60


@click.command("cancel")
@click.argument("job", shell_complete=job_ids)
@click.option(
    "--wait",
    "limit_s",
    callback=seconds,
    default=str(WAIT_LIMIT_S),
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the end of the job.",
)
def cancel(job: str, limit_s: float) -> int:
    """Ends JOB: its tasks are asked to end, and killed after their grace period. Waits for the end.

    JOB is an id that csrun_wse has printed (or its beginning or end), the scheduler's number, or a log
    directory.
    """
    known = find_job(job, os.environ)
    found = status_of(known)
    if found.over:
        say(PROGRAM, f"job {known.job_id} has ended already: {state_text(found)}")
        return 0
    scheduler(known.launcher).cancel(known, read_record(known) or {}, os.environ)
    deadline_s = time.monotonic() + limit_s
    while not found.over and time.monotonic() < deadline_s:
        time.sleep(LOOK_INTERVAL_S)
        found = status_of(known)
    if not found.over:
        raise CsrunError(
            f"job {known.job_id} is still {found.state} {limit_s:g} s after it was told to end; expected its "
            f"end within the grace period: look at 'csrun logs {known.job_id}', or wait longer with --wait"
        )
    say(PROGRAM, f"job {known.job_id}: {state_text(found)}")
    return 0
