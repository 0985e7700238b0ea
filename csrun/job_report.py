"""What the user sees of a running job, and its record: the part that all ways of running share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from csrun.console import STDERR, STDOUT, Console, wants_colour
from csrun.jobs import JobRecord, timestamp
from csrun.output import TaskOutput, task_prefix
from csrun.schedulers.base import LaunchPlan
from csrun.supervisor import Action, ReportFailure, ReportLoss, Supervisor
from csrun.tasks.signals import INTERRUPTS
from csrun.training_progress import read_progress

PROGRAM = "csrun_wse"
CONSOLE_POLL_S = 0.02
INTERRUPTED_FLUSH_S = 2.0


class JobReport:
    """Prefixes and shows the tasks' output, says what happens to the job, and keeps job.json.

    It starts the console's thread: create it when no process has to be forked any more.

    Args:
        plan: the job.
        record: of the job; the report writes it at every change.
        colour: whether prefixes are coloured; by default where stdout is a terminal.
    """

    def __init__(self, plan: LaunchPlan, record: JobRecord, colour: bool | None = None) -> None:
        self._plan = plan
        self._record = record
        self._record_broken = False
        coloured = wants_colour(STDOUT) if colour is None else colour
        self._outputs = [TaskOutput(task_prefix(task.label, task.rank, coloured)) for task in plan.tasks]
        self._console = Console()
        self.write_record()

    @property
    def full(self) -> bool:
        """Whether the terminal is too slow: more output should not be taken now."""
        return self._console.full

    @property
    def waiting(self) -> bool:
        """Whether a later `tick` may show something of a task."""
        return any(output.waiting for output in self._outputs)

    def output(self, rank: int, data: bytes, now_s: float) -> None:
        """Takes what a task has written."""
        self._show(self._outputs[rank].feed(data, now_s))

    def output_ended(self, rank: int, now_s: float) -> None:
        """Takes the end of a task's output."""
        self._show(self._outputs[rank].finish(now_s))

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        for output in self._outputs:
            self._show(output.tick(now_s))

    def started(self, rank: int, pid: int, host: str | None = None) -> None:
        """A task runs; the record is written by the caller, once for many."""
        task = self._record.tasks[rank]
        task.state, task.pid, task.host = "running", pid, host

    def ended(self, rank: int, exit_code: int | None) -> None:
        """A task has ended; without an exit code it is lost."""
        task = self._record.tasks[rank]
        task.state = "ended" if exit_code is not None else "lost"
        task.exit_code, task.ended = exit_code, timestamp()
        self.write_record()

    def act(self, actions: list[Action]) -> None:
        """Tells the user what the supervisor wants told."""
        for action in actions:
            if isinstance(action, ReportFailure):
                self._failure(action.rank, f"failed with {exit_code_text(action.exit_code)}")
            elif isinstance(action, ReportLoss):
                self._failure(action.rank, f"is lost: {action.reason}")
            else:
                self.say(action.text)

    def say(self, text: str) -> None:
        """Says one line of the launcher."""
        self._console.write(STDERR, f"{PROGRAM}: {text}\n")

    def say_raw(self, text: str) -> None:
        """Writes text to stderr as it is."""
        self._console.write(STDERR, text)

    def write_record(self) -> None:
        """Writes job.json; that it cannot be written is said once."""
        if self._record_broken:
            return
        try:
            self._record.write()
        except OSError as error:
            self._record_broken = True
            self.say(
                f"cannot write the record of the job into {self._plan.log_dir}: {error.strerror}; it goes on"
            )

    def conclude(self, supervisor: Supervisor, read_signals: Callable[[], list[signal.Signals]]) -> None:
        """Says how the job has ended and waits until everything is shown; a signal ends that wait."""
        self._record.ended, self._record.exit_code = timestamp(), supervisor.exit_code
        self.write_record()
        self.say(f"{supervisor.outcome}; logs: {shown(self._plan.log_dir, self._plan)}")
        if supervisor.interrupted_by:
            progress = read_progress(self._plan.log_dir)
            if progress is not None and (text := progress.how_to_go_on()):
                self.say(text)
            self._console.close(INTERRUPTED_FLUSH_S)
            return
        # As for any program in a pipeline, a slow reader is waited for; only a signal ends that.
        while not self._console.close(CONSOLE_POLL_S):
            if set(read_signals()) & set(INTERRUPTS):
                return

    def close(self) -> None:
        """Shows what waits, for a job that never began."""
        self._console.close(INTERRUPTED_FLUSH_S)

    def _failure(self, rank: int, how: str) -> None:
        task, tail = self._plan.tasks[rank], self._outputs[rank].tail
        log = shown(task.log_path, self._plan)
        host = self._record.tasks[rank].host
        where = f" on {host}" if host else ""
        self.say(
            f"{task.label}{where} {how}; "
            + (f"its last lines (all of them: {log}):" if tail else f"it has written nothing (log: {log})")
        )
        self.say_raw("".join(f"    {line}\n" for line in tail))

    def _show(self, text: str) -> None:
        self._console.write(STDOUT, text)


def cast(plan: LaunchPlan) -> str:
    """Who plays in the job, in words."""
    workers = len(plan.tasks) - 1
    if workers == 0:
        who = "one task, chief and worker in one"
    else:
        who = f"1 chief, {workers} worker{'s' if workers > 1 else ''}"
    return f"{who}; job {plan.job_id}, logs in {shown(plan.log_dir, plan)}"


def shown(path: Path, plan: LaunchPlan) -> Path:
    """The path as short as it is clear: relative below the working directory."""
    with suppress(ValueError):
        return path.relative_to(plan.cwd)
    return path


def exit_code_text(code: int) -> str:
    """An exit code with the signal that it stands for in a shell."""
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
    hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
    return f"exit code {code} ({name}{hint})"
