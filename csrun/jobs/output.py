"""What the user sees of a running job, and its record: the part that all ways of running share."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from csrun.console import STDERR, STDOUT, Console, wants_color
from csrun.jobs.progress import read_progress
from csrun.jobs.record import JobRecord, timestamp
from csrun.jobs.supervisor import Action, ReportFailure, ReportLoss, Supervisor
from csrun.schedulers.base import LaunchPlan
from csrun.tasks.signals import INTERRUPTS

PROGRAM = "csrun_wse"
CONSOLE_POLL_S = 0.02
INTERRUPTED_FLUSH_S = 2.0


class JobReport:
    """Prefixes and shows the tasks' output, says what happens to the job, and keeps job.json.

    It starts the console's thread: create it when no process has to be forked any more.

    Args:
        plan: the job.
        record: of the job; the report writes it at every change.
        colour: whether prefixes are colored; by default where stdout is a terminal.
    """

    def __init__(self, plan: LaunchPlan, record: JobRecord, colour: bool | None = None) -> None:
        self._plan = plan
        self._record = record
        self._record_broken = False
        colored = wants_color(STDOUT) if colour is None else colour
        self._outputs = [TaskOutput(task_prefix(task.label, task.rank, colored)) for task in plan.tasks]
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
        self.say(f"{supervisor.outcome}; logs: {relative_path(self._plan.log_dir, self._plan)}")
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
        log = relative_path(task.log_path, self._plan)
        host = self._record.tasks[rank].host
        where = f" on {host}" if host else ""
        self.say(
            f"{task.label}{where} {how}; "
            + (f"its last lines (all of them: {log}):" if tail else f"it has written nothing (log: {log})")
        )
        self.say_raw("".join(f"    {line}\n" for line in tail))

    def _show(self, text: str) -> None:
        self._console.write(STDOUT, text)


def describe_tasks(plan: LaunchPlan) -> str:
    """Who plays in the job, in words."""
    workers = len(plan.tasks) - 1
    if workers == 0:
        who = "one task, chief and worker in one"
    else:
        who = f"1 chief, {workers} worker{'s' if workers > 1 else ''}"
    return f"{who}; job {plan.job_id}, logs in {relative_path(plan.log_dir, plan)}"


def relative_path(path: Path, plan: LaunchPlan) -> Path:
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


MAX_LINE_BYTES = 16_384
"""Longer lines are shown in pieces, so that a program that never ends its line costs no memory."""

PROGRESS_INTERVAL_S = 1.0
"""A task's progress display is shown at most this often."""

TAIL_LINES = 20
MAX_TAIL_LINE = 2_000

_COLOURS = ("36", "32", "33", "35", "34", "96", "92", "93", "95", "94")
_RESET = "\x1b[0m"
# What TensorFlow's C++ says at its start about how it was built and what it finds; errors are E and F.
_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|[IW]0000 00:00:\d+\.\d+ +\d+ [\w/.-]+:\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] (?:tensorflow|external)/"
    rb"|To enable the following instructions: .*, rebuild TensorFlow with the appropriate compiler flags\."
)
# Everything that could move the cursor or change the terminal, except tabs and colours (SGR sequences).
_UNSAFE = re.compile(r"(\x1b\[[0-9;:]*m)|[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class LineSplitter:
    """Cuts a stream of bytes into lines, whatever pieces it arrives in.

    `feed` yields (text, is_line): whole lines without their end, and the progress states between them.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def pending(self) -> bytes:
        """What has come since the last line or state ended."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Takes the next piece of the stream."""
        self._pending += data
        while (end := self._next_end()) is not None:
            text, length, is_line = end
            del self._pending[:length]
            # "\r" first, as progress displays write it, ends nothing that could be shown.
            if is_line or text:
                yield text, is_line

    def finish(self) -> Iterator[tuple[bytes, bool]]:
        """Takes the end of the stream: what is pending becomes the last line."""
        text = bytes(self._pending).rstrip(b"\r")
        self._pending.clear()
        if text:
            yield text, True

    def _next_end(self) -> tuple[bytes, int, bool] | None:
        """(text, its length with the end, is_line) of what is complete; None where that is nothing."""
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
            cut = _character_boundary(buffer, MAX_LINE_BYTES)
            return bytes(buffer[:cut]), cut, True
        return None


def _character_boundary(buffer: bytearray, position: int) -> int:
    """The last position from `position` down that does not cut a UTF-8 character (at most 3 bytes back)."""
    for cut in range(position, position - 4, -1):
        if buffer[cut] & 0xC0 != 0x80:
            return cut
    return position


def printable(line: bytes) -> str:
    """The line as text that leaves a terminal intact: bytes and control characters become escapes.

    Tabs stay, and colours, which are switched off at the end of the line.
    """
    text = line.decode("utf-8", "backslashreplace")
    text = _UNSAFE.sub(lambda found: found[1] or f"\\x{ord(found[0]):02x}", text)
    return text + _RESET if "\x1b" in text else text


def task_prefix(label: str, rank: int, colored: bool) -> str:
    """What stands before each line of a task, `chief | ` or `worker 0 | `."""
    if not colored:
        return f"{label} | "
    return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label} |{_RESET} "


class TaskOutput:
    """The output of one task on its way to the terminal.

    Every method returns the text to be shown now, whole lines with the task's prefix, possibly none.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._splitter = LineSplitter()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._state = b""
        self._state_since_s = 0.0
        self._shown_at_s = float("-inf")
        self._shown = b""

    @property
    def tail(self) -> list[str]:
        """The last lines, oldest first, cut to a readable length."""
        lines = [printable(line) for line in self._tail]
        return [
            line if len(line) <= MAX_TAIL_LINE else line[:MAX_TAIL_LINE] + _RESET + " ..." for line in lines
        ]

    def feed(self, data: bytes, now_s: float) -> str:
        """Takes what the task has written; lines come at once, of its progress states the newest waits."""
        shown = self._take(self._splitter.feed(data), now_s)
        pending = self._splitter.pending
        if pending:
            self._wait(pending, now_s)
        return shown + self.tick(now_s)

    def tick(self, now_s: float) -> str:
        """Shows the waiting state, if it has rested or is due.

        The state of a display that changes all the time is shown once in PROGRESS_INTERVAL_S, and so is the
        beginning of a line whose end takes longer than that, such as "compiling ...".
        """
        if not self._state or self._state == self._shown:
            return ""
        if now_s - max(self._state_since_s, self._shown_at_s) < PROGRESS_INTERVAL_S:
            return ""
        self._shown, self._shown_at_s = self._state, now_s
        return self._line(self._state)

    @property
    def waiting(self) -> bool:
        """Whether a later `tick` may show something."""
        return bool(self._state) and self._state != self._shown

    def finish(self, now_s: float) -> str:
        """Takes the end of the output; an unfinished line is shown as one."""
        return self._take(self._splitter.finish(), now_s)

    def _take(self, pieces: Iterator[tuple[bytes, bool]], now_s: float) -> str:
        lines = []
        for text, is_line in pieces:
            if is_line and _NOISE.match(text):
                self._state = self._shown = b""  # it is in the task's log
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
