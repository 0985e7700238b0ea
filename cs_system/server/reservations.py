"""Reservations: the job that holds the system, and the queue. Bookkeeping only, without tasks or a clock."""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from cs_system.authentication import MAX_NONCES, CallVerifier
from cs_system.errors import ReservationLostError, SystemBusyError, TooManyWaitingError
from cs_toolkit.security.proofs import new_nonce

# Limits of the queue. Far above what jobs need, and low enough that nobody exhausts the memory.
_MAX_QUEUE, _MAX_QUEUE_OF_PEER = 256, 32

# Number of ended reservations whose reason is remembered, for clients that find out late.
_REMEMBERED = 64

# Number of jobs whose workers' calls are remembered, so that none is accepted twice; fewer if together they
# have more than `MAX_NONCES` nonces.
_REMEMBERED_JOBS = 256


@dataclass(eq=False)
class Ticket:
    """A job that holds the system or waits for it.

    Attributes:
        calls: Checks that calls come from its chief.
        joins: Checks that calls come from its workers, which do not know the reservation.
        owner: USER@HOST of its chief, as the chief states it; may be empty.
        peer: Host from which it calls.
        user: Name in the certificate of its chief; empty without TLS.
        entered_s: When it asked for the system, seconds since the epoch.
        since_s: When it got the system, seconds since the epoch; 0 while it waits.
        ending: Why the reservation is ending; from then on, calls on its behalf are refused.
    """

    job: str
    token: str = field(repr=False)
    calls: CallVerifier
    joins: CallVerifier
    owner: str = ""
    peer: str = ""
    user: str = ""
    entered_s: float = 0.0
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    since_s: float = 0.0
    ending: str | None = None


class ReservationBook:
    """At most one ticket holds the system, the others wait in order of arrival.

    Attributes:
        holder: The ticket that holds the system.
        nonce: Nonce of this process, which proofs of calls cover.
    """

    def __init__(self) -> None:
        self.nonce = new_nonce()
        self._verifiers: OrderedDict[str, CallVerifier] = OrderedDict()
        self.holder: Ticket | None = None
        self._queue: deque[Ticket] = deque()
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._admits = True

    def set_admission(self, admits: bool, now_s: float) -> None:
        """Let waiting jobs get the system when it is free, or keep them waiting."""
        self._admits = admits
        self._grant(now_s)

    def enter(
        self, job: str, token: str, wait: bool, now_s: float, owner: str = "", peer: str = ""
    ) -> Ticket:
        """Take the system for a job, or a place in the queue.

        Raises:
            SystemBusyError: another job holds it and `wait` is false.
            TooManyWaitingError: the queue is full, or has too many jobs of the same host.
        """
        if self.holder is not None and not wait:
            raise SystemBusyError.of(self.holder.job, self.holder.since_s)
        of_peer = sum(ticket.peer == peer for ticket in self._queue)
        if len(self._queue) >= _MAX_QUEUE or of_peer >= _MAX_QUEUE_OF_PEER:
            raise TooManyWaitingError(
                f"{len(self._queue)} jobs queue for the CS system, {of_peer} of this host; expected less "
                f"than {_MAX_QUEUE} and {_MAX_QUEUE_OF_PEER}: try again later"
            )
        # Proofs of the chief cover the reservation, so that none is valid for another one.
        calls = CallVerifier(token, self.nonce)
        ticket = Ticket(job, token, calls, self._worker_verifier(token), owner, peer, entered_s=now_s)
        self._queue.append(ticket)
        self._grant(now_s)
        return ticket

    def _worker_verifier(self, token: str) -> CallVerifier:
        # A job may hold the system several times: calls of an earlier time must not be repeated later.
        known = self._verifiers
        found = known.setdefault(token, CallVerifier(token, self.nonce))
        known.move_to_end(token)
        nonces = sum(verifier.nonces for verifier in known.values())
        while len(known) > _REMEMBERED_JOBS or (nonces > MAX_NONCES and len(known) > 1):
            nonces -= known.popitem(last=False)[1].nonces
        return found

    def leave(self, ticket: Ticket, reason: str, now_s: float) -> None:
        """End a ticket, holding or waiting; the next in the queue gets the system."""
        self._ended[ticket.id] = reason
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        if ticket is self.holder:
            self.holder = None
        elif ticket in self._queue:
            self._queue.remove(ticket)
        self._grant(now_s)

    def position(self, ticket: Ticket) -> int:
        """Return 0 for the holder, 1 for the next one.

        Raises:
            ReservationLostError: the ticket has ended.
        """
        if ticket is self.holder:
            return 0
        if ticket not in self._queue:
            raise self._lost(ticket.id)
        return self._queue.index(ticket) + 1

    def check_holder(self, reservation: str) -> Ticket:
        """Return the ticket of a reservation that holds the system.

        Raises:
            ReservationLostError: it does not.
        """
        if self.holder is None or self.holder.id != reservation:
            raise self._lost(reservation)
        if self.holder.ending is not None:
            raise ReservationLostError.because(self.holder.ending)
        return self.holder

    @property
    def waiting(self) -> tuple[Ticket, ...]:
        """The queue, the next job first."""
        return tuple(self._queue)

    def _grant(self, now_s: float) -> None:
        if self.holder is None and self._queue and self._admits:
            self.holder = self._queue.popleft()
            self.holder.since_s = now_s

    def _lost(self, reservation: str) -> ReservationLostError:
        if not reservation:
            return ReservationLostError("this call needs a reservation of the CS system; reserve it first")
        reason = self._ended.get(reservation, "the system does not know it (was the system restarted?)")
        return ReservationLostError.because(reason)
