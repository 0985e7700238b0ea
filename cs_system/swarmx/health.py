"""The health of the wafers of a group: which are silent, and which are stragglers.

All wafers wait for the last one in every step, so only the time each spends on its own work tells them apart.
Every second each reports how long it has computed work that needs no other wafer, and how long it has
received weights, since its start. A straggler takes much longer than the others for either, and long enough
that a good part of the time is spent waiting for it.
"""

from __future__ import annotations

import json
import logging
import statistics
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass

from cs_system.engine.base import Utilization
from cs_system.errors import GroupError
from cs_system.memoryx.protocol import UNRESPONSIVE_S
from cs_toolkit.figures import format_share
from cs_toolkit.network.frames import FrameError, decode_object
from cs_toolkit.network.liveness import SilenceTimer

log = logging.getLogger("cs_system.server")

# The reports of this many seconds are compared, and at least of this many.
WINDOW_S, MIN_WINDOW_S = 10.0, 4.0

# A straggler is reported after this time: a wafer that shares its CPU is slow now and then.
CONFIRMED_S = 2.0

NOT_SLOW = "no CS system of the group is slow any more"

# A straggler takes this many times as long as the median of the others, and longer by this part of the time.
#
# The part is small because only computing without sums over wafers is measured, a third or less of a step.
SLOWER, SHARE = 1.5, 0.05


class HeartbeatMonitor:
    """When each wafer was last heard from. Thread-safe.

    Args:
        count: Number of wafers.
        peer_timeout_s: Silence after which a wafer is ended.
    """

    def __init__(self, count: int, peer_timeout_s: float) -> None:
        self._count = count
        self._lock = threading.Lock()
        now_s = time.monotonic()
        self._silences = [SilenceTimer(peer_timeout_s, now_s) for _ in range(count)]

    def record(self, rank: int) -> None:
        """Record a message of a wafer."""
        with self._lock:
            silence_s = self._silences[rank].heard(time.monotonic())
        if silence_s is not None:
            log.info("%s answers again after %.0f s", self._name(rank), silence_s)

    def unresponsive(self) -> str | None:
        """Describe the wafer that has been silent for seconds, or None."""
        rank, silence = self._longest()
        return None if silence.silence_s < UNRESPONSIVE_S else self._text(rank, silence)

    def overdue(self) -> tuple[int, float] | None:
        """Return the wafer that is to be ended, with the seconds of its silence, or None."""
        rank, silence = self._longest()
        return (rank, silence.silence_s) if silence.is_over else None

    def check(self) -> None:
        """Update the silences, and log those that are due; to be called about twice a second."""
        with self._lock:
            now_s = time.monotonic()
            due = [rank for rank, silence in enumerate(self._silences) if silence.check(now_s)]
        for rank in due:
            log.warning("%s", self._text(rank, self._silences[rank]))

    def _longest(self) -> tuple[int, SilenceTimer]:
        rank = max(range(self._count), key=lambda rank: self._silences[rank].silence_s)
        return rank, self._silences[rank]

    def _text(self, rank: int, silence: SilenceTimer) -> str:
        return (
            f"{self._name(rank)} has not answered for {silence.silence_s:.0f} s; "
            f"the run ends after {silence.timeout_s:g} s"
        )

    def _name(self, rank: int) -> str:
        return f"CS system {rank + 1} of {self._count}"


@dataclass(frozen=True)
class WorkReport:
    """A wafer's report of its work since its start.

    Attributes:
        computing_s: Seconds of computing, without work that needs the other wafers.
        receiving_s: Seconds in which weights arrived.
        late: Sentence about something it waits for that does not answer; empty: nothing.
    """

    computing_s: float = 0.0
    receiving_s: float = 0.0
    late: str = ""

    def to_json(self) -> bytes:
        """Encode the report."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> WorkReport:
        """Decode a report.

        Raises:
            GroupError: the text is not a report.
        """
        try:
            values = decode_object(text)
            computing_s, receiving_s = float(values["computing_s"]), float(values["receiving_s"])
            return cls(computing_s, receiving_s, str(values["late"]))
        except (FrameError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise GroupError(f"the report of a wafer is malformed: {error!r}") from None


class StragglerMonitor:
    """The work reports of the wafers of a group. Thread-safe.

    Args:
        count: Number of wafers.

    Attributes:
        report: Sentence about the straggler that was last logged; None: there is none.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._reports: list[deque[tuple[float, WorkReport]]] = [deque() for _ in range(count)]
        self._named: str | None = None
        self._changed_s: float | None = None
        self.report: str | None = None

    def record(self, rank: int, work: WorkReport, now_s: float | None = None) -> None:
        """Record a wafer's report, received at a monotonic time."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            reports = self._reports[rank]
            reports.append((now_s, work))
            while reports[0][0] < now_s - WINDOW_S:
                reports.popleft()

    def unresponsive(self) -> str | None:
        """Describe what wafers wait for that does not answer, or None."""
        with self._lock:
            return next(
                (reports[-1][1].late for reports in self._reports if reports and reports[-1][1].late), None
            )

    def utilization(self) -> list[Utilization] | None:
        """Return the utilization of each wafer, or None if there are too few reports."""
        with self._lock:
            if any(not reports or reports[-1][0] - reports[0][0] < MIN_WINDOW_S for reports in self._reports):
                return None
            found = []
            for reports in self._reports:
                (first_s, first), (last_s, last) = reports[0], reports[-1]
                seconds = last_s - first_s
                computing = (last.computing_s - first.computing_s) / seconds
                found.append(Utilization(computing, (last.receiving_s - first.receiving_s) / seconds))
            return found

    def straggler(self) -> str | None:
        """Describe the straggler; None if there is none, or there are too few reports."""
        utilization = self.utilization()
        if utilization is None or len(utilization) < 2:
            return None
        for kind, doing in (("computing", "computes"), ("receiving", "gets its weights")):
            values = [getattr(one, kind) for one in utilization]
            rank = max(range(len(values)), key=values.__getitem__)
            others = statistics.median(values[:rank] + values[rank + 1 :])
            if values[rank] > SLOWER * others and values[rank] - others > SHARE:
                return (
                    f"CS system {rank + 1} of {len(values)} is slow: it {doing} for "
                    f"{format_share(values[rank])} of the time, the others for "
                    f"{format_share(others)}; they wait for it in every step"
                )
        return None

    def log_changes(self, now_s: float | None = None) -> None:
        """Log a new straggler, or the end of one; `report` has the sentence for the chief's log."""
        now_s = time.monotonic() if now_s is None else now_s
        slow = self.straggler()
        name = slow and slow.partition(" is ")[0]
        if name == self._named:
            self._changed_s = None
        elif self._changed_s is None:
            self._changed_s = now_s
        elif now_s - self._changed_s >= CONFIRMED_S:
            self._named, self._changed_s, self.report = name, None, slow
            log.log(logging.WARNING if slow else logging.INFO, "%s", slow or NOT_SLOW)
