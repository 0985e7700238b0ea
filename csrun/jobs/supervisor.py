"""Supervision of a job: a state machine without I/O that decides when and how the job ends.

Its methods take events (the exit of a task, a signal to the launcher, the passing of time) and return what to
report. The signal for the processes of the job is a property, `termination_signal`. A job

* restarts a worker whose process dies, a limited number of times and after a growing pause;
* runs until its first task fails, all tasks have exited, or a signal asks the launcher to terminate it;
* waits a moment after the first failure, so that the other tasks can log their own errors;
* winds down after the chief has succeeded: the workers have some time to exit;
* is terminated: every process gets a signal, and after the grace period SIGKILL;
* has ended when its tasks and all processes that they left running are gone.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

WIND_DOWN_NOTE_AFTER_S = 2.0  # workers normally end right after the chief; only a longer wait is worth a line
SAME_INTERRUPT_S = 0.3  # two SIGINT within this time are one Ctrl-C
# The cause of a failure often affects all tasks: time for each to write related information to its log.
LAST_WORDS_S = 2.0
# Pause before the first restart of a worker; it doubles with each one. All are well below the time that the
# system waits for a lost worker (`cs_system serve --reconnect-s`, 60 s by default).
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 8.0

CHIEF_RANK = 0
# A usage error, and those of a shell for a command that cannot be executed or does not exist.
_REPEATING = (2, 126, 127)


class Phase(Enum):
    """Phase of a job."""

    RUNNING = "running"
    FAILING = "failing"
    WINDING_DOWN = "winding down"
    TERMINATING = "terminating"
    KILLING = "killing"


@dataclass(frozen=True, slots=True)
class Say:
    """Print one line."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Print the exit code, last log lines and log path of a task that failed."""

    rank: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class ReportLoss:
    """Print the last log lines and log path of a task whose connection was lost, and the reason."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReportRestart:
    """Print how a worker died, and that it is restarted for the `number`-th time after a pause."""

    rank: int
    exit_code: int
    number: int
    limit: int
    pause_s: float


Action = Say | ReportFailure | ReportLoss | ReportRestart


class Supervisor:
    """The state of one job.

    Args:
        labels: names of the tasks, by rank; rank 0 is the chief.
        grace_s: time from the first signal to the tasks until SIGKILL.
        wind_down_s: time that workers may continue after the chief has exited with 0.
        requeue_code: exit code of the chief that means requeue instead of failure, if any.
        max_restarts: how often each worker is restarted.

    Attributes:
        phase: of the job.
        exit_code: of the launcher; final when the job has ended.
        failed: the job has failed.
        interrupted_by: the signal to the launcher, or from the scheduler, that terminated the job, if any.
    """

    def __init__(
        self,
        labels: Sequence[str],
        grace_s: float,
        wind_down_s: float,
        requeue_code: int | None = None,
        max_restarts: int = 0,
    ) -> None:
        self._labels = tuple(labels)
        self._grace_s = grace_s
        self._wind_down_s = wind_down_s
        self._requeue_code = requeue_code
        self._max_restarts = max_restarts
        self._restarts = [0] * len(labels)
        self._restart_at_s: dict[int, float] = {}
        self._running = set(range(len(labels)))
        self._deadline_s: float | None = None
        self._note_at_s: float | None = None
        self._first_signal = signal.SIGTERM
        self._interrupted_at_s = float("-inf")
        self._failure_at_s: float | None = None
        self._cancel_text = ""
        self.phase = Phase.RUNNING
        self.exit_code = 0
        self.failed = False
        self.interrupted_by: signal.Signals | None = None

    @property
    def next_tick_s(self) -> float | None:
        """Time at which `tick` next has something to do; None if never."""
        times = (self._deadline_s, self._note_at_s, self._failure_at_s, *self._restart_at_s.values())
        return min((time for time in times if time is not None), default=None)

    @property
    def outcome(self) -> str:
        """How the job ended, as a sentence."""
        if self._cancel_text:
            return self._cancel_text
        if self.interrupted_by:
            return f"the job was terminated by {self.interrupted_by.name}"
        if self.failed:
            return f"the job failed with exit code {self.exit_code}"
        if self.exit_code:
            return "the job stopped at a checkpoint to be requeued"
        return "the job completed"

    @property
    def has_running_tasks(self) -> bool:
        """True while a task is running."""
        return bool(self._running)

    @property
    def termination_signal(self) -> signal.Signals | None:
        """Signal to send to every process of the job, including new ones, or None."""
        if self.phase is Phase.KILLING:
            return signal.SIGKILL
        if self.phase is Phase.TERMINATING:
            # Tasks get Ctrl-C as SIGINT. Processes that they left running get SIGTERM, because background
            # processes of a shell ignore SIGINT.
            return self._first_signal if self._running else signal.SIGTERM
        return None

    def is_restarting(self, rank: int) -> bool:
        """Return True if the task has ended and will be restarted."""
        return rank in self._restart_at_s

    def restarts(self, rank: int) -> int:
        """Return how often the task was restarted."""
        return self._restarts[rank]

    def due_restarts(self, now_s: float) -> list[int]:
        """Return the tasks to restart now; they count as running from here on."""
        due = [rank for rank, at_s in self._restart_at_s.items() if now_s >= at_s]
        for rank in due:
            del self._restart_at_s[rank]
            self._running.add(rank)
        return due

    def handle_task_end(
        self, rank: int, exit_code: int, now_s: float, *, would_repeat: bool = False
    ) -> list[Action]:
        """Handle the exit of a task.

        Args:
            rank: of the task.
            exit_code: of its process; 128 + n for signal n.
            now_s: monotonic time.
            would_repeat: the task would fail again if it were restarted.
        """
        self._running.discard(rank)
        if self.phase in (Phase.FAILING, Phase.TERMINATING, Phase.KILLING):
            if self.phase is Phase.FAILING and not self._running:
                self._terminate(signal.SIGTERM, now_s)
            # The first task to fail is often not the cause: name others, but not those that were terminated.
            terminated = {128 + signum for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)}
            if self.failed and exit_code not in {0, *terminated}:
                return [Say(f"{self._labels[rank]} also failed, exit code {exit_code}")]
            return []
        if rank == CHIEF_RANK and exit_code == self._requeue_code:
            self.exit_code = exit_code
        elif exit_code != 0:
            if not would_repeat and self._may_restart(rank, exit_code):
                pause_s = min(FIRST_PAUSE_S * 2 ** self._restarts[rank], LONGEST_PAUSE_S)
                self._restarts[rank] += 1
                self._restart_at_s[rank] = now_s + pause_s
                return [ReportRestart(rank, exit_code, self._restarts[rank], self._max_restarts, pause_s)]
            self.exit_code = exit_code
            self.failed = True
            self._restart_at_s.clear()
            if self._running:
                self.phase = Phase.FAILING
                self._failure_at_s = now_s + LAST_WORDS_S
                self._deadline_s = self._note_at_s = None
            else:
                self._terminate(signal.SIGTERM, now_s)
            return [ReportFailure(rank, exit_code)]
        if not self._running:
            self._terminate(signal.SIGTERM, now_s)
        elif rank == CHIEF_RANK:
            self.phase = Phase.WINDING_DOWN
            self._restart_at_s.clear()
            self._failure_at_s = None  # set if the system was lost: the chief has succeeded without it
            self._deadline_s = now_s + self._wind_down_s
            self._note_at_s = now_s + min(WIND_DOWN_NOTE_AFTER_S, self._wind_down_s)
        return []

    def handle_task_loss(self, rank: int, reason: str, now_s: float) -> list[Action]:
        """Handle the loss of the connection to a task, whose exit status is then unknown."""
        self._running.discard(rank)
        if self.phase is Phase.FAILING and not self._running:
            self._terminate(signal.SIGTERM, now_s)
        if self.phase in (Phase.FAILING, Phase.TERMINATING, Phase.KILLING):
            return []
        self._fail_now(1, now_s)
        others = self._names(self._running)
        return [ReportLoss(rank, reason), *([Say(f"terminating {others}")] if others else [])]

    def handle_system_loss(self, text: str, now_s: float, report_limit_s: float) -> list[Action]:
        """Handle the loss of the CS system. The chief has `report_limit_s` to report its own error."""
        if self.phase is not Phase.RUNNING or CHIEF_RANK not in self._running:
            return []
        self._failure_at_s = now_s + report_limit_s
        return [Say(text)]

    def handle_job_failure(self, text: str, exit_code: int, now_s: float) -> list[Action]:
        """Handle a failure of the job that no task caused."""
        if self.phase in (Phase.FAILING, Phase.TERMINATING, Phase.KILLING):
            return []
        self._fail_now(exit_code, now_s)
        return [Say(text)]

    def handle_cancellation(self, text: str, signum: signal.Signals, now_s: float) -> list[Action]:
        """Handle a cancellation by the scheduler: scancel, a time limit, preemption."""
        if self.phase in (Phase.TERMINATING, Phase.KILLING):
            return []
        if self.phase is Phase.FAILING:
            self._terminate(signal.SIGTERM, now_s)
            return [Say(text)]
        self.exit_code = 128 + signum
        self.interrupted_by = signum
        self._cancel_text = "the job was terminated by its scheduler"
        self._terminate(signal.SIGTERM, now_s)
        return [Say(text)]

    def handle_interrupt(self, signum: signal.Signals, now_s: float) -> list[Action]:
        """Handle SIGINT, SIGTERM or SIGHUP to the launcher; Ctrl-C while tasks are terminating kills them."""
        if self.phase is Phase.KILLING:
            return []
        if self.phase is Phase.TERMINATING:
            # SIGTERM and SIGHUP often come twice for one cause (from the kernel and the shell), and so does
            # Ctrl-C if a wrapper passes it on.
            if signum is not signal.SIGINT or now_s - self._interrupted_at_s < SAME_INTERRUPT_S:
                return []
            self._kill()
            return [Say("Ctrl-C again: killing all remaining processes")]
        if self.phase is not Phase.FAILING:
            self.exit_code = 128 + signum
            self.interrupted_by = signum
        self._interrupted_at_s = now_s
        # Not SIGHUP, which means "reload" to many programs.
        self._terminate(signal.SIGINT if signum is signal.SIGINT else signal.SIGTERM, now_s)
        names = self._names(self._running)
        return [Say(f"{signum.name}: terminating {names} (another Ctrl-C kills immediately)")]

    def tick(self, now_s: float) -> list[Action]:
        """Handle the passing of time."""
        if self._failure_at_s is not None and now_s >= self._failure_at_s:
            self._fail_now(self.exit_code or 1, now_s)
            return [Say(f"terminating {self._names(self._running)}")]
        if self._note_at_s is not None and now_s >= self._note_at_s:
            self._note_at_s = None
            names = self._names(self._running)
            return [Say(f"the chief has finished; waiting up to {self._wind_down_s:g} s for {names}")]
        if self._deadline_s is None or now_s < self._deadline_s:
            return []
        if self.phase is Phase.WINDING_DOWN:
            names = self._names(self._running)
            self._terminate(signal.SIGTERM, now_s)
            return [Say(f"{names} did not end within {self._wind_down_s:g} s after the chief: terminating")]
        self._kill()
        left = self._names(self._running) or "processes that the tasks left running"
        return [Say(f"{left} did not end within {self._grace_s:g} s: killing")]

    def _fail_now(self, exit_code: int, now_s: float) -> None:
        self.exit_code = exit_code
        self.failed = True
        self._terminate(signal.SIGTERM, now_s)

    def _may_restart(self, rank: int, exit_code: int) -> bool:
        # The chief has the state of the run, which ends with its process.
        return (
            self.phase is Phase.RUNNING
            and self._failure_at_s is None  # the CS system is not lost
            and rank != CHIEF_RANK
            and exit_code not in _REPEATING
            and CHIEF_RANK in self._running
            and self._restarts[rank] < self._max_restarts
        )

    def _terminate(self, signum: signal.Signals, now_s: float) -> None:
        self._restart_at_s.clear()
        self.phase = Phase.TERMINATING
        self._failure_at_s = None
        self._first_signal = signum
        self._note_at_s = None
        self._deadline_s = now_s + self._grace_s

    def _kill(self) -> None:
        self.phase = Phase.KILLING
        self._deadline_s = None

    def _names(self, ranks: set[int]) -> str:
        return ", ".join(self._labels[rank] for rank in sorted(ranks))
