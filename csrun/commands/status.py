"""csrun status: how jobs fare."""

from __future__ import annotations

import json
import os
from shlex import join

import click

from csrun.commands.completion import job_ids
from csrun.commands.flags import count
from csrun.console import STDOUT, say, write_text
from csrun.jobs.registry import find_job, known_jobs
from csrun.jobs.state import JobStatus
from csrun.jobs.status import columns, state_text, status_of, status_text, statuses_of

PROGRAM = "csrun"
DEFAULT_JOBS = "10"
COMMAND_WIDTH = 60


@click.command("status")
@click.argument("job", required=False, shell_complete=job_ids)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--last",
    callback=count(),
    default=DEFAULT_JOBS,
    show_default=True,
    metavar="N",
    help="Without JOB: show the newest N.",
)
def status(job: str | None, as_json: bool, last: int) -> int:
    """Shows how JOB fares: state, nodes, tasks, and what it waits for. Without JOB: your newest jobs.

    JOB is an id that csrun_wse has printed (or its beginning or end), the scheduler's number, or a log
    directory.
    """
    if job is None:
        found = statuses_of(known_jobs(os.environ)[:last], lambda error: say(PROGRAM, str(error)))
        text = json.dumps([one.to_json() for one in found], indent=2) + "\n" if as_json else list_text(found)
    else:
        one = status_of(find_job(job, os.environ))
        text = json.dumps(one.to_json(), indent=2) + "\n" if as_json else status_text(one)
    write_text(STDOUT, text)
    return 0


def list_text(found: list[JobStatus]) -> str:
    """A line for each job; pure."""
    if not found:
        return "no jobs are known; csrun_wse starts one\n"
    rows = [("job", "number", "state", "command")]
    rows += [
        (
            one.job.job_id,
            one.scheduler_job_id or "-",
            state_text(one, with_detail=False),
            _shortened(join(one.job.command)),
        )
        for one in found
    ]
    return "\n".join(columns(rows)) + "\n"


def _shortened(text: str) -> str:
    plain = text.replace("\n", " ")
    return plain if len(plain) <= COMMAND_WIDTH else plain[: COMMAND_WIDTH - 3] + "..."
