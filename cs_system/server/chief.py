"""The chief that holds the system: whether it answers, and whether it uses the system."""

from __future__ import annotations

from cs_system.errors import duration_text
from cs_system.transport import describe_silence, has_stalled
from cs_toolkit.network.liveness import SilenceTimer


class ChiefMonitor:
    """Times the silence and the idleness of a chief. Pure: callers pass monotonic times.

    Heartbeats end its silence only. Calls, and messages of calls, are activity; so is work that needs no call
    while the chief's heartbeats name it.

    Args:
        job: Name of its job.
        peer_timeout_s: Silence after which its connection breaks.
        idle_release_s: Idleness after which it loses the system; 0: never.
        now_s: The current time.

    Attributes:
        activity: The work that the chief has named; empty: none.
    """

    def __init__(self, job: str, peer_timeout_s: float, idle_release_s: float, now_s: float) -> None:
        self._job = job
        self._silence = SilenceTimer(peer_timeout_s, now_s)
        self._active_at_s = now_s
        self.idle_release_s = idle_release_s
        self.activity = ""

    @property
    def check_every_s(self) -> float:
        """Interval at which `check` is to be called."""
        return self._silence.check_every_s

    def heartbeat(self, activity: str, now_s: float) -> str | None:
        """Record a heartbeat; return a line for the log if the chief has been silent before."""
        self.activity = activity
        silence_s = self._silence.heard(now_s)
        return None if silence_s is None else f"the chief answers again after {silence_s:.0f} s"

    def act(self, now_s: float) -> None:
        """Record activity."""
        self._active_at_s = now_s

    def check(self, now_s: float, *, is_working: bool) -> str | None:
        """Return a line for the log if the chief is silent.

        Args:
            now_s: The current time.
            is_working: Whether the system is working on a call of it.
        """
        is_due = self._silence.check(now_s)
        if is_working or self.activity:
            self.act(now_s)
        return describe_silence(f"the chief of job {self._job}", self._silence) if is_due else None

    def idle_s(self, now_s: float) -> float:
        """Return for how long the chief has held the system without any activity."""
        return now_s - self._active_at_s

    def idle_text(self, now_s: float) -> str | None:
        """Say why the chief loses the system now; None if it keeps it."""
        if not self.idle_release_s or self.idle_s(now_s) < self.idle_release_s:
            return None
        return (
            f"its chief has not used it for {duration_text(self.idle_s(now_s))} (limit of the system: "
            "--idle-release-s); the next start of the job resumes from its last checkpoint"
        )

    @property
    def stall_text(self) -> str | None:
        """Say why the connection of the chief is ended now; None if it is kept."""
        if not has_stalled(self._silence):
            return None
        return f"its chief {self.loss_text}, except for pings"

    @property
    def loss_text(self) -> str:
        """Say how the chief was lost, as a predicate."""
        if self._silence.silence_s < self._silence.line_every_s:
            return "has gone"
        return f"has not answered for {self._silence.silence_s:.0f} s"
