"""The state of a job, from its record, its scheduler and its launcher's process."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any

from cs_toolkit.errors import ToolkitError
from cs_toolkit.log_lines import escape_controls
from csrun.errors import CsrunError
from csrun.jobs.progress import TrainingProgress, read_progress, time_text
from csrun.jobs.record import start_ticks
from csrun.jobs.registry import KnownJob, read_record, scheduler_number
from csrun.schedulers.base import QueueView, State
from csrun.schedulers.registry import scheduler

WAIT_LINE_INTERVAL_S = 10.0
FIRST_LOOK_S = 1.0
LOOK_INTERVAL_S = 5.0
_ENDED_BY_USER = {128 + signum for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job, as `csrun status` shows it.

    Attributes:
        detail: one sentence that explains the state; "" for none.
        news: the part of `detail` that is worth printing again when it changes.
        exit_code: of the launcher, once the job has ended.
        tasks: from the record; empty before the start.
        progress: of training; None if there is none yet.
        resume: how to continue a training run that has ended early; None for none.
    """

    job: KnownJob
    state: State
    detail: str
    news: str
    exit_code: int | None
    started: str | None
    ended: str | None
    scheduler_job_id: str
    nodes: str
    tasks: tuple[Mapping[str, Any], ...]
    progress: TrainingProgress | None = None
    resume: Mapping[str, Any] | None = None

    @property
    def over(self) -> bool:
        """True if the job has ended."""
        return self.state not in ("waiting", "running")

    @property
    def seconds_left(self) -> float | None:
        """Time to the last step of a running job; None if unknown."""
        return self.progress.seconds_left if self.progress and self.state == "running" else None

    def age_s(self, now_s: float) -> float | None:
        """Return seconds since the job was started or submitted; None if that is unknown.

        Args:
            now_s: seconds since the epoch.
        """
        # Clocks of two machines differ, and the entry may be of another one.
        return max(0.0, now_s - self.job.created_s) if self.job.created_s else None

    def to_json(self) -> dict[str, Any]:
        """Return the status for --json."""
        age_s = self.age_s(time.time())
        return {
            "job_id": self.job.job_id,
            "launcher": self.job.launcher,
            "scheduler_job_id": self.scheduler_job_id or None,
            "state": self.state,
            "detail": self.detail or None,
            "exit_code": self.exit_code,
            "started": self.started,
            "ended": self.ended,
            "age_s": None if age_s is None else round(age_s),
            "seconds_left": self.seconds_left,
            "nodes": self.nodes or None,
            "command": list(self.job.command),
            "log_dir": self.job.log_dir,
            "training": self.progress.to_json() if self.progress else None,
            "resume": dict(self.resume) if self.resume else None,
            "tasks": [dict(task) for task in self.tasks],
        }


def job_status(
    job: KnownJob,
    record: Mapping[str, Any] | None,
    view: QueueView | None,
    launcher_lives: bool | None,
    progress: TrainingProgress | None = None,
) -> JobStatus:
    """Combine everything that is known about a job.

    Args:
        job: its entry in the registry.
        record: its job.json; None before its start.
        view: of the scheduler; None if it was not asked or has forgotten the job.
        launcher_lives: whether the launcher's process exists; None if that is unknown here.
        progress: of training, as the chief has written it.
    """
    record = record or {}
    state, detail = _state(record, view, launcher_lives, submitted=bool(job.scheduler_job_id))
    tasks: Sequence[Mapping[str, Any]] = record.get("tasks") or ()
    return JobStatus(
        job=job,
        state=state,
        detail=detail,
        news=view.news if view else "",
        exit_code=record.get("exit_code"),
        started=record.get("started"),
        ended=record.get("ended"),
        scheduler_job_id=str(record.get("scheduler_job_id") or job.scheduler_job_id),
        nodes=view.nodes if view else "",
        tasks=tuple(tasks),
        progress=progress,
        resume=record.get("resume"),
    )


def _state(
    record: Mapping[str, Any], view: QueueView | None, launcher_lives: bool | None, *, submitted: bool
) -> tuple[State, str]:
    if view and view.state == "waiting":
        return "waiting", view.detail  # a requeued job has the record of its previous run
    # A submitted job whose record has ended may be about to go back into the queue.
    if record.get("ended") and not (view and view.state == "running" and submitted):
        exit_code, reason = int(record.get("exit_code") or 0), view.cause if view else ""
        if exit_code == 0:
            return "done", reason
        cancelled = exit_code in _ENDED_BY_USER or (view is not None and view.state == "cancelled")
        return "cancelled" if cancelled else "failed", reason
    if view:
        return view.state, view.detail
    if launcher_lives:
        return "running" if record else "waiting", ""
    if not record:
        return "lost", "it never started, and its scheduler does not know it any more"
    if launcher_lives is None:
        return (
            "running",
            "according to its record; its launcher is on another machine, which cannot be checked from here",
        )
    return "lost", "its launcher has ended without recording it: it was killed, or the machine went down"


def status_of(job: KnownJob) -> JobStatus:
    """Return the status of one job.

    Raises:
        ToolkitError: its scheduler does not answer.
    """
    return statuses_of([job])[0]


def statuses_of(
    jobs: Iterable[KnownJob], complain: Callable[[ToolkitError], None] | None = None
) -> list[JobStatus]:
    """Return the status of several jobs, with one query per scheduler.

    Args:
        jobs: from the registry.
        complain: called with the error of a scheduler that does not answer; the status of its jobs is then
            that of their records.

    Raises:
        ToolkitError: a scheduler does not answer, and there is no `complain`.
    """
    records = [(job, read_record(job)) for job in jobs]
    numbers: dict[str, set[str]] = defaultdict(set)
    for job, record in records:
        if number := scheduler_number(job, record):
            numbers[job.launcher].add(number)
    views: dict[str, Mapping[str, QueueView]] = {}
    for launcher, its_jobs in numbers.items():
        try:
            views[launcher] = scheduler(launcher).views(its_jobs, os.environ)
        except ToolkitError as error:
            if complain is None:
                raise
            complain(error)
    return [
        job_status(
            job,
            record,
            views.get(job.launcher, {}).get(scheduler_number(job, record)),
            launcher_lives(record),
            read_progress(Path(job.log_dir)),
        )
        for job, record in records
    ]


def state_text(found: JobStatus, with_detail: bool = True) -> str:
    """Return the state in a few words."""
    code = f", exit code {found.exit_code}" if found.over and found.exit_code else ""
    detail = f": {found.detail}" if found.detail and with_detail else ""
    return f"{found.state}{code}{detail}"


def status_text(found: JobStatus) -> str:
    """Return the status of one job for a terminal."""
    number = ""
    if found.scheduler_job_id:
        try:
            title = scheduler(found.job.launcher).title
        except ToolkitError:  # the package of the scheduler is no longer installed
            title = found.job.launcher
        number = f" ({title} job {found.scheduler_job_id})"
    training = None
    if found.progress is not None:
        training = (found.progress.resume_hint() if found.over else None) or found.progress.summary()
    facts = {
        "job": found.job.job_id + number,
        "state": state_text(found),
        "nodes": found.nodes,
        "started": found.started,
        "ended": found.ended,
        "age": None if (age_s := found.age_s(time.time())) is None else time_text(age_s),
        "training": training,
        "continue": join((found.resume or {}).get("command") or ()),
        "command": join(found.job.command),
        "logs": found.job.log_dir,
    }
    lines = [f"{name:<9} {escape_controls(str(value))}" for name, value in facts.items() if value]
    if found.tasks:
        restarted = any(task.get("restarts") for task in found.tasks)
        rows = [("task", "host", "state", "exit code", *(["restarts"] if restarted else []))]
        for task in found.tasks:
            name = "chief" if task.get("role") == "chief" else f"worker {task.get('index')}"
            code = "-" if task.get("exit_code") is None else str(task.get("exit_code"))
            restarts = [str(task.get("restarts") or "-")] if restarted else []
            rows.append((name, str(task.get("host") or "-"), str(task.get("state")), code, *restarts))
        lines += ["", *columns(rows)]
    return "\n".join(lines) + "\n"


def columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Format rows as lines with aligned columns; control characters become escapes."""
    # The record of a job that another user has written may contain sequences for the terminal.
    table = [tuple(map(escape_controls, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def launcher_lives(record: Mapping[str, Any] | None) -> bool | None:
    """Return whether the launcher that wrote the record still runs; None if that is unknown here."""
    if not record or record.get("host") != socket.gethostname():
        return None
    ticks = record.get("launcher_start_ticks")
    return ticks is not None and start_ticks(int(record.get("launcher_pid") or 0)) == ticks


def end_launcher(job: KnownJob, record: Mapping[str, Any]) -> None:
    """Send SIGTERM to the launcher, which then ends its job.

    Raises:
        CsrunError: the launcher is not a living process of this machine.
    """
    if not launcher_lives(record):
        host = record.get("host", "another machine")
        raise CsrunError(
            f"job {job.job_id} runs on {host}; expected a call there: a local job can be ended only on its "
            f"own machine"
        )
    os.kill(int(record["launcher_pid"]), signal.SIGTERM)


class WaitLines:
    """Decides when to print why a job waits: at every change, and every ten seconds with the time waited."""

    def __init__(self) -> None:
        self._news = ""
        self._since_s: float | None = None
        self._next_s = 0.0

    def line(self, sentence: str, news: str, now_s: float) -> str | None:
        """Return the line that is due, if one is.

        Args:
            sentence: why the job waits; "" if it does not wait.
            news: the part of the sentence that is worth a line when it changes.
            now_s: monotonic time.
        """
        if not sentence:
            self._news, self._since_s = "", None
            return None
        if self._since_s is None:
            self._since_s = now_s
        elif news == self._news and now_s < self._next_s:
            return None
        self._news, self._next_s = news, now_s + WAIT_LINE_INTERVAL_S
        waited_s = now_s - self._since_s
        return sentence if waited_s < 1 else f"{sentence}; it has waited for {waited_s:.0f} s"


class QueueWatch:
    """Collects lines about a waiting job in a separate thread: at every change, and every ten seconds.

    Args:
        sentence: returns why the job waits, "" if it does not; the error of a scheduler is a line, too.
        news: returns the part of a sentence that is worth printing again when it changes.
    """

    def __init__(self, sentence: Callable[[], str], news: Callable[[str], str] = str) -> None:
        self._sentence = sentence
        self._news = news
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()
        # A scheduler that hangs must not block the launcher.
        self._thread = threading.Thread(target=self._look, name="queue watch", daemon=True)
        self._thread.start()

    def lines(self) -> list[str]:
        """Return the lines since the last call."""
        found = []
        while True:
            try:
                found.append(self._lines.get_nowait())
            except queue.Empty:
                return found

    def stop(self) -> None:
        """Stop monitoring, without waiting for a query in progress."""
        self._ended.set()

    def _look(self) -> None:
        wait_lines = WaitLines()
        pause_s = FIRST_LOOK_S
        while not self._ended.wait(pause_s):
            pause_s = LOOK_INTERVAL_S
            try:
                line = self._sentence()
            except ToolkitError as error:
                line = str(error)
            if due := wait_lines.line(line, self._news(line), time.monotonic()):
                self._lines.put(due)
