"""The srun of a job: a parser of its messages, and a guard that ends it when the launcher is killed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from csrun.jobs.output import LineSplitter
from csrun.jobs.record import start_ticks
from csrun.schedulers.slurm.client import shorten_error
from csrun.tasks.processes import detach

AGENTS_LIMIT_S = 20.0  # agents notice the death of the launcher and end their tasks, after which srun ends
SRUN_LIMIT_S = 5.0
POLL_S = 0.1
KEPT_LINES = 50


class SrunGuard:
    """A process that ends srun when the launcher is killed. Create it before any thread.

    Args:
        srun: pid of srun, a child of the launcher.
        close: descriptors that the guard must not keep open.
    """

    # While tasks run, srun first gets time instead of a signal: on a signal Slurm kills all their processes
    # and the agents at once, and processes that are forked at that moment survive.

    def __init__(self, srun: int, close: Iterable[int]) -> None:
        read_end, self._write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write_end)
                for descriptor in close:
                    os.close(descriptor)
                detach()
                _guard(read_end, srun, start_ticks(srun))
            finally:
                os._exit(0)
        os.close(read_end)

    def tasks_run(self) -> None:
        """Tell the guard that agents have tasks to end."""
        self._write(b"r")

    def dismiss(self) -> None:
        """End the guard; srun has ended."""
        self._write(b".")
        os.close(self._write_end)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._write_end, data)


def _guard(read_end: int, srun: int, ticks: int | None) -> None:
    running = False
    while message := os.read(read_end, 1):
        if message == b".":
            return
        running = True

    def lives() -> bool:
        # The pid may have been reused.
        return ticks is not None and start_ticks(srun) == ticks

    if running:
        _wait_while(lives, AGENTS_LIMIT_S)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if lives():
            with suppress(ProcessLookupError):
                os.kill(srun, signum)
            _wait_while(lives, SRUN_LIMIT_S)


def _wait_while(condition: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while condition() and time.monotonic() < end_s:
        time.sleep(POLL_S)


_JOB = re.compile(r"\bjob (\d+) (?:queued and waiting|has been allocated)|Granted job allocation (\d+)")
_TASK_FAILED = re.compile(r"task[s ].*: (?:Exited with exit code|Killed|Terminated|Out Of Memory)|execve\(\)")
_WITHDRAWN = re.compile(
    r"Job has been cancelled|has been revoked|Job cancelled|Force Terminated (?:job |JobId=)"
)
_REASON = re.compile(r"CANCELLED AT \S+ DUE TO (.+?)(?:, SEE .*)? \*\*\*")
# The agents report the end of their tasks earlier and in more detail.
_REPORTED_BY_AGENTS = re.compile(
    r"task[s ].*: (?:Exited with exit code|Terminated|Killed)|Job step aborted|Terminating \w*Step"
    r"|Force Terminated|forcing job termination|\*\*\* (?:STEP|JOB)|interrupt \(one more"
)


class SrunLines:
    """Parser of srun's stderr.

    Attributes:
        job_id: Slurm's number of the job; "" until srun has printed it.
        task_failed: srun has reported the end of a task.
        withdrawn: the job was cancelled before it had nodes.
        cancel_reason: why Slurm has ended the job, such as "time limit"; "" if unknown.
    """

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self.job_id = ""
        self.task_failed = False
        self.withdrawn = False
        self.cancel_reason = ""

    @property
    def text(self) -> str:
        """The last lines."""
        return "\n".join(self._kept)

    @property
    def summary(self) -> str:
        """The last lines, shortened."""
        return shorten_error(self.text)

    def feed(self, data: bytes, ending: bool) -> list[bytes]:
        """Parse a piece of the stream and return the lines to print, without the prefix "srun: ".

        Args:
            data: the next bytes.
            ending: the job is being ended, so messages of srun about that are dropped.
        """
        printed = []
        for line, whole in self._splitter.feed(data):
            text = line.decode(errors="replace")
            self._kept.append(text)
            self._parse(text)
            if whole and not (_REPORTED_BY_AGENTS.search(text) and (ending or "exit code" in text)):
                printed.append(line.removeprefix(b"srun: "))
        return printed

    def _parse(self, text: str) -> None:
        found = _JOB.search(text)
        if found and not self.job_id:
            self.job_id = found[1] or found[2]
        if _TASK_FAILED.search(text):
            self.task_failed = True
        if _WITHDRAWN.search(text):
            self.withdrawn = True
        reason = _REASON.search(text)
        if reason:
            self.cancel_reason = reason[1].lower()
