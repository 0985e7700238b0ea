"""Weights on their way to a wafer: into two slots of memory, one computes while the other fills."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Mapping

import numpy as np

from cs_stream.sockets import shut_down, tune
from cs_system.errors import CsSystemError, MemoryxError, from_wire
from cs_system.memoryx.frames import (
    MAX_TEXT_BYTES,
    FrameType,
    Header,
    aligned_empty,
    padded_bytes,
    receive_header,
    receive_payload,
    receive_tensors,
    send_frame,
    views,
)
from cs_toolkit.shards import Shard

SLOTS = 2
"""Calls whose weights are on the wafer: one computes, one arrives."""

_CONNECT_TIMEOUT_S = 10.0

Arrays = list[np.ndarray]
Failed = Callable[[CsSystemError], None]
Arriving = queue.SimpleQueue[Arrays | CsSystemError]


class WeightStream:
    """A connection on which weights come from MemoryX.

    Args:
        address: Host and port of MemoryX.
        shard: Of the step that is there.
        failed: Told what has gone wrong, where it is not this side that hangs up.

    Attributes:
        address: See the argument.

    Raises:
        MemoryxError: nobody answers there.
    """

    def __init__(self, address: tuple[str, int], shard: Shard, failed: Failed) -> None:
        self.address = address
        self._name = f"{address[0]}:{address[1]}"
        self._shard, self._schedule, self._traffic = shard, shard.schedule, shard.traffic
        self._failed = failed
        self._sock = connected(address)
        specs = self._schedule.values
        coming = [[specs[number] for number in numbers] for numbers in self._traffic.to_wafer]
        slot_bytes = max(map(padded_bytes, coming), default=0)
        slots = [aligned_empty(slot_bytes) for _ in range(SLOTS)]
        self._weights = [[views(slot, specs) for specs in coming] for slot in slots]
        self._slot = 0
        self._room = threading.Semaphore(SLOTS)
        self._arrived: Arriving = queue.SimpleQueue()
        self._failure: CsSystemError | None = None
        self._threads: list[threading.Thread] = []

    def weights(self) -> Arrays:
        """What comes before the next call; the arrays are there until `computed` says that they may go.

        Raises:
            CsSystemError: MemoryX has gone or failed.
        """
        return self._result(self._arrived)

    def computed(self) -> None:
        """The oldest call whose weights are here has read them."""
        self._room.release()

    def close(self) -> None:
        """Hangs up."""
        self._failure = self._failure or MemoryxError("the connection to MemoryX is closed")
        shut_down(self._sock)
        for _ in range(SLOTS):
            self._room.release()
        for thread in self._threads:
            thread.join()
        self._sock.close()

    def _start(self, name: str, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, name=f"memoryx {name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _receive(self) -> None:
        try:
            while True:
                self._take(receive_header(self._sock))
        except (ConnectionError, CsSystemError) as error:
            self._fail(error if isinstance(error, CsSystemError) else self._gone(error))

    def _take(self, header: Header) -> None:
        if header.type is not FrameType.WEIGHTS:
            raise self._refusal(header)
        self._room.acquire()
        if self._failure is not None:
            raise self._failure  # nobody computes: of weights that have come, more may be there than room
        arrays = self._weights[self._slot][header.index]
        self._slot = (self._slot + 1) % SLOTS
        receive_tensors(self._sock, header, arrays)
        self._arrived.put(arrays)

    def _result(self, arrived: Arriving) -> Arrays:
        found = arrived.get()
        if isinstance(found, CsSystemError):
            arrived.put(found)  # for whoever asks again
            raise found
        return found

    def _refusal(self, header: Header) -> CsSystemError:
        return refusal(self._sock, header, self._name)

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
    """Another wafer of a group: it gets the weights, while the first one begins steps and sends gradients."""

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

    def begin(self, inputs: Arrays) -> None:
        """Does nothing: the first wafer begins the step."""

    def results(self, call: int, results: object) -> None:
        """Does nothing: the first wafer sends the sums of all."""

    def answers(self) -> Mapping[int, np.ndarray]:
        """Nothing: the first wafer gets them."""
        return {}
