"""The newest figures of the system, passed from its event loop to the thread of the status page."""

from __future__ import annotations

from dataclasses import dataclass

from cs_system.monitoring.recorder import CurvePoint, Totals
from cs_system.status import SystemInfo
from cs_toolkit.floorplan import Floorplan


@dataclass(frozen=True)
class Snapshot:
    """The system at one time.

    Attributes:
        time: Seconds since the epoch.
        info: Its status.
        totals: What all reservations since its start have used.
        reservations: Number of these reservations.
        curve: Loss and rate of the current reservation.
        floorplan: That of the loaded program.
        certificate_end: When its certificate ends, in seconds since the epoch; None: it uses no TLS.
    """

    time: float
    info: SystemInfo
    totals: Totals
    reservations: int
    curve: tuple[CurvePoint, ...] = ()
    floorplan: Floorplan | None = None
    certificate_end: float | None = None


class Board:
    """Holds the newest snapshot. One thread publishes, others read: a snapshot is never changed."""

    def __init__(self, first: Snapshot) -> None:
        self.latest = first

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot."""
        self.latest = snapshot
