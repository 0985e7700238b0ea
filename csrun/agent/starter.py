"""The part of a scheduler in the job loop: the command that starts the agents, and its view of the job."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections import deque

from csrun.errors import CsrunError
from csrun.jobs.output import LineSplitter

KEPT_LINES = 50


class Starter(ABC):
    """The scheduler's command that starts an agent for every task, and ends after the last of them.

    A scheduler derives a class that parses the command's output and runs the scheduler's other commands.

    Attributes:
        title: of the scheduler, for sentences: "Slurm".
        command: name of the command: "srun".
        endings: why the scheduler sends signals to tasks, for sentences: "scancel or a time limit".
        queue_command: command that lists jobs, for sentences: "squeue".
        end_signals: signals, sent in sequence, with which the command withdraws or ends the job.
        job_id: the scheduler's id of the job; "" until it is known.
        task_failed: the command has reported the end of a task.
        withdrawn: the job was cancelled before it had nodes.
        cancel_reason: why the scheduler has ended the job, such as "time limit"; "" if unknown.
    """

    title: str
    command: str
    endings: str
    queue_command: str
    end_signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)

    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self.job_id = ""
        self.task_failed = False
        self.withdrawn = False
        self.cancel_reason = ""

    @property
    def text(self) -> str:
        """The last lines of the command's output."""
        return "\n".join(self._kept)

    def feed(self, data: bytes, ending: bool) -> list[bytes]:
        """Parse a piece of the command's output and return the lines to print.

        Args:
            data: the next bytes.
            ending: the job is being ended.
        """
        printed = []
        for line, whole in self._splitter.feed(data):
            text = line.decode(errors="replace")
            self._kept.append(text)
            self.parse(text)
            if whole and not self.is_redundant(text, ending):
                printed.append(line.removeprefix(f"{self.command}: ".encode()))
        return printed

    @abstractmethod
    def parse(self, line: str) -> None:
        """Update the attributes from a line of the command."""

    @abstractmethod
    def is_redundant(self, line: str, ending: bool) -> bool:
        """Return True for a line about the end of tasks, which the agents report earlier and in more detail.

        Args:
            line: of the command.
            ending: the job is being ended, so messages about that are no news.
        """

    @abstractmethod
    def summary(self) -> str:
        """Return the last lines in one short line; "" for none."""

    @abstractmethod
    def refusal(self) -> CsrunError:
        """Return the error of a command that has ended before it started a task."""

    @abstractmethod
    def is_suspended(self, job_id: str) -> bool:
        """Return True if the scheduler has suspended the job, False if it does not answer within seconds."""

    @abstractmethod
    def cancel(self, job_id: str, limit_s: float) -> None:
        """Cancel the job, or the step `JOB.STEP` of one, whose tasks have ended. Errors are ignored."""

    @abstractmethod
    def wait_sentence(self) -> str:
        """Ask the scheduler why the job waits, in a separate thread; return "" if it does not wait.

        Raises:
            CsrunError: the scheduler does not answer.
        """

    def wait_news(self, sentence: str) -> str:
        """Return the part of a `wait_sentence` that is worth printing again when it changes."""
        return sentence
