"""csrun logs: what the tasks of a job have written."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import click

from cs_toolkit.errors import UsageError
from csrun.commands.completion import job_ids, tasks
from csrun.commands.flags import count
from csrun.console import STDOUT, say, write_text
from csrun.errors import CsrunError
from csrun.jobs.registry import KnownJob, find_job
from csrun.jobs.state import JobStatus
from csrun.jobs.status import WaitLines, state_text, status_of

PROGRAM = "csrun"
DEFAULT_LINES = "20"
CHUNK_BYTES = 65_536
PRINT_INTERVAL_S = 0.2
LOOK_INTERVAL_S = 2.0
"""A scheduler serves everybody: it is asked for the job's state less often than the log is read."""


@click.command("logs")
@click.argument("job", shell_complete=job_ids)
@click.argument("task", required=False, shell_complete=tasks)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "-n",
    "--lines",
    callback=count(0),
    default=DEFAULT_LINES,
    show_default=True,
    metavar="N",
    help="Begin with the last N lines.",
)
def logs(job: str, task: str | None, follow: bool, lines: int) -> int:
    """Prints the log of a TASK of JOB: chief (the default), worker-0, ... or all.

    `all` shows every task's log under its name. With --follow the exit code is that of the job.
    """
    known = find_job(job, os.environ)
    if follow:
        return follow_log(known, _file_of(known, task or "chief"), lines)
    files = _existing_files(known, task or "chief")
    for file in files:
        if len(files) > 1:
            write_text(STDOUT, f"==> {file.name} <==\n")
        _write(_last_lines(file, lines)[0])
    return 0


def follow_log(job: KnownJob, path: Path, lines: int) -> int:
    """Prints a log as it grows until the job has ended; returns the job's exit code.

    While the job waits, what it waits for is said at every change and every ten seconds.
    """
    found, looked_s, due = status_of(job), time.monotonic(), WaitLines()
    position: int | None = None
    while True:
        waits = found.detail if found.state == "waiting" else ""
        if line := due.line(waits, found.news, looked_s):
            say(PROGRAM, line)
        if position is None and path.is_file():
            data, position = _last_lines(path, lines)
            _write(data)
        elif position is not None:
            position = _print_from(path, position)
        if found.over:
            say(PROGRAM, f"job {job.job_id}: {state_text(found)}")
            return _exit_code(found)
        time.sleep(PRINT_INTERVAL_S)
        if time.monotonic() - looked_s >= LOOK_INTERVAL_S:
            found, looked_s = status_of(job), time.monotonic()


def _exit_code(found: JobStatus) -> int:
    if found.exit_code is not None:
        return found.exit_code
    return 0 if found.state == "done" else 1


def _file_of(job: KnownJob, task: str) -> Path:
    if task == "all":
        raise UsageError("--follow: got all tasks, expected one: name it, for example worker-0")
    name = task.replace(" ", "-")
    return Path(job.log_dir) / f"{'chief-0' if name == 'chief' else name}.log"


def _existing_files(job: KnownJob, task: str) -> list[Path]:
    everything = sorted(Path(job.log_dir).glob("*.log"), key=_log_order)
    if not everything:
        raise CsrunError(
            f"job {job.job_id} has no logs yet in {job.log_dir}; expected a job that has started: see "
            f"'csrun status {job.job_id}', or wait with --follow"
        )
    if task == "all":
        return everything
    file = _file_of(job, task)
    if file not in everything:
        found = ", ".join(path.stem for path in everything)
        raise UsageError(f"no task {task!r} in job {job.job_id}; expected one of: {found}, all")
    return [file]


def _log_order(path: Path) -> tuple[bool, str, int]:
    role, _, number = path.stem.rpartition("-")
    return role != "chief", role, int(number) if number.isdigit() else 0


def _last_lines(path: Path, lines: int) -> tuple[bytes, int]:
    """(the last lines, the position behind them) of a file."""
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


def _print_from(path: Path, position: int) -> int:
    """Prints what has been added; returns the new end. A file that is shorter now was begun again."""
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
