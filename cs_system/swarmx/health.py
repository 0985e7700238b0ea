"""The health of the wafers of a group: which are silent, and which are slow.

All wafers wait for the last one, so only their own work tells them apart. Each says every second how long it
has computed what needs no other wafer, and how long its weights have travelled, since its start. One is slow
that takes much longer than the others for either, and so long that a good part of the time is spent waiting
for it.
"""

from __future__ import annotations

import json
import logging
import statistics
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass

from cs_system.memoryx.protocol import UNRESPONSIVE_S

log = logging.getLogger("cs_system.server")

WINDOW_S, LEAST_S = 10.0, 4.0
"""So many of the last seconds are compared, at least so many."""

CONFIRMED_S = 2.0
"""A wafer is told of when it has been slow for so long: one that shares its CPU is slow now and then."""

NOT_SLOW = "no CS system of the group is slow any more"

SLOWER, SHARE = 1.5, 0.05
"""How many times as long as the others a slow wafer takes, and by which part of the time it takes longer.

Of computing only the part is seen that has no sums over wafers, a third or less of a step.
"""


class HeartbeatMonitor:
    """When each wafer was heard last. Any thread may ask.

    Args:
        count: Of wafers.
        heartbeat_timeout_s: Silence that ends a wafer.
    """

    def __init__(self, count: int, heartbeat_timeout_s: float) -> None:
        self._count = count
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._lock = threading.Lock()
        self._heard_s = [time.monotonic()] * count
        self._named: set[int] = set()

    def record(self, rank: int) -> None:
        """A wafer has said something."""
        with self._lock:
            silent_s = time.monotonic() - self._heard_s[rank]
            self._heard_s[rank] = time.monotonic()
            was_named = rank in self._named
            self._named.discard(rank)
        if was_named:
            log.info("%s answers again after %.0f s", self._name(rank), silent_s)

    def unresponsive(self) -> str | None:
        """Who has been silent for seconds; None: nobody."""
        rank, silent_s = self._longest()
        if silent_s < UNRESPONSIVE_S:
            return None
        return (
            f"{self._name(rank)} has not answered for {silent_s:.0f} s; "
            f"the run ends after {self._heartbeat_timeout_s:g} s"
        )

    def overdue(self) -> tuple[int, float] | None:
        """A wafer that is to be ended, and for how many seconds it has been silent."""
        rank, silent_s = self._longest()
        return (rank, silent_s) if silent_s >= self._heartbeat_timeout_s else None

    def log_changes(self) -> None:
        """Names in the log whoever has become late."""
        with self._lock:
            now_s = time.monotonic()
            new = {rank for rank, heard_s in enumerate(self._heard_s) if now_s - heard_s >= UNRESPONSIVE_S}
            new -= self._named
            self._named |= new
        for rank in sorted(new):
            log.warning(
                "%s has not answered for %g s; the run ends after %g s",
                self._name(rank),
                UNRESPONSIVE_S,
                self._heartbeat_timeout_s,
            )

    def _longest(self) -> tuple[int, float]:
        with self._lock:
            rank = min(range(self._count), key=self._heard_s.__getitem__)
            return rank, time.monotonic() - self._heard_s[rank]

    def _name(self, rank: int) -> str:
        return f"CS system {rank + 1} of {self._count}"


@dataclass(frozen=True)
class WorkReport:
    """What a wafer has done since its start.

    Attributes:
        computing_s: seconds of computing, without what needs the other wafers.
        receiving_s: seconds in which weights travelled to it.
        late: what it waits for that does not answer; empty: nothing.
    """

    computing_s: float = 0.0
    receiving_s: float = 0.0
    late: str = ""

    def to_json(self) -> bytes:
        """As text."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> WorkReport:
        """The inverse."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Utilization:
    """What part of the last seconds a wafer has computed, and its weights have travelled."""

    computing: float
    receiving: float


class StragglerMonitor:
    """What the wafers of a group say of their work. Any thread may ask.

    Args:
        count: Of wafers.

    Attributes:
        told: The sentence on the wafer that is slow by the last `tell`; None: none is.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._said: list[deque[tuple[float, WorkReport]]] = [deque() for _ in range(count)]
        self._named: str | None = None
        self._changed_s: float | None = None
        self.report: str | None = None

    def record(self, rank: int, work: WorkReport, now_s: float | None = None) -> None:
        """A wafer has said what it has done until now, a monotonic time."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            said = self._said[rank]
            said.append((now_s, work))
            while said[0][0] < now_s - WINDOW_S:
                said.popleft()

    def unresponsive(self) -> str | None:
        """What wafers wait for that does not answer; None: nothing."""
        with self._lock:
            return next((said[-1][1].late for said in self._said if said and said[-1][1].late), None)

    def utilization(self) -> list[Utilization] | None:
        """Of each wafer; None where too little is known."""
        with self._lock:
            if any(not said or said[-1][0] - said[0][0] < LEAST_S for said in self._said):
                return None
            return [_shares(said[0], said[-1]) for said in self._said]

    def straggler(self) -> str | None:
        """Which wafer is slow, and by how much; None: none is, or too little is known."""
        shares = self.utilization()
        if shares is None or len(shares) < 2:
            return None
        for kind, doing in (("computing", "computes"), ("receiving", "gets its weights")):
            values = [getattr(share, kind) for share in shares]
            rank = max(range(len(values)), key=values.__getitem__)
            others = statistics.median(values[:rank] + values[rank + 1 :])
            if values[rank] > SLOWER * others and values[rank] - others > SHARE:
                return (
                    f"CS system {rank + 1} of {len(values)} is slow: it {doing} for {values[rank]:.0%} of "
                    f"the time, the others for {others:.0%}; they wait for it in every step"
                )
        return None

    def log_changes(self, now_s: float | None = None) -> None:
        """Names in the log a wafer that has become slow; the chief's log has it from `told`."""
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


def _shares(first: tuple[float, WorkReport], last: tuple[float, WorkReport]) -> Utilization:
    seconds = last[0] - first[0]
    before, now = first[1], last[1]
    return Utilization(
        (now.computing_s - before.computing_s) / seconds, (now.receiving_s - before.receiving_s) / seconds
    )
