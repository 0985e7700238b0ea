"""Weights on their way to a wafer: into two slots of memory, one computes while the other fills.

From a MemoryX on the same machine they need no slots: they are read where they are in its file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cs_stream.sockets import shut_down, tune
from cs_system.errors import CsSystemError, MemoryxError, from_wire
from cs_system.memoryx.protocol import (
    HEARTBEAT_TIMEOUT_S,
    MAX_TEXT_BYTES,
    UNRESPONSIVE_S,
    FrameType,
    Header,
    aligned_empty,
    padded_bytes,
    receive_fresh,
    receive_header,
    receive_payload,
    receive_tensors,
    send_frame,
    views,
)
from cs_system.memoryx.store import SharedFiles, SharedModel, always_streamed
from cs_toolkit.layered_step import Schedule, Shard

log = logging.getLogger("cs_system.server")

SLOTS = 2
"""Calls whose weights are on the wafer: one computes, one arrives."""

_CONNECT_TIMEOUT_S = 10.0

_LOOK_S = 0.5

_LAST_DATA_RECEIVED = struct.Struct("@52xI")
"""Of Linux's `tcp_info`: milliseconds since anything came."""

Arrays = list[np.ndarray]
Failed = Callable[[CsSystemError], None]
Computing = Callable[[], bool]
T = TypeVar("T")


@dataclass(frozen=True)
class Arrival:
    """The weights of a call, and between which monotonic times they came."""

    arrays: Arrays
    began_s: float
    ended_s: float


@dataclass
class Transfer:
    """How long weights have travelled.

    Attributes:
        seconds: in all.
        waited_s: of these at most the seconds in which the wafer had nothing to compute.
    """

    seconds: float = 0.0
    waited_s: float = 0.0


class WeightStream:
    """A connection on which weights come from MemoryX.

    Args:
        address: Host and port of MemoryX.
        shard: Of the step that is there.
        failed: Told what has gone wrong, where it is not this side that hangs up.
        maps_files: See `MemoryxConfig`.
        heartbeat_timeout_s: Silence after which MemoryX counts as lost.

    Attributes:
        address: See the argument.
        transfer: Of the weights that the wafer has taken.

    Raises:
        MemoryxError: nobody answers there.
    """

    _reads_in_place = True
    """Weights in a file that both map are read there: they are changed when this wafer has ended its step."""

    def __init__(
        self,
        address: tuple[str, int],
        shard: Shard,
        failed: Failed,
        maps_files: bool = True,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        self.address = address
        self._maps_files = maps_files
        self._threads: list[threading.Thread] = []
        self.transfer = Transfer()
        self._name = f"{address[0]}:{address[1]}"
        self._shard, self._schedule, self._traffic = shard, shard.schedule, shard.traffic
        self._failed = failed
        self._sock = connected(address)
        self._silence = Watchdog(self._name, self._sock, self._overdue, heartbeat_timeout_s)
        self._start("silence", self._silence.watch)
        self._files: SharedModel | None = None
        self._coming: Sequence[Sequence[int]] = self._traffic.to_wafer
        self._announced: queue.SimpleQueue[tuple[int, dict[int, np.ndarray]] | None] = queue.SimpleQueue()
        self._slots: list[list[dict[int, np.ndarray]]] = []
        self._slot = 0
        self._room = threading.Semaphore(SLOTS)
        self._read: deque[int] = deque()
        self._arrived: queue.SimpleQueue[Arrival | CsSystemError] = queue.SimpleQueue()
        self._failure: CsSystemError | None = None

    def weights(self, is_computing: Computing) -> Arrays:
        """What comes before the next call; the arrays are there until `computed` says that they may go.

        Args:
            is_computing: Whether the device still computes the call before.

        Raises:
            CsSystemError: MemoryX has gone or failed.
        """
        began_s = time.monotonic()
        found = result(self._arrived)
        self.transfer.seconds += found.ended_s - found.began_s
        if not is_computing():
            self.transfer.waited_s += max(0.0, found.ended_s - max(began_s, found.began_s))
        return found.arrays

    def release_weights(self) -> None:
        """The oldest call whose weights are here has read them."""
        call = self._read.popleft()
        if self._files is not None and self._reads_in_place:
            self._files.leave(call)
        self._room.release()

    def close(self) -> None:
        """Hangs up."""
        self._failure = self._failure or MemoryxError("the connection to MemoryX is closed")
        shut_down(self._sock)
        self._silence.end()
        self._announced.put(None)
        for _ in range(SLOTS):
            self._room.release()
        for thread in self._threads:
            thread.join()
        self._sock.close()
        if self._files is not None:
            self._files.close()

    def _opened(self, header: Header) -> None:
        """MemoryX has the model, and says where its files are."""
        files = SharedFiles.from_json(bytes(receive_payload(self._sock, header, MAX_TEXT_BYTES)))
        self._files = files.mapped(self._shard) if self._maps_files else None
        in_slots: Sequence[Sequence[int]] = self._traffic.to_wafer
        if self._files is not None:
            self._coming = always_streamed(self._shard)
            if self._reads_in_place:
                in_slots = [()] * len(in_slots)
            self._start("files", self._fetch)
        self._slots = _slots(self._schedule, in_slots)
        send_frame(self._sock, FrameType.MAPPED, int(self._files is not None))

    def _start(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=f"memoryx {name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _receive(self) -> None:
        try:
            while True:
                self._silence.reads()
                self._take(receive_header(self._sock))
        except (ConnectionError, CsSystemError) as error:
            self._fail(error if isinstance(error, CsSystemError) else self._gone(error))

    def _take(self, header: Header) -> None:
        if header.type is FrameType.ALIVE:
            return
        if header.type is not FrameType.WEIGHTS:
            raise self._refusal(header)
        call, coming = header.index, self._coming[header.index]
        if self._files is None:
            began_s, places = self._next_slot(call)
            receive_tensors(self._sock, header, list(places.values()))
            self._put(call, began_s, places)
        else:
            # Small, and never waits for room: what comes behind it may be what the wafer waits for.
            specs = [self._schedule.values[number] for number in coming]
            small = zip(coming, receive_fresh(self._sock, header, specs), strict=True)
            self._announced.put((call, dict(small)))

    def _fetch(self) -> None:
        """Gets weights from the files of MemoryX as it says that they are there."""
        assert self._files is not None
        with contextlib.suppress(CsSystemError):
            while (announced := self._announced.get()) is not None:
                call, small = announced
                began_s, places = self._next_slot(call)
                if self._reads_in_place:
                    large = self._files.weights(call)
                else:
                    large = self._files.copied(call, places)
                self._put(call, began_s, large | small)

    def _next_slot(self, call: int) -> tuple[float, dict[int, np.ndarray]]:
        """Waits for room; the time then, and the memory for the weights of a call by number.

        Raises:
            CsSystemError: nobody computes any more: of weights that have come, more may be there than room.
        """
        with self._silence.resting() if self._files is None else contextlib.nullcontext():
            self._room.acquire()
        if self._failure is not None:
            raise self._failure
        places = self._slots[self._slot][call]
        self._slot = (self._slot + 1) % SLOTS
        return time.monotonic(), places

    def _put(self, call: int, began_s: float, found: Mapping[int, np.ndarray]) -> None:
        self._read.append(call)
        arrays = [found[number] for number in self._traffic.to_wafer[call]]
        self._arrived.put(Arrival(arrays, began_s, time.monotonic()))

    def _refusal(self, header: Header) -> CsSystemError:
        return refusal(self._sock, header, self._name)

    def unresponsive(self) -> str | None:
        """That MemoryX has not answered for seconds; None while it does."""
        return self._silence.unresponsive()

    def _overdue(self, silent_s: float) -> None:
        self._fail(
            MemoryxError(
                f"MemoryX at {self._name} has not answered for {silent_s:.0f} s; the state is lost, start "
                "the job again: a training continues from its last checkpoint"
            )
        )
        shut_down(self._sock)

    def _gone(self, error: ConnectionError) -> MemoryxError:
        return gone(self._name, error)

    def _fail(self, error: CsSystemError) -> None:
        is_news, self._failure = self._failure is None, self._failure or error
        self.end(self._failure)
        if is_news:
            self._failed(error)

    def end(self, error: CsSystemError) -> None:
        """Whoever waits for something of MemoryX gets an error."""
        self._failure = self._failure or error
        self._arrived.put(self._failure)


def result(arrived: queue.SimpleQueue[T | CsSystemError]) -> T:
    """Waits for the next of what arrives.

    Raises:
        CsSystemError: in its place.
    """
    found = arrived.get()
    if isinstance(found, CsSystemError):
        arrived.put(found)  # for whoever asks again
        raise found
    return found


def _slots(schedule: Schedule, coming: Sequence[Sequence[int]]) -> list[list[dict[int, np.ndarray]]]:
    """For each slot and call the memory of what comes, by number."""
    specs = [[schedule.values[number] for number in numbers] for numbers in coming]
    memory = [aligned_empty(max(map(padded_bytes, specs), default=0)) for _ in range(SLOTS)]
    return [
        [dict(zip(numbers, views(slot, of), strict=True)) for numbers, of in zip(coming, specs, strict=True)]
        for slot in memory
    ]


def connected(address: tuple[str, int]) -> socket.socket:
    """A connection to MemoryX.

    Raises:
        MemoryxError: nobody answers there.
    """
    try:
        sock = socket.create_connection(address, _CONNECT_TIMEOUT_S)
    except OSError as error:
        raise MemoryxError(
            f"no MemoryX answers at {address[0]}:{address[1]}: {error.strerror or error}; check --memoryx, "
            "and that it runs (`cs_system memoryx serve`)"
        ) from error
    tune(sock)
    return sock


def gone(name: str, error: ConnectionError) -> MemoryxError:
    """MemoryX at an address does not answer any more."""
    return MemoryxError(
        f"MemoryX at {name} has gone ({error}); the state is lost, start the job again: a training "
        "continues from its last checkpoint"
    )


def refusal(sock: socket.socket, header: Header, name: str) -> CsSystemError:
    """What MemoryX says in the place of an answer, whose header is here."""
    if header.type is not FrameType.FAILED:
        return MemoryxError(f"MemoryX at {name} sent {header.type.name}, which a wafer sends")
    fields = json.loads(receive_payload(sock, header, MAX_TEXT_BYTES))
    return from_wire(fields["code"], fields["message"], {})


class Listener(WeightStream):
    """Another wafer of a group: it gets the weights, while the first one begins steps and sends gradients.

    It may still read weights when the first one has ended its step, so it reads none in place.
    """

    _reads_in_place = False

    def join(self, token: str) -> None:
        """Joins a group.

        Raises:
            MemoryxError: MemoryX has gone.
        """
        try:
            send_frame(self._sock, FrameType.JOIN, 0, token.encode())
        except ConnectionError as error:
            raise self._gone(error) from error
        self._start("weights", self._receive)

    def _take(self, header: Header) -> None:
        if header.type is FrameType.OPENED:
            self._opened(header)
        else:
            super()._take(header)

    def begin(self, inputs: Arrays) -> None:
        """Does nothing: the first wafer begins the step."""

    def send_results(self, call: int, results: object) -> None:
        """Does nothing: the first wafer sends the sums of all."""

    def answers(self) -> Mapping[int, np.ndarray]:
        """Nothing: the first wafer gets them."""
        return {}


class Watchdog:
    """Watches a connection to MemoryX, on which something comes every second while it answers.

    Nothing is missed while nobody reads, as when there is no room for weights.

    Args:
        name: Of the address.
        sock: Connected.
        overdue: Called when the silence has lasted too long.
        heartbeat_timeout_s: Silence that is too long.
    """

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        overdue: Callable[[float], None],
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        self._name, self._sock, self._overdue = name, sock, overdue
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._reads_since_s: float | None = None
        self._has_ended = threading.Event()

    def watch(self) -> None:
        """Names MemoryX in the log when it is silent, and says when it is overdue; returns after `end`."""
        is_late = False
        while not self._has_ended.wait(_LOOK_S):
            silent_s = self.seconds()
            if silent_s >= self._heartbeat_timeout_s:
                self._overdue(silent_s)
                return
            if silent_s >= UNRESPONSIVE_S and not is_late:
                log.warning("%s", self._text(silent_s))
            elif is_late and silent_s < UNRESPONSIVE_S:
                log.info("MemoryX at %s answers again", self._name)
            is_late = silent_s >= UNRESPONSIVE_S

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._has_ended.set()

    def reads(self) -> None:
        """This side waits for the next frame."""
        self._reads_since_s = time.monotonic()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """This side does not read in the body."""
        self._reads_since_s = None
        try:
            yield
        finally:
            self.reads()

    def seconds(self) -> float:
        """How long nothing has come although this side reads."""
        since_s = self._reads_since_s
        if since_s is None or self._has_ended.is_set():
            return 0.0
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
        except OSError:
            return 0.0  # closed, which is told elsewhere
        silent_s: float = _LAST_DATA_RECEIVED.unpack(info)[0] / 1000
        return min(time.monotonic() - since_s, silent_s)

    def unresponsive(self) -> str | None:
        """What is to be told of it; None while it answers."""
        silent_s = self.seconds()
        return None if silent_s < UNRESPONSIVE_S else self._text(silent_s)

    def _text(self, silent_s: float) -> str:
        return (
            f"MemoryX at {self._name} has not answered for {silent_s:.0f} s; "
            f"the run ends after {self._heartbeat_timeout_s:g} s"
        )
