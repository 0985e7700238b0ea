"""Terminal output and record of a running job, common to all schedulers.

`TaskOutput` and its parts are pure: bytes and times in, text out.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import join

from cs_toolkit.live_line import has_live_line, terminal_columns
from csrun.console import STDERR, STDOUT, Console, wants_color
from csrun.jobs.progress import ProgressFile, read_progress
from csrun.jobs.record import JobRecord, timestamp
from csrun.jobs.supervisor import Action, ReportFailure, ReportLoss, ReportRestart, Supervisor
from csrun.schedulers.base import LaunchPlan
from csrun.tasks.signals import INTERRUPTS

PROGRAM = "csrun_wse"
CONSOLE_POLL_S = 0.02
INTERRUPTED_FLUSH_S = 2.0
MAX_LINE_BYTES = (
    16_384  # longer lines are printed in pieces: a program that never ends its line costs no memory
)
PROGRESS_INTERVAL_S = 1.0  # shortest time between two states of a task's progress display
TAIL_LINES = 20
MAX_TAIL_LINE = 2_000

_COLORS = ("36", "32", "33", "35", "34", "96", "92", "93", "95", "94")
_RESET = "\x1b[0m"
# Messages of TensorFlow's C++ at its start about its build and the machine, without errors (E and F).
_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|[IW]0000 00:00:\d+\.\d+ +\d+ [\w/.-]+:\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] (?:tensorflow|external)/"
    rb"|To enable the following instructions: .*, rebuild TensorFlow with the appropriate compiler flags\."
    # The layout of the job, once for each task.
    rb"|\d\d:\d\d:\d\d INFO: TF_CONFIG environment variable: "
)
# What a worker runs and where, which the chief's line says for the job.
_START = re.compile(rb"\d\d:\d\d:\d\d INFO: (?:Running )?(?:run|train|eval|predict)\w* on ")
# Everything that moves the cursor or changes the terminal, except tabs and colors (SGR sequences).
_UNSAFE = re.compile(r"(\x1b\[[0-9;:]*m)|[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class JobReport:
    """Prints the output of the tasks with prefixes, reports events of the job, and writes job.json.

    It starts the thread of the console: create it after all forks.

    Args:
        plan: of the job.
        record: of the job; written at every change.
        color: color the prefixes; by default if stdout is a terminal.
    """

    def __init__(self, plan: LaunchPlan, record: JobRecord, color: bool | None = None) -> None:
        self._plan = plan
        self._record = record
        self._record_broken = False
        colored = wants_color(STDOUT) if color is None else color
        self._outputs = [
            TaskOutput(task_prefix(task.label, task.rank, colored), leads=task.rank == 0)
            for task in plan.tasks
        ]
        self._console = Console()
        # None where the progress is shown by the lines of the chief's log only.
        self._progress = ProgressFile(plan.log_dir) if has_live_line() else None
        self._progress_at_s = float("-inf")
        self.write_record()

    @property
    def full(self) -> bool:
        """True if the terminal is too slow for more output."""
        return self._console.full

    @property
    def waiting(self) -> bool:
        """True if a later `tick` may print output of a task, or change the live line."""
        return self._progress is not None or any(output.waiting for output in self._outputs)

    def output(self, rank: int, data: bytes, now_s: float) -> None:
        """Print output of a task."""
        self._show(self._outputs[rank].feed(data, now_s))

    def output_ended(self, rank: int, now_s: float) -> None:
        """Print the unfinished last line of a task."""
        self._show(self._outputs[rank].finish(now_s))

    def tick(self, now_s: float) -> None:
        """Print the output that is due, and show the progress."""
        for output in self._outputs:
            self._show(output.tick(now_s))
        if self._progress is not None and now_s - self._progress_at_s >= PROGRESS_INTERVAL_S / 2:
            self._progress_at_s = now_s
            progress = self._progress.read()
            shown = progress is not None and not progress.ended
            self._console.show(progress.live_text(terminal_columns()) if progress and shown else "")

    def record_start(self, rank: int, pid: int, host: str | None = None) -> None:
        """Record that a task runs; the caller then calls `write_record`."""
        # Once for all tasks: the record of a job of N tasks would otherwise be written N times at its start.
        task = self._record.tasks[rank]
        task.state, task.pid, task.host = "running", pid, host
        task.exit_code = task.ended = None

    def record_end(self, rank: int, exit_code: int | None) -> None:
        """Record the end of a task; without an exit code it is lost."""
        task = self._record.tasks[rank]
        task.state = "ended" if exit_code is not None else "lost"
        task.exit_code, task.ended = exit_code, timestamp()
        self.write_record()

    def act(self, actions: list[Action]) -> None:
        """Report the actions of the supervisor."""
        for action in actions:
            if isinstance(action, ReportFailure):
                restarts = self._record.tasks[action.rank].restarts
                after = f" after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
                self._failure(action.rank, f"failed with {exit_code_text(action.exit_code)}{after}")
            elif isinstance(action, ReportRestart):
                self._restart(action)
            elif isinstance(action, ReportLoss):
                self._failure(action.rank, f"is lost: {action.reason}")
            else:
                self.say(action.text)

    def say(self, text: str) -> None:
        """Print one line of the launcher."""
        self._console.write(STDERR, f"{PROGRAM}: {text}\n")

    def say_raw(self, text: str) -> None:
        """Print text to stderr unchanged."""
        self._console.write(STDERR, text)

    def write_record(self) -> None:
        """Write job.json; the first error is reported, later ones are ignored."""
        if self._record_broken:
            return
        try:
            self._record.write()
        except OSError as error:
            self._record_broken = True
            self.say(
                f"cannot write the record of the job into {self._plan.log_dir}: {error.strerror}; the job "
                "continues"
            )

    def conclude(self, supervisor: Supervisor, read_signals: Callable[[], list[signal.Signals]]) -> None:
        """Report how the job has ended and wait until everything is printed, or for a signal."""
        self._console.show("")
        self._record.ended, self._record.exit_code = timestamp(), supervisor.exit_code
        hints = self._find_resume(supervisor)
        for task in self._record.tasks:
            task.state = "ended" if task.state == "restarting" else task.state
        self.write_record()
        self.say(f"{supervisor.outcome}; logs: {relative_path(self._plan.log_dir, self._plan)}")
        for hint in hints:
            self.say(hint)
        if supervisor.interrupted_by:
            self._console.close(INTERRUPTED_FLUSH_S)
            return
        # As any program in a pipeline, wait for a slow reader until a signal comes.
        while not self._console.close(CONSOLE_POLL_S):
            if set(read_signals()) & set(INTERRUPTS):
                return

    def _find_resume(self, supervisor: Supervisor) -> list[str]:
        """Record how a training run that has ended early continues, and return the lines for the user."""
        if not (supervisor.failed or supervisor.interrupted_by):
            return []  # it has reached its end, or is requeued
        progress = read_progress(self._plan.log_dir)
        hint = progress.resume_hint() if progress else None
        if progress is None or hint is None:
            return []
        command = list(self._plan.launch) if progress.resumes else []
        self._record.resume = {
            "step": progress.step,
            "checkpoint_step": progress.checkpoint_step,
            "checkpoint": progress.checkpoint or None,
            "model_dir": progress.model_dir,
            "command": command or None,
            "hint": hint,
        }
        return [hint, *([f"to continue: {join(command)}"] if command else [])]

    def close(self) -> None:
        """Print the remaining output of a job that has not started."""
        self._console.close(INTERRUPTED_FLUSH_S)

    def _restart(self, action: ReportRestart) -> None:
        record = self._record.tasks[action.rank]
        record.state, record.restarts = "restarting", action.number
        self.write_record()
        progress = read_progress(self._plan.log_dir)
        step = f" after step {progress.step}" if progress else ""
        self.say(
            f"{self._name(action.rank)} {ending_text(action.exit_code)}{step}; "
            f"restart {action.number} of {action.limit} in {action.pause_s:g} s"
        )

    def _name(self, rank: int) -> str:
        host = self._record.tasks[rank].host
        return self._plan.tasks[rank].label + (f" on {host}" if host else "")

    def _failure(self, rank: int, how: str) -> None:
        task, tail = self._plan.tasks[rank], self._outputs[rank].tail
        log = relative_path(task.log_path, self._plan)
        self.say(
            f"{self._name(rank)} {how}; "
            + (f"its last lines (all of them: {log}):" if tail else f"it has written nothing (log: {log})")
        )
        self.say_raw("".join(f"    {line}\n" for line in tail))

    def _show(self, text: str) -> None:
        self._console.write(STDOUT, text)


def describe_tasks(plan: LaunchPlan) -> str:
    """Describe tasks, id and log directory of a job."""
    workers = len(plan.tasks) - 1
    if workers == 0:
        tasks = "one task, chief and worker in one"
    else:
        tasks = f"1 chief, {workers} worker{'s' if workers > 1 else ''}"
    return f"{tasks}; job {plan.job_id}, logs in {relative_path(plan.log_dir, plan)}"


def relative_path(path: Path, plan: LaunchPlan) -> Path:
    """Return a path below the working directory of the job relative to it."""
    with suppress(ValueError):
        return path.relative_to(plan.cwd)
    return path


_OUT_OF_MEMORY = "as the kernel does when memory runs out"


def exit_code_text(code: int) -> str:
    """Format an exit code with the signal that it means in a shell."""
    name = _signal_name(code)
    if name is None:
        return f"exit code {code}"
    return f"exit code {code} ({name}{f', {_OUT_OF_MEMORY}' if name == 'SIGKILL' else ''})"


def ending_text(code: int) -> str:
    """Return how a process has ended, as the predicate of a sentence."""
    name = _signal_name(code)
    if name is None:
        return f"ended with exit code {code}"
    return f"was killed by {name}{f' ({_OUT_OF_MEMORY})' if name == 'SIGKILL' else ''}"


def _signal_name(code: int) -> str | None:
    """Return the signal that an exit code means in a shell; None for none."""
    with suppress(ValueError):
        return signal.Signals(code - 128).name
    return None


class LineSplitter:
    """Splits a stream of bytes into lines.

    `feed` yields (text, is_line): whole lines without their end, and the states of a progress display.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def pending(self) -> bytes:
        """The bytes after the last whole line or state."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Split the next piece of the stream."""
        self._pending += data
        while (end := self._next_end()) is not None:
            text, length, is_line = end
            del self._pending[:length]
            # Progress displays start with "\r", which ends an empty state.
            if is_line or text:
                yield text, is_line

    def finish(self) -> Iterator[tuple[bytes, bool]]:
        """End the stream: the pending bytes are the last line."""
        text = bytes(self._pending).rstrip(b"\r")
        self._pending.clear()
        if text:
            yield text, True

    def _next_end(self) -> tuple[bytes, int, bool] | None:
        """Return (text, its length with the end, is_line) of the next whole line or state; None for none."""
        buffer = self._pending
        newline = buffer.find(b"\n", 0, MAX_LINE_BYTES + 1)
        limit = newline if newline >= 0 else min(len(buffer), MAX_LINE_BYTES)
        carriage_return = buffer.find(b"\r", 0, limit)
        if 0 <= carriage_return < limit:
            if carriage_return + 1 == newline:
                return bytes(buffer[:carriage_return]), newline + 1, True
            if carriage_return + 1 < len(buffer):
                return bytes(buffer[:carriage_return]), carriage_return + 1, False
            return None  # "\n" may follow
        if newline >= 0:
            return bytes(buffer[:newline]), newline + 1, True
        if len(buffer) > MAX_LINE_BYTES:
            # At most 3 bytes earlier, so that no UTF-8 character is split.
            cuts = range(MAX_LINE_BYTES, MAX_LINE_BYTES - 4, -1)
            cut = next((cut for cut in cuts if buffer[cut] & 0xC0 != 0x80), MAX_LINE_BYTES)
            return bytes(buffer[:cut]), cut, True
        return None


def printable(line: bytes) -> str:
    """Return a line as text that is safe for a terminal, with escapes for control characters and other bytes.

    Tabs and colors are kept; colors are reset at the end of the line.
    """
    text = line.decode("utf-8", "backslashreplace")
    text = _UNSAFE.sub(lambda found: found[1] or f"\\x{ord(found[0]):02x}", text)
    return text + _RESET if "\x1b" in text else text


def task_prefix(label: str, rank: int, colored: bool) -> str:
    """Return the prefix of each line of a task, `chief | ` or `worker 0 | `."""
    if not colored:
        return f"{label} | "
    return f"\x1b[{_COLORS[rank % len(_COLORS)]}m{label} |{_RESET} "


class TaskOutput:
    """The output of one task on its way to the terminal.

    The methods return the text to print now: whole lines with the prefix of the task, possibly none.

    Args:
        prefix: of every line.
        leads: the start of this task is shown; that of the others is only in their logs.
    """

    def __init__(self, prefix: str, *, leads: bool = True) -> None:
        self._prefix = prefix
        self._leads = leads
        self._splitter = LineSplitter()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._state = b""
        self._state_since_s = 0.0
        self._shown_at_s = float("-inf")
        self._shown = b""

    @property
    def tail(self) -> list[str]:
        """The last lines, oldest first, truncated to a readable length."""
        lines = [printable(line) for line in self._tail]
        return [
            line if len(line) <= MAX_TAIL_LINE else line[:MAX_TAIL_LINE] + _RESET + " ..." for line in lines
        ]

    def feed(self, data: bytes, now_s: float) -> str:
        """Take output of the task: lines are due now, the newest state of its progress display later."""
        text = self._take(self._splitter.feed(data), now_s)
        pending = self._splitter.pending
        if pending:
            self._wait(pending, now_s)
        return text + self.tick(now_s)

    def tick(self, now_s: float) -> str:
        """Return the waiting state if it is due.

        The states of a progress display are printed at most once in PROGRESS_INTERVAL_S; so is the start of a
        line that takes longer, such as "compiling ...".
        """
        if not self._state or self._state == self._shown:
            return ""
        if now_s - max(self._state_since_s, self._shown_at_s) < PROGRESS_INTERVAL_S:
            return ""
        self._shown, self._shown_at_s = self._state, now_s
        return self._line(self._state)

    @property
    def waiting(self) -> bool:
        """True if a later `tick` may return text."""
        return bool(self._state) and self._state != self._shown

    def finish(self, now_s: float) -> str:
        """End the output; an unfinished line is returned as a line."""
        return self._take(self._splitter.finish(), now_s)

    def _take(self, pieces: Iterator[tuple[bytes, bool]], now_s: float) -> str:
        lines = []
        for text, is_line in pieces:
            if is_line and (_NOISE.match(text) or (not self._leads and _START.match(text))):
                self._state = self._shown = b""  # only in the task's log
            elif is_line:
                self._state = self._shown = b""
                self._tail.append(text)
                lines.append(self._line(text))
            else:
                self._wait(text, now_s)
        return "".join(lines)

    def _wait(self, state: bytes, now_s: float) -> None:
        if not self._state:
            self._state_since_s = now_s
        self._state = state

    def _line(self, text: bytes) -> str:
        return f"{self._prefix}{printable(text)}\n"
