"""Several CS systems as one pool: a job reserves the first free one, and its workers find it there."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from cs_system.address import SystemAddress
from cs_system.client import Reservation, RunTicket, SystemClient, join_run
from cs_system.client.reservation import OnWait
from cs_system.errors import (
    ConnectionLostError,
    CsSystemError,
    JoinTimeoutError,
    NotACsSystemError,
    SystemBusyError,
    SystemDrainedError,
    SystemUnreachableError,
    TlsFailedError,
    clock_text,
)
from cs_system.messages import InputIdentity
from cs_system.status import SystemInfo
from cs_toolkit.network.liveness import peer_timeout_s
from cs_toolkit.spans import ClockSample

T = TypeVar("T")

log = logging.getLogger("cs_system.client")

# A system with such an error is left out of a pool.
_SKIPPED = (SystemUnreachableError, NotACsSystemError, TlsFailedError, ConnectionLostError)
# Interval at which a wait lets signals in.
_POLL_S = 0.5
_END_S = 5.0


def read_statuses(
    addresses: Sequence[SystemAddress],
) -> list[tuple[SystemAddress, SystemInfo | CsSystemError]]:
    """Return the status of each system, or why there is none, in the order of the addresses."""

    def read(address: SystemAddress) -> SystemInfo | CsSystemError:
        try:
            with SystemClient(address) as client:
                return client.info()
        except CsSystemError as error:
            return error

    with ThreadPoolExecutor(len(addresses), thread_name_prefix="status") as threads:
        return list(zip(addresses, threads.map(read, addresses), strict=True))


@dataclass(frozen=True)
class Requirements:
    """The properties that a job requires of a system.

    Attributes:
        fabric: The fabric that the program is compiled for.
        wafers: Number of wafers that share a batch.
        execution: Execution mode of the program.
    """

    fabric: Mapping[str, Any]
    wafers: int
    execution: str

    def lack(self, info: SystemInfo) -> str | None:
        """Return the first property that a system lacks, as a sentence; None if the job can run there."""
        if info.fabric_spec != self.fabric:
            return f"its fabric {info.fabric} is another one than that of the program"
        if info.num_csx < self.wafers:
            return f"it has {info.num_csx} wafer(s), the program needs {self.wafers}"
        return self.lack_mode(info) or ("it is drained" if info.admission.drained_by else None)

    def lack_mode(self, info: SystemInfo) -> str | None:
        """Return `lack` for the execution mode, which an administrator may change while the job waits."""
        if self.execution in info.admission.modes:
            return None
        return f"its mode is {' and '.join(info.admission.modes)}"


class SystemPool:
    """The systems of which a job may use any one; with one address, that system.

    Args:
        addresses: Addresses of the systems, from `parse_addresses`.

    Attributes:
        chosen: Address of the system that the job uses; None before it is known.
    """

    def __init__(self, addresses: Sequence[SystemAddress]) -> None:
        self.addresses = tuple(addresses)
        self.chosen = self.addresses[0] if len(self.addresses) == 1 else None

    def read_clock(self) -> tuple[str, ClockSample]:
        """Return the clock of the chosen system, as `SystemClient.read_clock`.

        Raises:
            CsSystemError: no system is chosen yet, or it does not answer.
        """
        if self.chosen is None:
            raise ConnectionLostError("no system of the pool is chosen yet")
        with SystemClient(self.chosen) as client:
            return client.read_clock()

    def statuses(self) -> list[SystemInfo]:
        """Return the status of every system that answers; the others are logged.

        Raises:
            CsSystemError: none answers.
        """
        answers = read_statuses(self.addresses)
        errors = [answer for _, answer in answers if isinstance(answer, CsSystemError)]
        if len(errors) == len(answers):
            raise errors[0]
        for error in errors:
            log.warning("skipping a CS system of the pool: %s", error)
        return [answer for _, answer in answers if isinstance(answer, SystemInfo)]

    # The chief

    @contextmanager
    def reserve(
        self, job: str, token: str, requirements: Requirements, *, wait: bool, on_wait: OnWait | None = None
    ) -> Iterator[tuple[SystemClient, Reservation]]:
        """Reserve the first free system for the body, and never two.

        Args:
            job: Name of the job.
            token: The job's secret.
            requirements: Required of the system, if there are several.
            wait: If all are busy, queue for all of them, and take the first one that becomes free.
            on_wait: Called with a sentence about the queues, about every two seconds.

        Raises:
            SystemBusyError: all are busy, and `wait` is false.
            CsSystemError: no system answers, or none is fit for the job.
        """
        if len(self.addresses) == 1:
            # It has answered before; a system that is stopped just now may return.
            with SystemClient(self.addresses[0], peer_timeout_s(os.environ)) as client:
                yield client, client.reserve(job, token, wait=wait, on_wait=on_wait)
            return
        clients = self._connect(requirements)
        try:
            client, reservation = _reserve_free(clients, job, token) or (
                _reserve_first(clients, job, token, requirements, on_wait) if wait else _refuse_busy(clients)
            )
            self.chosen = client.address
            log.info("using the CS system at %s, the first free one of %d", client.address, len(clients))
            _close_all(other for other in clients if other is not client)
            yield client, reservation
        finally:
            _close_all(clients)

    def _connect(self, requirements: Requirements) -> list[SystemClient]:
        """Connect to all systems on which the job can run; those without a job and queue come first."""
        clients: list[tuple[bool, int, SystemClient]] = []
        reasons = []
        for address, info in read_statuses(self.addresses):
            if isinstance(info, SystemInfo):
                reason = requirements.lack(info)
                if reason is None:
                    try:
                        clients.append((info.run is not None, info.waiting_jobs, SystemClient(address)))
                        continue
                    except _SKIPPED as error:
                        reason = str(error)
            else:
                reason = str(info)
            reasons.append(f"{address}: {reason}")
            log.warning("skipping the CS system at %s: %s", address, reason)
        if not clients:
            raise SystemUnreachableError(
                "the job can run on none of the CS systems:\n  " + "\n  ".join(reasons)
            )
        return [client for *_, client in sorted(clients, key=lambda entry: entry[:2])]

    # Workers

    def join_run(
        self, job: str, token: str, timeout_s: float, identity: InputIdentity, worker: str, on_wait: OnWait
    ) -> RunTicket:
        """Wait, as a worker, until the chief of the job has opened the input on one of the systems.

        The arguments are those of `cs_system.client.join_run`; so are the errors, of the last system.
        """
        if len(self.addresses) == 1:
            return join_run(self.addresses[0], job, token, timeout_s, identity, worker, on_wait)
        events: queue.Queue[tuple[SystemAddress, RunTicket | CsSystemError | str]] = queue.Queue()
        ended = threading.Event()

        def report(address: SystemAddress, text: str) -> None:
            if ended.is_set():
                raise _EndedError
            events.put((address, text))

        def join(address: SystemAddress) -> None:
            try:
                found = join_run(
                    address, job, token, timeout_s, identity, worker, lambda text: report(address, text)
                )
            except _EndedError:
                return
            except CsSystemError as error:
                events.put((address, error))
            else:
                events.put((address, found))

        for address in self.addresses:
            threading.Thread(target=join, args=(address,), name=f"join {address}", daemon=True).start()
        left = len(self.addresses)
        texts: dict[SystemAddress, str] = {}
        try:
            while True:
                address, event = _next(events)
                if isinstance(event, RunTicket):
                    self.chosen = address
                    return event
                if isinstance(event, str):
                    texts[address] = event
                    on_wait(_explain_joins(list(texts.values()), len(self.addresses)))
                    continue
                left -= 1
                texts.pop(address, None)
                # Other errors come from the system that has the job's run, which refuses the worker.
                if left == 0 or not isinstance(event, (*_SKIPPED, JoinTimeoutError)):
                    raise event
                log.warning("skipping a CS system of the pool: %s", event)
        finally:
            ended.set()


class _EndedError(Exception):
    """Another system of the pool has the run."""


def _explain_joins(texts: Sequence[str], count: int) -> str:
    """Return the sentence of the system that knows the job, else one for all of them."""
    known = [text for text in texts if not text.endswith("its chief has not asked for it")]
    return known[0] if known else f"{texts[0].rpartition(': ')[0]}: it has asked none of the {count} systems"


def _reserve_free(
    clients: Sequence[SystemClient], job: str, token: str
) -> tuple[SystemClient, Reservation] | None:
    for client in clients:
        try:
            return client, client.reserve(job, token)
        except (SystemBusyError, SystemDrainedError, *_SKIPPED) as error:
            log.debug("%s: %s", client.address, error)
    return None


def _refuse_busy(clients: Sequence[SystemClient]) -> tuple[SystemClient, Reservation]:
    runs = [(client.address, run) for client in clients if (run := client.info().run) is not None]
    held = "; ".join(f"{address} is held by {run.job} since {clock_text(run.since)}" for address, run in runs)
    raise SystemBusyError(
        f"all {len(clients)} CS systems are busy{held and ': '}{held}; try again later, or wait for the "
        "first free one with csrun_wse --wait",
        job=runs[0][1].job if runs else "",
        since=clock_text(runs[0][1].since) if runs else "",
    )


def _reserve_first(
    clients: Sequence[SystemClient],
    job: str,
    token: str,
    requirements: Requirements,
    on_wait: OnWait | None,
) -> tuple[SystemClient, Reservation]:
    """Queue for all systems at the same time; return the first reservation that is granted."""
    events: queue.Queue[tuple[SystemClient, Reservation | CsSystemError | str]] = queue.Queue()
    lock, is_taken = threading.Lock(), False

    def take() -> bool:
        """Return True once: two systems may become free at the same time."""
        nonlocal is_taken
        with lock:
            was_taken, is_taken = is_taken, True
        return not was_taken

    def wait(client: SystemClient) -> None:
        try:
            reservation = client.reserve(
                job, token, wait=True, on_wait=lambda text: events.put((client, text))
            )
            if (reason := requirements.lack_mode(client.info())) is not None:
                client.close()  # ends the reservation
                raise SystemUnreachableError(f"the job can no longer run there: {reason}")
        except CsSystemError as error:
            events.put((client, error))
            return
        except ValueError:
            if not is_taken:
                raise
            return  # the channel was closed before the call
        if take():
            events.put((client, reservation))
        else:
            client.close()  # ends the reservation

    threads = {
        client: threading.Thread(target=wait, args=(client,), name=f"queue {client.address}", daemon=True)
        for client in clients
    }
    for thread in threads.values():
        thread.start()
    texts: dict[SystemClient, str] = {}
    left = set(clients)
    granted: SystemClient | None = None
    try:
        while True:
            client, event = _next(events)
            if isinstance(event, Reservation):
                granted = client
                return client, event
            if isinstance(event, str):
                texts[client] = event.removeprefix("waiting for the CS system at ")
                if on_wait is not None:
                    states = "; ".join(texts[each] for each in left if each in texts)
                    on_wait(f"waiting for the first free one of {len(left)} CS systems: {states}")
                continue
            left.discard(client)
            if not left:
                raise event
            log.warning("skipping the CS system at %s: %s", client.address, event)
    finally:
        take()
        for client, thread in threads.items():
            if client is not granted:
                # Ends its place in the queue.
                client.close()
                thread.join(_END_S)


def _next(events: queue.Queue[T]) -> T:
    """Return the next event; a signal is handled in the meantime."""
    while True:
        try:
            return events.get(timeout=_POLL_S)
        except queue.Empty:
            continue


def _close_all(clients: Iterable[SystemClient]) -> None:
    for client in clients:
        client.close()
