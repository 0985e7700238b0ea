"""csrun status, logs and cancel: show the state of jobs and the output of their tasks, and end jobs."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from shlex import join

import click

from cs_toolkit.errors import UsageError
from csrun.commands.completion import job_ids, tasks
from csrun.commands.flags import count, seconds
from csrun.console import STDOUT, say, write_text
from csrun.errors import CsrunError
from csrun.jobs.progress import time_text
from csrun.jobs.registry import KnownJob, find_job, known_jobs, read_record
from csrun.jobs.state import JobStatus, WaitLines, columns, state_text, status_of, status_text, statuses_of
from csrun.schedulers.registry import scheduler

PROGRAM = "csrun"
DEFAULT_JOBS = "10"
COMMAND_WIDTH = 60
DEFAULT_LINES = "20"
CHUNK_BYTES = 65_536
PRINT_INTERVAL_S = 0.2
STATE_INTERVAL_S = 2.0  # longer than for the log: all users share the scheduler that is asked for the state
CANCEL_POLL_S = 0.5
CANCEL_WAIT_S = 60


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
    """Shows the state of JOB, its nodes and tasks, and why it waits. Without JOB: your newest jobs.

    Also shows its age since it was started or submitted, and the step, rate and time left of its training.

    JOB is an id that csrun_wse has printed (or the start or end of one), the scheduler's number, or a log
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
    """Return a table with one line per job."""
    if not found:
        return "no jobs are known; csrun_wse starts one\n"
    now_s = time.time()
    rows = [("job", "number", "state", "age", "step", "left", "command")]
    rows += [
        (
            one.job.job_id,
            one.scheduler_job_id or "-",
            state_text(one, with_detail=False),
            "-" if (age_s := one.age_s(now_s)) is None else time_text(age_s),
            one.progress.cell(with_rate=not one.over) if one.progress else "-",
            "-" if one.seconds_left is None else time_text(one.seconds_left),
            command if len(command) <= COMMAND_WIDTH else command[: COMMAND_WIDTH - 3] + "...",
        )
        for one in found
        for command in [join(one.job.command)]
    ]
    return "\n".join(columns(rows)) + "\n"


@click.command("logs")
@click.argument("job", shell_complete=job_ids)
@click.argument("task", required=False, shell_complete=tasks)
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended.")
@click.option(
    "-n",
    "--lines",
    callback=count(0),
    default=DEFAULT_LINES,
    show_default=True,
    metavar="N",
    help="Start with the last N lines.",
)
def logs(job: str, task: str | None, follow: bool, lines: int) -> int:
    """Prints the log of a TASK of JOB: chief (the default), worker-0, ... or all.

    `all` prints the log of every task after its name. With --follow the exit code is that of the job.
    """
    known = find_job(job, os.environ)
    if follow:
        return follow_log(known, _log_file(known, task or "chief"), lines)
    files = _existing_logs(known, task or "chief")
    for file in files:
        if len(files) > 1:
            write_text(STDOUT, f"==> {file.name} <==\n")
        _write(_last_lines(file, lines)[0])
    return 0


def follow_log(job: KnownJob, path: Path, lines: int) -> int:
    """Print a log as it grows until the job has ended, and return the exit code of the job.

    While the job waits, print the reason at every change and every ten seconds.
    """
    found, asked_s, wait_lines = status_of(job), time.monotonic(), WaitLines()
    position: int | None = None
    while True:
        waits = found.detail if found.state == "waiting" else ""
        if line := wait_lines.line(waits, found.news, asked_s):
            say(PROGRAM, line)
        if position is None and path.is_file():
            data, position = _last_lines(path, lines)
            _write(data)
        elif position is not None:
            position = _print_rest(path, position)
        if found.over:
            say(PROGRAM, f"job {job.job_id}: {state_text(found)}")
            if found.exit_code is not None:
                return found.exit_code
            return 0 if found.state == "done" else 1
        time.sleep(PRINT_INTERVAL_S)
        if time.monotonic() - asked_s >= STATE_INTERVAL_S:
            found, asked_s = status_of(job), time.monotonic()


def _log_file(job: KnownJob, task: str) -> Path:
    if task == "all":
        raise UsageError("--follow: got all tasks, expected one: name it, for example worker-0")
    name = task.replace(" ", "-")
    return Path(job.log_dir) / f"{'chief-0' if name == 'chief' else name}.log"


def _existing_logs(job: KnownJob, task: str) -> list[Path]:
    logs = sorted(Path(job.log_dir).glob("*.log"), key=_log_order)
    if not logs:
        raise CsrunError(
            f"job {job.job_id} has no logs yet in {job.log_dir}; expected a job that has started: see "
            f"'csrun status {job.job_id}', or wait with --follow"
        )
    if task == "all":
        return logs
    file = _log_file(job, task)
    if file not in logs:
        found = ", ".join(path.stem for path in logs)
        raise UsageError(f"no task {task!r} in job {job.job_id}; expected one of: {found}, all")
    return [file]


def _log_order(path: Path) -> tuple[bool, str, int]:
    role, _, number = path.stem.rpartition("-")
    return role != "chief", role, int(number) if number.isdigit() else 0


def _last_lines(path: Path, lines: int) -> tuple[bytes, int]:
    """Return the last lines of a file and its length."""
    # Read backwards in pieces: a log may be much larger than its last lines.
    with path.open("rb") as file:
        end = position = file.seek(0, os.SEEK_END)
        data = b""
        while position > 0 and data.count(b"\n") <= lines:
            step = min(CHUNK_BYTES, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    kept = data.splitlines(keepends=True)[-lines:] if lines else []
    return b"".join(kept), end


def _print_rest(path: Path, position: int) -> int:
    """Print the file from `position`, or from its start if it has become shorter; return its end."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(position if file.seek(0, os.SEEK_END) >= position else 0)
        while data := file.read(CHUNK_BYTES):
            _write(data)
        return file.tell()
    return position


def _write(data: bytes) -> None:
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(STDOUT, data) :]


@click.command("cancel")
@click.argument("job", shell_complete=job_ids)
@click.option(
    "--wait",
    "limit_s",
    callback=seconds,
    default=str(CANCEL_WAIT_S),
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the end of the job.",
)
def cancel(job: str, limit_s: float) -> int:
    """Ends JOB: asks its tasks to end, kills them after their grace period, and waits for the end.

    JOB is an id that csrun_wse has printed (or the start or end of one), the scheduler's number, or a log
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
        time.sleep(CANCEL_POLL_S)
        found = status_of(known)
    if not found.over:
        raise CsrunError(
            f"job {known.job_id} is still {found.state} {limit_s:g} s after the request to end it; expected "
            f"its end within the grace period: see 'csrun logs {known.job_id}', or wait longer with --wait"
        )
    say(PROGRAM, f"job {known.job_id}: {state_text(found)}")
    return 0
