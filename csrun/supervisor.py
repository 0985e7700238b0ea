"""What happens to a job when its tasks end and signals come: a state machine without I/O.

Events go in (a task has ended, the launcher got a signal, time has passed), actions come out. The job

* runs until its first task fails, all have ended, or a signal asks for its end;
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

CHIEF_RANK = 0


class Phase(Enum):
    """Where the job is."""

    RUNNING = "running"
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


Action = Say | ReportFailure


class Supervisor:
    """Decides about one job.

    Args:
        labels: what the tasks are called, by rank; rank 0 is the chief.
        grace_s: from asking for the end to SIGKILL.
        wind_down_s: how long workers may go on after the chief has finished with 0.

    Attributes:
        phase: where the job is.
        exit_code: the launcher's; final when the job has ended.
        failed: a task has failed.
        interrupted_by: the signal that ended the job, if one did.
    """

    def __init__(self, labels: Sequence[str], grace_s: float, wind_down_s: float) -> None:
        self._labels = tuple(labels)
        self._grace_s = grace_s
        self._wind_down_s = wind_down_s
        self._running = set(range(len(labels)))
        self._deadline_s: float | None = None
        self._note_at_s: float | None = None
        self._first_signal = signal.SIGTERM
        self._interrupted_at_s = float("-inf")
        self.phase = Phase.RUNNING
        self.exit_code = 0
        self.failed = False
        self.interrupted_by: signal.Signals | None = None

    @property
    def deadline_s(self) -> float | None:
        """When `tick` has something to do; None: only an event can change anything."""
        return self._deadline_s if self._note_at_s is None else self._note_at_s

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
        if self.phase in (Phase.ENDING, Phase.KILLING):
            # Not seldom the first task to end is a victim: say which others went down on their own account.
            if self.failed and exit_code not in (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL):
                return [Say(f"{self._labels[rank]} has failed too, exit code {exit_code}")]
            return []
        if exit_code != 0:
            self.exit_code = exit_code
            self.failed = True
            others = self._names(self._running)
            self._end(signal.SIGTERM, now_s)
            return [ReportFailure(rank, exit_code), *([Say(f"ending {others}")] if others else [])]
        if not self._running:
            self._end(signal.SIGTERM, now_s)
        elif rank == CHIEF_RANK:
            self.phase = Phase.WINDING_DOWN
            self._deadline_s = now_s + self._wind_down_s
            self._note_at_s = now_s + min(WIND_DOWN_NOTE_AFTER_S, self._wind_down_s)
        return []

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
        self.exit_code = 128 + signum
        self.interrupted_by = signum
        self._interrupted_at_s = now_s
        # A hangup means "reload" to many programs; all that we want to say is "end".
        self._end(signal.SIGINT if signum is signal.SIGINT else signal.SIGTERM, now_s)
        return [Say(f"{signum.name}: ending {self._names(self._running)} (Ctrl-C from now on kills at once)")]

    def tick(self, now_s: float) -> list[Action]:
        """Time has passed."""
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

    def _end(self, signum: signal.Signals, now_s: float) -> None:
        self.phase = Phase.ENDING
        self._first_signal = signum
        self._note_at_s = None
        self._deadline_s = now_s + self._grace_s

    def _kill(self) -> None:
        self.phase = Phase.KILLING
        self._deadline_s = None

    def _names(self, ranks: set[int]) -> str:
        return ", ".join(self._labels[rank] for rank in sorted(ranks))
