"""Which wafers of a group say that they are there, and which have been silent for too long."""

from __future__ import annotations

import logging
import threading
import time

from cs_system.patience import LATE_S

log = logging.getLogger("cs_system.server")


class Pulse:
    """When each wafer was heard last. Any thread may ask.

    Args:
        count: Of wafers.
        patience_s: Silence that ends a wafer.
    """

    def __init__(self, count: int, patience_s: float) -> None:
        self._count = count
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._heard_s = [time.monotonic()] * count
        self._named: set[int] = set()

    def heard(self, rank: int) -> None:
        """A wafer has said something."""
        with self._lock:
            silent_s = time.monotonic() - self._heard_s[rank]
            self._heard_s[rank] = time.monotonic()
            was_named = rank in self._named
            self._named.discard(rank)
        if was_named:
            log.info("%s answers again after %.0f s", self._name(rank), silent_s)

    def late(self) -> str | None:
        """Who has been silent for seconds; None: nobody."""
        rank, silent_s = self._longest()
        if silent_s < LATE_S:
            return None
        return (
            f"{self._name(rank)} has not answered for {silent_s:.0f} s; "
            f"the run ends after {self._patience_s:g} s"
        )

    def overdue(self) -> tuple[int, float] | None:
        """A wafer that is to be ended, and for how many seconds it has been silent."""
        rank, silent_s = self._longest()
        return (rank, silent_s) if silent_s >= self._patience_s else None

    def tell(self) -> None:
        """Names in the log whoever has become late."""
        with self._lock:
            now_s = time.monotonic()
            new = {rank for rank, heard_s in enumerate(self._heard_s) if now_s - heard_s >= LATE_S}
            new -= self._named
            self._named |= new
        for rank in sorted(new):
            log.warning(
                "%s has not answered for %g s; the run ends after %g s",
                self._name(rank),
                LATE_S,
                self._patience_s,
            )

    def _longest(self) -> tuple[int, float]:
        with self._lock:
            rank = min(range(self._count), key=self._heard_s.__getitem__)
            return rank, time.monotonic() - self._heard_s[rank]

    def _name(self, rank: int) -> str:
        return f"CS system {rank + 1} of {self._count}"
