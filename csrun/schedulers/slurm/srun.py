"""The srun of a job: the lines that it writes, and a guard that ends it when the launcher is killed."""

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
from csrun.schedulers.slurm.client import shortened_complaint
from csrun.tasks.processes import detach

AGENTS_LIMIT_S = 20.0
"""Agents notice the launcher's death themselves, end their tasks properly, and srun with that."""
SRUN_LIMIT_S = 5.0
POLL_S = 0.1


class SrunGuard:
    """A process that outlives a launcher that was killed. Start it before any thread.

    srun itself must not get a signal then while tasks run: Slurm would kill all of their processes at once,
    and the agents with them, so that what is born in that moment would survive.

    Args:
        srun: pid of our child.
        close: descriptors that the guard must not hold open.
    """

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
        """From now on agents have tasks to end."""
        self._write(b"r")

    def dismiss(self) -> None:
        """Ends the guard; srun has ended."""
        self._write(b".")
        os.close(self._write_end)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError):
            os.write(self._write_end, data)


def _guard(read_end: int, srun: int, ticks: int | None) -> None:
    running = False
    while said := os.read(read_end, 1):
        if said == b".":
            return
        running = True

    def lives() -> bool:
        # A pid alone may belong to another process by now.
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


KEPT_LINES = 50

_JOB = re.compile(r"\bjob (\d+) (?:queued and waiting|has been allocated)|Granted job allocation (\d+)")
_TASK_FAILED = re.compile(r"task[s ].*: (?:Exited with exit code|Killed|Terminated|Out Of Memory)|execve\(\)")
_WITHDRAWN = re.compile(
    r"Job has been cancelled|has been revoked|Job cancelled|Force Terminated (?:job |JobId=)"
)
_REASON = re.compile(r"CANCELLED AT \S+ DUE TO (.+?)(?:, SEE .*)? \*\*\*")
# The agents say better, and first, how their tasks have ended.
_KNOWN_BETTER = re.compile(
    r"task[s ].*: (?:Exited with exit code|Terminated|Killed)|Job step aborted|Terminating \w*Step"
    r"|Force Terminated|forcing job termination|\*\*\* (?:STEP|JOB)|interrupt \(one more"
)


class SrunLines:
    """Takes srun's stderr.

    Attributes:
        job_id: Slurm's number of the job; "" until srun has said it.
        task_failed: it has reported the end of a task.
        withdrawn: the job was cancelled before it had nodes.
        cancel_reason: why Slurm has ended the job, as far as it says that: "time limit".
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
    def last_words(self) -> str:
        """The last lines in short."""
        return shortened_complaint(self.text)

    def feed(self, data: bytes, ending: bool) -> list[bytes]:
        """Takes a piece of the stream; the lines to show, without srun's name.

        Args:
            data: what has come.
            ending: the job is being ended, and srun's comments on that are of no use.
        """
        shown = []
        for line, whole in self._splitter.feed(data):
            text = line.decode(errors="replace")
            self._kept.append(text)
            self._learn(text)
            if whole and not (_KNOWN_BETTER.search(text) and (ending or "exit code" in text)):
                shown.append(line.removeprefix(b"srun: "))
        return shown

    def _learn(self, text: str) -> None:
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
