"""What happens to a job when its tasks end and signals come: a state machine without I/O.

Events go in (a task has ended, the launcher got a signal, time has passed), actions come out. The job

* runs until its first task fails, all have ended, or a signal asks for its end;
* leaves the other tasks a moment for their own last words when one has failed;
* winds down when the chief has finished well: the workers get some time to follow;
* is being ended: every process gets a signal, and after the grace time SIGKILL;
* has ended when its tasks are gone and nothing that they have left behind lives.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

WIND_DOWN_NOTE_AFTER_S = 2.0
"""Workers normally end right after the chief; only a longer wait is worth a line."""

SAME_INTERRUPT_S = 0.3
"""Two SIGINT closer together than this are one Ctrl-C."""

LAST_WORDS_S = 2.0
"""What ends one task of a program often ends the others: each may say in its own log what it knows of it."""

CHIEF_RANK = 0


class Phase(Enum):
    """Where the job is."""

    RUNNING = "running"
    FAILED = "failed"
    WINDING_DOWN = "winding down"
    ENDING = "ending"
    KILLING = "killing"


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user one line."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Show how the task of this rank has failed: its exit code, last lines and log."""

    rank: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class ReportLoss:
    """Show that nothing is heard of this rank's task any more: why, its last lines and log."""

    rank: int
    reason: str


Action = Say | ReportFailure | ReportLoss


class Supervisor:
    """Decides about one job.

    Args:
        labels: what the tasks are called, by rank; rank 0 is the chief.
        grace_s: from asking for the end to SIGKILL.
        wind_down_s: how long workers may go on after the chief has finished with 0.
        requeue_code: exit code with which the chief leaves for the queue instead of having failed, if any.

    Attributes:
        phase: where the job is.
        exit_code: the launcher's; final when the job has ended.
        failed: a task has failed.
        interrupted_by: the signal that ended the job, if one did.
    """

    def __init__(
        self, labels: Sequence[str], grace_s: float, wind_down_s: float, requeue_code: int | None = None
    ) -> None:
        self._labels = tuple(labels)
        self._grace_s = grace_s
        self._wind_down_s = wind_down_s
        self._requeue_code = requeue_code
        self._running = set(range(len(labels)))
        self._deadline_s: float | None = None
        self._note_at_s: float | None = None
        self._first_signal = signal.SIGTERM
        self._interrupted_at_s = float("-inf")
        self._doomed_at_s: float | None = None
        self._cancelled = ""
        self.phase = Phase.RUNNING
        self.exit_code = 0
        self.failed = False
        self.interrupted_by: signal.Signals | None = None

    @property
    def deadline_s(self) -> float | None:
        """When `tick` has something to do; None: only an event can change anything."""
        times = (self._deadline_s, self._note_at_s, self._doomed_at_s)
        return min((time for time in times if time is not None), default=None)

    @property
    def outcome(self) -> str:
        """How the job has ended, in words."""
        if self._cancelled:
            return self._cancelled
        if self.interrupted_by:
            return f"the job was ended by {self.interrupted_by.name}"
        if self.failed:
            return f"the job has failed with exit code {self.exit_code}"
        if self.exit_code:
            return "the job has left at a checkpoint"
        return "the job has ended well"

    @property
    def tasks_running(self) -> bool:
        """Whether any task has not ended yet."""
        return bool(self._running)

    @property
    def ending_signal(self) -> signal.Signals | None:
        """What every process of the job, new ones too, has to get now; None: nothing.

        Ctrl-C goes to the tasks as what it is. Once they have ended, what they have left behind gets SIGTERM:
        background processes of a shell ignore SIGINT.
        """
        if self.phase is Phase.KILLING:
            return signal.SIGKILL
        if self.phase is Phase.ENDING:
            return self._first_signal if self._running else signal.SIGTERM
        return None

    def task_ended(self, rank: int, exit_code: int, now_s: float) -> list[Action]:
        """A task has ended; exit_code is 128 + n for signal n."""
        self._running.discard(rank)
        if self.phase in (Phase.FAILED, Phase.ENDING, Phase.KILLING):
            if self.phase is Phase.FAILED and not self._running:
                self._end(signal.SIGTERM, now_s)
            # Not seldom the first task to end is a victim: say which others went down on their own account.
            if self.failed and exit_code not in (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL):
                return [Say(f"{self._labels[rank]} has failed too, exit code {exit_code}")]
            return []
        if rank == CHIEF_RANK and exit_code == self._requeue_code:
            self.exit_code = exit_code
        elif exit_code != 0:
            self._task_failed(exit_code, now_s)
            return [ReportFailure(rank, exit_code)]
        if not self._running:
            self._end(signal.SIGTERM, now_s)
        elif rank == CHIEF_RANK:
            self.phase = Phase.WINDING_DOWN
            self._deadline_s = now_s + self._wind_down_s
            self._note_at_s = now_s + min(WIND_DOWN_NOTE_AFTER_S, self._wind_down_s)
        return []

    def task_lost(self, rank: int, reason: str, now_s: float) -> list[Action]:
        """Nothing is heard of a task any more, and nobody knows how it has ended."""
        self._running.discard(rank)
        if self.phase is Phase.FAILED and not self._running:
            self._end(signal.SIGTERM, now_s)
        if self.phase in (Phase.FAILED, Phase.ENDING, Phase.KILLING):
            return []
        self._fail(1, now_s)
        others = self._names(self._running)
        return [ReportLoss(rank, reason), *([Say(f"ending {others}")] if others else [])]

    def system_lost(self, text: str, now_s: float, report_limit_s: float) -> list[Action]:
        """The CS system is gone. The chief has `report_limit_s` to say what that means for it."""
        if self.phase is not Phase.RUNNING or CHIEF_RANK not in self._running:
            return []
        self._doomed_at_s = now_s + report_limit_s
        return [Say(text)]

    def job_failed(self, text: str, exit_code: int, now_s: float) -> list[Action]:
        """The job cannot go on, for a reason that is not a task's."""
        if self.phase in (Phase.FAILED, Phase.ENDING, Phase.KILLING):
            return []
        self._fail(exit_code, now_s)
        return [Say(text)]

    def cancelled(self, text: str, signum: signal.Signals, now_s: float) -> list[Action]:
        """Who owns the machines wants an end: scancel, a time limit, preemption."""
        if self.phase in (Phase.ENDING, Phase.KILLING):
            return []
        if self.phase is Phase.FAILED:
            self._end(signal.SIGTERM, now_s)
            return [Say(text)]
        self.exit_code = 128 + signum
        self.interrupted_by = signum
        self._cancelled = "the job was ended by its scheduler"
        self._end(signal.SIGTERM, now_s)
        return [Say(text)]

    def interrupted(self, signum: signal.Signals, now_s: float) -> list[Action]:
        """The launcher got SIGINT, SIGTERM or SIGHUP; Ctrl-C while the job is being ended kills at once.

        SIGTERM and SIGHUP often come twice for one cause (from the kernel and the shell, from a supervisor),
        and so does Ctrl-C within a moment where a wrapper passes it on.
        """
        if self.phase is Phase.KILLING:
            return []
        if self.phase is Phase.ENDING:
            if signum is not signal.SIGINT or now_s - self._interrupted_at_s < SAME_INTERRUPT_S:
                return []
            self._kill()
            return [Say("Ctrl-C again: killing what is left")]
        if self.phase is not Phase.FAILED:
            self.exit_code = 128 + signum
            self.interrupted_by = signum
        self._interrupted_at_s = now_s
        # A hangup means "reload" to many programs; all that we want to say is "end".
        self._end(signal.SIGINT if signum is signal.SIGINT else signal.SIGTERM, now_s)
        return [Say(f"{signum.name}: ending {self._names(self._running)} (Ctrl-C from now on kills at once)")]

    def tick(self, now_s: float) -> list[Action]:
        """Time has passed."""
        waits = self.phase in (Phase.RUNNING, Phase.FAILED)
        if waits and self._doomed_at_s is not None and now_s >= self._doomed_at_s:
            self._fail(self.exit_code or 1, now_s)
            return [Say(f"ending {self._names(self._running)}")]
        if self._note_at_s is not None and now_s >= self._note_at_s:
            self._note_at_s = None
            names = self._names(self._running)
            return [Say(f"the chief has finished; waiting up to {self._wind_down_s:g} s for {names}")]
        if self._deadline_s is None or now_s < self._deadline_s:
            return []
        if self.phase is Phase.WINDING_DOWN:
            names = self._names(self._running)
            self._end(signal.SIGTERM, now_s)
            return [Say(f"{names} did not end within {self._wind_down_s:g} s after the chief: ending")]
        self._kill()
        left = self._names(self._running) or "processes that the tasks have left behind"
        return [Say(f"{left} did not end within {self._grace_s:g} s: killing")]

    def _task_failed(self, exit_code: int, now_s: float) -> None:
        self.exit_code = exit_code
        self.failed = True
        if not self._running:
            self._end(signal.SIGTERM, now_s)
            return
        self.phase = Phase.FAILED
        self._doomed_at_s = now_s + LAST_WORDS_S
        self._deadline_s = self._note_at_s = None

    def _fail(self, exit_code: int, now_s: float) -> None:
        self.exit_code = exit_code
        self.failed = True
        self._end(signal.SIGTERM, now_s)

    def _end(self, signum: signal.Signals, now_s: float) -> None:
        self.phase = Phase.ENDING
        self._doomed_at_s = None
        self._first_signal = signum
        self._note_at_s = None
        self._deadline_s = now_s + self._grace_s

    def _kill(self) -> None:
        self.phase = Phase.KILLING
        self._deadline_s = None

    def _names(self, ranks: set[int]) -> str:
        return ", ".join(self._labels[rank] for rank in sorted(ranks))
