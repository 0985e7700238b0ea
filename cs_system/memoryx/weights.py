"""The stream of weights to a wafer.

It fills two slots of memory: the weights of a call arrive while the device computes with the previous ones.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cs_system.errors import RESUME_ADVICE, CsSystemError, MemoryxError
from cs_system.memoryx.config import MemoryxAddress
from cs_system.memoryx.protocol import (
    HEARTBEAT_INTERVAL_S,
    MAX_TEXT_BYTES,
    UNRESPONSIVE_S,
    FrameChannel,
    FrameType,
    Header,
    aligned_empty,
    greet,
    padded_bytes,
    split_views,
)
from cs_system.memoryx.store import SharedFiles, SharedModel, always_streamed
from cs_system.security import client_credentials
from cs_toolkit.layered_step import Shard
from cs_toolkit.network.connection import Connection, name_of
from cs_toolkit.network.liveness import DEFAULT_PEER_TIMEOUT_S, SilenceTimer
from cs_toolkit.security.tls import CredentialsError
from cs_toolkit.security.tls_connection import TlsError, connect

log = logging.getLogger("cs_system.server")

# Number of calls whose weights are on the wafer: one is being computed, the other is arriving.
SLOTS = 2

_CONNECT_TIMEOUT_S = 10.0
_WATCH_INTERVAL_S = 0.5

Arrays = list[np.ndarray]
OnFailure = Callable[[CsSystemError], object]
Computing = Callable[[], bool]
T = TypeVar("T")


@dataclass(frozen=True)
class Arrival:
    """The weights of a call, and the monotonic times between which they arrived."""

    arrays: Arrays
    began_s: float
    ended_s: float


@dataclass
class Transfer:
    """Transfer times of weights.

    Attributes:
        seconds: Total time.
        waited_s: Part of it in which the wafer had nothing to compute, at most.
    """

    seconds: float = 0.0
    waited_s: float = 0.0


class WeightStream:
    """A connection on which weights come from MemoryX.

    From a MemoryX on the same machine they need no slots: they are read in its mapped file.

    Args:
        address: Host and port of MemoryX.
        secret: Its secret.
        shard: Part of the step that is stored there.
        on_failure: Called with the error when the connection fails, unless this side closes it.
        maps_files: Whether to map the files of a MemoryX on the same machine.
        peer_timeout_s: Silence after which MemoryX counts as lost.

    Attributes:
        address: Host and port of MemoryX.
        transfer: Transfer times of the weights that the wafer has taken.

    Raises:
        MemoryxError: nothing answers at the address.
    """

    _reads_in_place = True
    """Read weights in the mapped file: MemoryX changes them only after this wafer has ended its step."""

    def __init__(
        self,
        address: MemoryxAddress,
        secret: str,
        shard: Shard,
        on_failure: OnFailure,
        maps_files: bool = True,
        peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S,
    ) -> None:
        self.address = address
        self._secret, self._timeout_s = secret, peer_timeout_s
        self._maps_files = maps_files
        self._threads: list[threading.Thread] = []
        self.transfer = Transfer()
        self._name = name_of(address)
        self._shard, self._schedule, self._traffic = shard, shard.schedule, shard.traffic
        self._on_failure = on_failure
        self._connection = connect_memoryx(address)
        self._watchdog = Watchdog(self._name, self._connection, self._on_timeout, peer_timeout_s)
        self._start("watchdog", self._watchdog.watch)
        self._files: SharedModel | None = None
        self._streamed: Sequence[Sequence[int]] = self._traffic.to_wafer
        self._in_files: queue.SimpleQueue[tuple[int, dict[int, np.ndarray]] | None] = queue.SimpleQueue()
        # For each slot and call, the arrays by number.
        self._slots: list[list[dict[int, np.ndarray]]] = []
        self._slot = 0
        self._room = threading.Semaphore(SLOTS)
        self._delivered: deque[int] = deque()
        self._arrived: queue.SimpleQueue[Arrival | CsSystemError] = queue.SimpleQueue()
        self._failure: CsSystemError | None = None

    def weights(self, is_computing: Computing) -> Arrays:
        """Wait for the weights of the next call; their memory is valid until `release_weights`.

        Args:
            is_computing: Returns True while the device is still computing the previous call.

        Raises:
            CsSystemError: MemoryX is gone or has failed.
        """
        began_s = time.monotonic()
        arrival = wait_for_item(self._arrived)
        self.transfer.seconds += arrival.ended_s - arrival.began_s
        if not is_computing():
            self.transfer.waited_s += max(0.0, arrival.ended_s - max(began_s, arrival.began_s))
        return arrival.arrays

    def release_weights(self) -> None:
        """Release the weights of the oldest call, which has read them."""
        call = self._delivered.popleft()
        if self._files is not None and self._reads_in_place:
            self._files.release(call)
        self._room.release()

    def close(self) -> None:
        """Close the connection."""
        self._failure = self._failure or MemoryxError("the connection to MemoryX is closed")
        self._connection.shut_down()
        self._watchdog.end()
        self._in_files.put(None)
        # Wakes a thread that is waiting for a slot.
        for _ in range(SLOTS):
            self._room.release()
        for thread in self._threads:
            thread.join()
        self._connection.close()
        # This object is part of a reference cycle with its owner, so it drops memory and files itself.
        self._slots, self._arrived = [], queue.SimpleQueue()
        self._arrived.put(self._failure)
        files, self._files = self._files, None
        if files is not None:
            files.close()

    def _greet(self) -> None:
        """Exchange proofs of the secret with MemoryX, which may still be starting.

        Raises:
            ConnectionError: MemoryX is gone, or silent.
            MemoryxError: it refuses this wafer, or does not know the secret.
        """
        self._channel = greet(self._connection, self._secret, self._timeout_s, f"MemoryX at {self._name}")

    def _map_files(self, header: Header) -> None:
        """Map the files of MemoryX if possible, and answer whether they are mapped."""
        files = SharedFiles.from_json(self._channel.receive_payload(header, MAX_TEXT_BYTES))
        self._files = files.map(self._shard) if self._maps_files else None
        in_slots: Sequence[Sequence[int]] = self._traffic.to_wafer
        if self._files is not None:
            self._streamed = always_streamed(self._shard)
            if self._reads_in_place:
                in_slots = [()] * len(in_slots)
            self._start("files", self._read_files)
        specs = [[self._schedule.values[number] for number in numbers] for numbers in in_slots]
        memory = [aligned_empty(max(map(padded_bytes, specs), default=0)) for _ in range(SLOTS)]
        self._slots = [
            [
                dict(zip(numbers, split_views(slot, call_specs), strict=True))
                for numbers, call_specs in zip(in_slots, specs, strict=True)
            ]
            for slot in memory
        ]
        self._channel.send(FrameType.MAPPED, int(self._files is not None))

    def _start(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=f"memoryx {name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _receive(self) -> None:
        try:
            while True:
                self._watchdog.expect_data()
                self._handle(self._channel.receive_header())
        except (ConnectionError, CsSystemError) as error:
            self._fail(error if isinstance(error, CsSystemError) else self._loss_error(error))

    def _handle(self, header: Header) -> None:
        if header.type is FrameType.ALIVE:
            return
        if header.type is not FrameType.WEIGHTS:
            raise answer_error(self._channel, header, self._name)
        call, numbers = header.index, self._streamed[header.index]
        if self._files is None:
            began_s, slot = self._wait_for_slot(call)
            self._channel.receive_tensors(header, list(slot.values()))
            self._deliver(call, began_s, slot)
        else:
            # Received without waiting for a slot, as it is small: the wafer may wait for the next frames.
            specs = [self._schedule.values[number] for number in numbers]
            small = zip(numbers, self._channel.receive_arrays(header, specs), strict=True)
            self._in_files.put((call, dict(small)))

    def _read_files(self) -> None:
        """Deliver weights from the files of MemoryX as they are announced."""
        assert self._files is not None
        with contextlib.suppress(CsSystemError):
            while (item := self._in_files.get()) is not None:
                call, small = item
                began_s, slot = self._wait_for_slot(call)
                if self._reads_in_place:
                    large = self._files.weights(call)
                else:
                    large = self._files.copy_weights(call, slot)
                self._deliver(call, began_s, large | small)

    def _wait_for_slot(self, call: int) -> tuple[float, dict[int, np.ndarray]]:
        """Wait for a free slot; return the time and the memory for the weights of a call by number.

        Raises:
            CsSystemError: the stream has failed, and no slot becomes free any more.
        """
        with self._watchdog.pause() if self._files is None else contextlib.nullcontext():
            self._room.acquire()
        if self._failure is not None:
            raise self._failure
        slot = self._slots[self._slot][call]
        self._slot = (self._slot + 1) % SLOTS
        return time.monotonic(), slot

    def _deliver(self, call: int, began_s: float, found: Mapping[int, np.ndarray]) -> None:
        self._delivered.append(call)
        arrays = [found[number] for number in self._traffic.to_wafer[call]]
        self._arrived.put(Arrival(arrays, began_s, time.monotonic()))

    def unresponsive(self) -> str | None:
        """Describe a MemoryX that has not answered for seconds; None while it answers."""
        return self._watchdog.unresponsive()

    def _on_timeout(self, silence_s: float) -> None:
        self._fail(
            MemoryxError(
                f"MemoryX at {self._name} has not answered for {silence_s:.0f} s; the state is lost, "
                f"{RESUME_ADVICE}"
            )
        )
        self._connection.shut_down()

    def _loss_error(self, error: ConnectionError) -> MemoryxError:
        return loss_error(self._name, error)

    def _fail(self, error: CsSystemError) -> None:
        is_news, self._failure = self._failure is None, self._failure or error
        self.end(self._failure)
        if is_news:
            self._on_failure(error)

    def end(self, error: CsSystemError) -> None:
        """End the stream: all waiting calls raise the error."""
        self._failure = self._failure or error
        self._watchdog.end()
        self._arrived.put(self._failure)


def wait_for_item(arrived: queue.SimpleQueue[T | CsSystemError]) -> T:
    """Wait for the next item of a queue.

    Raises:
        CsSystemError: the item is an error.
    """
    found = arrived.get()
    if isinstance(found, CsSystemError):
        arrived.put(found)  # for the next caller
        raise found
    return found


def connect_memoryx(address: MemoryxAddress) -> Connection:
    """Connect to MemoryX.

    Raises:
        MemoryxError: nothing answers at the address, or a certificate is not accepted.
    """
    try:
        credentials = client_credentials() if address.encrypted else None
        return connect((address.host, address.port), _CONNECT_TIMEOUT_S, credentials)
    except (CredentialsError, TlsError) as error:
        raise MemoryxError(f"MemoryX at {name_of(address)}: {error}") from error
    except OSError as error:
        raise MemoryxError(
            f"no MemoryX answers at {name_of(address)}: {error.strerror or error}; check --memoryx, "
            "and that it runs (`cs_system memoryx serve`)"
        ) from error


def loss_error(name: str, error: ConnectionError) -> MemoryxError:
    """Return the error for a lost connection to MemoryX."""
    return MemoryxError(f"MemoryX at {name} has gone ({error}); the state is lost, {RESUME_ADVICE}")


def answer_error(channel: FrameChannel, header: Header, name: str) -> CsSystemError:
    """Receive the error that MemoryX sent instead of an answer, after its header."""
    if header.type is not FrameType.FAILED:
        return MemoryxError(f"MemoryX at {name} sent {header.type.name}, which a wafer sends")
    return channel.receive_failure(header)


class WeightListener(WeightStream):
    """The weight stream of another wafer of a group: the first wafer begins steps and sends gradients.

    It may still be reading weights when the first wafer has ended its step, so it reads none in place.
    """

    _reads_in_place = False

    def join(self, name: str) -> None:
        """Join the group of a model, without waiting for MemoryX."""
        self._start("weights", lambda: self._join(name))

    def _join(self, name: str) -> None:
        try:
            self._greet()
            self._channel.send(FrameType.JOIN, 0, name.encode())
        except (ConnectionError, CsSystemError) as error:
            self._fail(error if isinstance(error, CsSystemError) else self._loss_error(error))
        else:
            self._receive()

    def _handle(self, header: Header) -> None:
        if header.type is FrameType.OPENED:
            self._map_files(header)
        else:
            super()._handle(header)

    def begin(self, inputs: Arrays) -> None:
        """Do nothing: the first wafer begins the step."""

    def send_results(self, call: int, results: object) -> None:
        """Do nothing: the first wafer sends the sums of all."""

    def answers(self) -> Mapping[int, np.ndarray]:
        """Return nothing: the first wafer gets the answers."""
        return {}


class Watchdog:
    """Watches a connection to MemoryX, which sends at least a heartbeat every second while it is running.

    A stopped MemoryX keeps its connections open, so their state does not show it. The time in which this side
    does not read, for example while no slot is free, does not count as silence.

    Args:
        name: Address of MemoryX, for messages.
        connection: The connection.
        on_timeout: Called with the seconds of silence when the time limit has passed.
        peer_timeout_s: The time limit.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        on_timeout: Callable[[float], None],
        peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S,
    ) -> None:
        self._name, self._connection, self._on_timeout = name, connection, on_timeout
        self._peer_timeout_s = peer_timeout_s
        self._expecting_since_s: float | None = None
        self._has_ended = threading.Event()

    def watch(self) -> None:
        """Log while MemoryX is silent, and call `on_timeout` when it counts as lost; returns after `end`."""
        silence = SilenceTimer(self._peer_timeout_s, time.monotonic(), _WATCH_INTERVAL_S)
        while not self._has_ended.wait(_WATCH_INTERVAL_S):
            if self.silence_s() < HEARTBEAT_INTERVAL_S + _WATCH_INTERVAL_S:
                if (silence_s := silence.heard(time.monotonic())) is not None:
                    log.info("MemoryX at %s answers again after %.0f s", self._name, silence_s)
            elif silence.check(time.monotonic()) and not silence.is_over:
                log.warning("%s", self._text(silence.silence_s))
            if silence.is_over:
                self._on_timeout(silence.silence_s)
                return

    def end(self) -> None:
        """Stop watching."""
        self._has_ended.set()

    def expect_data(self) -> None:
        """Start to count silence: this side waits for the next frame."""
        self._expecting_since_s = time.monotonic()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count silence in the body, in which this side does not read."""
        self._expecting_since_s = None
        try:
            yield
        finally:
            self.expect_data()

    def silence_s(self) -> float:
        """Return for how many seconds nothing has arrived although this side reads."""
        since_s = self._expecting_since_s
        if since_s is None or self._has_ended.is_set():
            return 0.0
        return min(time.monotonic() - since_s, self._connection.silence_s())

    def unresponsive(self) -> str | None:
        """Describe a MemoryX that has been silent for seconds; None while it answers."""
        silence_s = self.silence_s()
        return None if silence_s < UNRESPONSIVE_S else self._text(silence_s)

    def _text(self, silence_s: float) -> str:
        return (
            f"MemoryX at {self._name} has not answered for {silence_s:.0f} s; "
            f"the run ends after {self._peer_timeout_s:g} s"
        )
