"""Who holds the system and who waits for it: pure bookkeeping, first come first served."""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from cs_system.errors import ReservationLostError, SystemBusyError

# A client that learns late that its reservation ended gets the reason; older ones get a general one.
_REMEMBERED = 64


@dataclass(eq=False)
class Ticket:
    """A job that holds the system or waits for it.

    Attributes:
        since_s: Seconds since the epoch, when it got the system; 0 while it waits.
        ending: Why the reservation is ending; calls on its behalf are refused from then on.
    """

    job: str
    token: str
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    since_s: float = 0.0
    ending: str | None = None

    def knows(self, token: str) -> bool:
        """Whether `token` is that of the job."""
        return hmac.compare_digest(self.token.encode(), token.encode())


class ReservationBook:
    """At most one ticket holds the system; the others wait in the order of their arrival."""

    def __init__(self) -> None:
        self.holder: Ticket | None = None
        self._queue: deque[Ticket] = deque()
        self._ended: OrderedDict[str, str] = OrderedDict()

    def enter(self, job: str, token: str, wait: bool, now_s: float) -> Ticket:
        """Takes the system for a job, or a place in the queue.

        Raises:
            SystemBusyError: another job holds it and `wait` is false.
        """
        if self.holder is not None and not wait:
            raise SystemBusyError.held(self.holder.job, self.holder.since_s)
        ticket = Ticket(job, token)
        self._queue.append(ticket)
        self._grant(now_s)
        return ticket

    def leave(self, ticket: Ticket, reason: str, now_s: float) -> None:
        """Ends a ticket, wherever it is; the next in the queue gets the system."""
        self._remember(ticket, reason)
        if ticket is self.holder:
            self.holder = None
        elif ticket in self._queue:
            self._queue.remove(ticket)
        self._grant(now_s)

    def position(self, ticket: Ticket) -> int:
        """0 for the holder, 1 for the next one.

        Raises:
            ReservationLostError: the ticket has ended.
        """
        if ticket is self.holder:
            return 0
        if ticket not in self._queue:
            raise self._lost(ticket.id)
        return self._queue.index(ticket) + 1

    def held(self, reservation: str) -> Ticket:
        """The ticket of a reservation that holds the system.

        Raises:
            ReservationLostError: it does not.
        """
        if self.holder is None or self.holder.id != reservation:
            raise self._lost(reservation)
        if self.holder.ending is not None:
            raise ReservationLostError(f"the reservation of the CS system has ended: {self.holder.ending}")
        return self.holder

    @property
    def waiting(self) -> tuple[Ticket, ...]:
        """The queue, the next one first."""
        return tuple(self._queue)

    def _grant(self, now_s: float) -> None:
        if self.holder is None and self._queue:
            self.holder = self._queue.popleft()
            self.holder.since_s = now_s

    def _remember(self, ticket: Ticket, reason: str) -> None:
        self._ended[ticket.id] = reason
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def _lost(self, reservation: str) -> ReservationLostError:
        if not reservation:
            return ReservationLostError("this call needs a reservation of the CS system; reserve it first")
        reason = self._ended.get(reservation, "the system does not know it (was the system restarted?)")
        return ReservationLostError(f"the reservation of the CS system has ended: {reason}")
