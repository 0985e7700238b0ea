"""MemoryX as a wafer sees it: one process or several, each with whole layers of the model.

The wafer passes on between them what the gradients of each contribute to a norm; all do the same with the
same values in the same order, so the numbers do not depend on how many there are.

A `MemoryxClient` has two threads: one takes frames from the socket into two slots of memory, so that the
weights of a call come while the one before is computed; one sends results when the device has computed them.
"""

from __future__ import annotations

import itertools
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from cs_stream.sockets import shut_down
from cs_system.engine.executable import Executables
from cs_system.errors import CsSystemError, ExecutionError
from cs_system.memoryx.protocol import (
    HEARTBEAT_TIMEOUT_S,
    FrameType,
    Header,
    Opening,
    receive_fresh,
    receive_header,
    send_frame,
    send_tensors,
)
from cs_system.memoryx.weights import (
    Arrays,
    Computing,
    Failed,
    Listener,
    Transfer,
    WeightStream,
    connected,
    gone,
    refusal,
    result,
)
from cs_toolkit.layered_step import Schedule, Shard, owner, shards, traffic
from cs_toolkit.step import StepInterface, TensorSpec

_WAITING = 8
"""Frames that wait to be sent."""

Address = tuple[str, int]

S = TypeVar("S", bound=WeightStream)

Contributed = Callable[[int, Arrays], None]

Results = Callable[[], Arrays]
"""Waits for the device and gives what it has computed."""


class MemoryxClient(WeightStream):
    """A wafer that opens a model, begins steps, and sends what they compute; see `WeightStream`.

    Args:
        address: Host and port of MemoryX.
        shard: Of the step that is there.
        failed: See `WeightStream`.
        contributed: Gets the round and what the gradients there contribute for the other parts.
        maps_files, heartbeat_timeout_s: See `WeightStream`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        shard: Shard,
        failed: Failed,
        contributed: Contributed,
        maps_files: bool = True,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        super().__init__(address, shard, failed, maps_files, heartbeat_timeout_s)
        self._contributed = contributed
        self._answered: queue.SimpleQueue[Arrays | CsSystemError] = queue.SimpleQueue()
        self._kept: queue.SimpleQueue[Arrays | CsSystemError] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._begun = self._updated = 0
        # Bounded: state on its way to MemoryX may be larger than this machine's memory.
        self._to_send: queue.Queue[tuple[FrameType, int, Results] | None] = queue.Queue(_WAITING)

    def open(
        self,
        schedule: Schedule,
        functions: Mapping[int, tuple[bytes, StepInterface]],
        token: str,
        listeners: int = 0,
    ) -> None:
        """Sends the model; `wait_open` waits until it is understood.

        Args:
            schedule: Of the whole step.
            functions: Bytes and interface of what MemoryX computes, by number.
            token: By which other wafers join, and readers of its state.
            listeners: How many of them.

        Raises:
            MemoryxError: MemoryX has gone.
        """
        interfaces = {number: interface for number, (_, interface) in functions.items()}
        opening = Opening(schedule, interfaces, token, listeners, self._shard.index, self._shard.count)
        try:
            send_frame(self._sock, FrameType.OPEN, 0, opening.to_json())
            for number, (data, _) in functions.items():
                send_frame(self._sock, FrameType.FUNCTION, number, data)
        except ConnectionError as error:
            raise self._gone(error) from error

    def wait_open(self) -> None:
        """Waits until MemoryX has the model, and room for its state.

        Raises:
            MemoryxError: MemoryX has gone.
            CsSystemError: it refuses; there is no room for the state.
        """
        try:
            self._silence.reads()
            while (header := receive_header(self._sock)).type is FrameType.ALIVE:
                self._silence.reads()
            if header.type is not FrameType.OPENED:
                raise self._refusal(header)
            self._opened(header)
        except ConnectionError as error:
            raise self._failure or self._gone(error) from error
        self._start("weights", self._receive)
        self._start("gradients", self._send)

    # State, between steps

    def put(self, number: int, array: np.ndarray) -> None:
        """Sends a tensor of the state, in the device's dtype."""
        self._queue(FrameType.PUT, number, lambda: [array])

    def snapshot(self, numbers: Sequence[int]) -> None:
        """Has MemoryX keep some state as it is after the steps begun so far, for a `StateReader`.

        Raises:
            CsSystemError: MemoryX has gone or failed.
        """
        wanted = np.array(numbers, np.uint32)
        self._queue(FrameType.SNAPSHOT, len(numbers), lambda: [wanted])
        result(self._kept)

    # A step

    def begin(self, inputs: Arrays) -> None:
        """Begins a step: its first weights come."""
        self._queue(FrameType.BEGIN, 0, lambda: inputs)

    def send_results(self, call: int, results: Results) -> None:
        """Sends what a call has computed for MemoryX, once the device has done it."""
        self._queue(FrameType.RESULTS, call, results)

    def share(self, index: int, values: Arrays) -> None:
        """Sends what the gradients of the other parts contribute to a round."""
        self._queue(FrameType.SHARED, index, lambda: values)

    def answers(self) -> dict[int, np.ndarray]:
        """What the oldest step without answers puts out of its update, by number.

        Raises:
            CsSystemError: MemoryX has gone or failed.
        """
        numbers = self._traffic.answers
        if not numbers:
            return {}
        arrays: Arrays = result(self._answered)
        return dict(zip(numbers, arrays, strict=True))

    def close(self) -> None:
        """Hangs up: MemoryX forgets the model."""
        shut_down(self._sock)
        self._to_send.put(None)
        super().close()

    # The threads

    def _take(self, header: Header) -> None:
        specs = self._schedule.values
        if header.type is FrameType.ANSWERS:
            self._answered.put(
                receive_fresh(self._sock, header, [specs[number] for number in self._traffic.answers])
            )
        elif header.type is FrameType.PARTIAL:
            given = [specs[number] for number in self._shard.given[header.index]]
            self._contributed(header.index, receive_fresh(self._sock, header, given))
        elif header.type is FrameType.DONE:
            self._kept.put([])
        elif header.type is FrameType.UPDATED:
            with self._changed:
                self._updated = header.index
                self._changed.notify_all()
        else:
            super()._take(header)

    def _send(self) -> None:
        while (item := self._to_send.get()) is not None:
            kind, index, arrays = item
            try:
                # After a failure the rest is dropped, so that nobody waits for room.
                if self._failure is None:
                    self._send_one(kind, index, arrays())
            except ConnectionError as error:
                self._fail(self._gone(error))
            except Exception as error:
                # What the device raises for a call that has failed.
                self._fail(ExecutionError(f"running the steps failed: {type(error).__name__}: {error}"))

    def _send_one(self, kind: FrameType, index: int, arrays: Arrays) -> None:
        if kind is FrameType.BEGIN:
            self._begun += 1
        if kind is FrameType.RESULTS and self._files is not None:
            with self._changed:
                # What is at its place is read by the update before.
                self._changed.wait_for(lambda: self._failure or self._updated >= self._begun - 1)
            if self._failure is None:
                self._files.put(index, arrays)
            arrays = []
        send_tensors(self._sock, kind, index, arrays)

    # Inside

    def _queue(self, kind: FrameType, index: int, arrays: Results) -> None:
        if self._failure is not None:
            raise self._failure
        self._to_send.put((kind, index, arrays))

    def end(self, error: CsSystemError) -> None:
        """See `WeightStream`."""
        super().end(error)
        for arrived in (self._answered, self._kept):
            arrived.put(self._failure or error)
        with self._changed:
            self._changed.notify_all()


class StateReader:
    """A connection that reads what a snapshot holds; for one thread at a time.

    Args:
        address: Host and port of MemoryX.
        token: Of the model.

    Raises:
        MemoryxError: nobody answers there.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self._lock = threading.Lock()
        self._sock: socket.socket = connected(address)
        try:
            send_frame(self._sock, FrameType.READ, 0, token.encode())
        except ConnectionError as error:
            raise gone(self._name, error) from error

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """A tensor of the snapshot, in the device's dtype; each may be read once.

        Raises:
            CsSystemError: MemoryX has gone or failed, or the snapshot has ended.
        """
        with self._lock:
            try:
                header = self._answer(FrameType.GET, number, FrameType.STATE)
                (array,) = receive_fresh(self._sock, header, [spec])
            except ConnectionError as error:
                raise gone(self._name, error) from error
        return array

    def end(self) -> None:
        """The rest is not read: MemoryX keeps nothing for it any more when this returns.

        It would end the next snapshot otherwise, which comes on another connection.

        Raises:
            MemoryxError: MemoryX has gone.
        """
        with self._lock:
            try:
                self._answer(FrameType.END, 0, FrameType.DONE)
            except ConnectionError as error:
                raise gone(self._name, error) from error

    def close(self) -> None:
        """Hangs up."""
        self.shut_down()
        self._sock.close()

    def shut_down(self) -> None:
        """Ends the connection; whoever reads is told that MemoryX has gone."""
        shut_down(self._sock)

    def _answer(self, kind: FrameType, index: int, expected: FrameType) -> Header:
        send_frame(self._sock, kind, index)
        header = receive_header(self._sock)
        if header.type is not expected:
            raise refusal(self._sock, header, self._name)
        return header


class _Parts(Generic[S]):
    """What comes from all processes, put together again.

    Attributes:
        on_failure: Called when one has gone, for those who wait for it elsewhere.
    """

    def __init__(self, schedule: Schedule, addresses: Sequence[Address]) -> None:
        self._schedule, self._traffic = schedule, traffic(schedule)
        self.parts = shards(schedule, len(addresses))
        self.addresses = tuple(addresses[: len(self.parts)])
        self._streams: list[S] = []
        self.on_failure: Callable[[], None] = _nothing
        self._calls = itertools.cycle(range(len(self._traffic.calls)))

    def weights(self, is_computing: Computing) -> Arrays:
        """See `WeightStream`."""
        call = next(self._calls)
        found: dict[int, np.ndarray] = {}
        for stream, part in zip(self._streams, self.parts, strict=True):
            found.update(zip(part.traffic.to_wafer[call], stream.weights(is_computing), strict=True))
        return [found[number] for number in self._traffic.to_wafer[call]]

    def release_weights(self) -> None:
        """See `WeightStream`."""
        for stream in self._streams:
            stream.release_weights()

    def unresponsive(self) -> str | None:
        """Which process has not answered for seconds; None: all answer."""
        return next((text for stream in self._streams if (text := stream.unresponsive()) is not None), None)

    def transfers(self) -> list[Transfer]:
        """Of the weights that have come from each process."""
        return [stream.transfer for stream in self._streams]

    def close(self) -> None:
        """Hangs up."""
        for stream in self._streams:
            stream.close()

    def _failed(self, error: CsSystemError) -> None:
        """One process has gone: nobody waits for the others."""
        for stream in self._streams:
            stream.end(error)
        self.on_failure()


class ShardedMemoryx(_Parts[MemoryxClient]):
    """The model of a wafer that begins steps; see `MemoryxClient`.

    Args:
        schedule: Of the step.
        addresses: Host and port of each process.
        maps_files: See `MemoryxConfig`.
        heartbeat_timeout_s: Silence after which a process counts as lost.

    Attributes:
        parts: What each process has; no more than there are layers to share out.
        addresses: Of the processes that have a part.

    Raises:
        MemoryxError: nobody answers at an address.
    """

    def __init__(
        self,
        schedule: Schedule,
        addresses: Sequence[Address],
        maps_files: bool = True,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        super().__init__(schedule, addresses)
        self._contributions: dict[int, dict[int, np.ndarray]] = {}
        self._came: dict[int, int] = {}
        self._lock = threading.Lock()
        try:
            for address, part in zip(self.addresses, self.parts, strict=True):
                taker = self._taker(part)
                self._streams.append(
                    MemoryxClient(address, part, self._failed, taker, maps_files, heartbeat_timeout_s)
                )
        except CsSystemError:
            self.close()
            raise

    def open(self, executables: Executables, token: str, listeners: int = 0) -> None:
        """Sends each process its part of the model; see `MemoryxClient.open`."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            numbers = dict.fromkeys(call.function for call in part.schedule.memory_calls())
            functions: Mapping[int, tuple[bytes, StepInterface]] = {n: executables[n] for n in numbers}
            stream.open(self._schedule, functions, token, listeners)

    def wait_open(self) -> None:
        """See `MemoryxClient.wait_open`."""
        for stream in self._streams:
            stream.wait_open()

    def put(self, number: int, array: np.ndarray) -> None:
        """Sends a tensor of the state to whoever has it: small ones to all."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            if number in part.schedule.state.values():
                stream.put(number, array)

    def snapshot(self, numbers: Sequence[int]) -> None:
        """See `MemoryxClient.snapshot`."""
        owners = [owner(self.parts, number) for number in numbers]
        for index, stream in enumerate(self._streams):
            stream.snapshot([number for number, at in zip(numbers, owners, strict=True) if at == index])

    def begin(self, inputs: Arrays) -> None:
        """See `MemoryxClient.begin`."""
        values = dict(zip(self._traffic.inputs, inputs, strict=True))
        for stream, part in zip(self._streams, self.parts, strict=True):
            stream.begin([values[number] for number in part.traffic.inputs])

    def send_results(self, call: int, results: Results) -> None:
        """See `MemoryxClient.results`."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            places = [self._traffic.to_memory[call].index(n) for n in part.traffic.to_memory[call]]
            if places:
                stream.send_results(call, lambda places=places: [results()[place] for place in places])  # type: ignore[misc]

    def answers(self) -> dict[int, np.ndarray]:
        """See `MemoryxClient.answers`."""
        found: dict[int, np.ndarray] = {}
        for stream in self._streams:
            found |= stream.answers()
        return found

    def _taker(self, part: Shard) -> Contributed:
        def take(index: int, values: Arrays) -> None:
            self._contributed(part, index, values)

        return take

    def _contributed(self, part: Shard, index: int, values: Arrays) -> None:
        """The last part of a round that contributes has all get what the others did."""
        with self._lock:
            found = self._contributions.setdefault(index, {})
            found.update(zip(part.given[index], values, strict=True))
            self._came[index] = self._came.get(index, 0) + 1
            if self._came[index] < len(self.parts):
                return
            del self._contributions[index], self._came[index]
        for stream, other in zip(self._streams, self.parts, strict=True):
            stream.share(index, [found[number] for number in other.taken[index]])


class ShardedListener(_Parts[Listener]):
    """The weights of another wafer of a group; see `Listener`. Arguments as of `ShardedMemoryx`."""

    def __init__(self, schedule: Schedule, addresses: Sequence[Address], token: str) -> None:
        super().__init__(schedule, addresses)
        for address, part in zip(self.addresses, self.parts, strict=True):
            self._streams.append(Listener(address, part, self._failed))
            self._streams[-1].join(token)

    def begin(self, inputs: Arrays) -> None:
        """Does nothing: the first wafer begins the step."""

    def send_results(self, call: int, results: object) -> None:
        """Does nothing: the first wafer sends the sums of all."""

    def answers(self) -> dict[int, np.ndarray]:
        """Nothing: the first wafer gets them."""
        return {}


class ShardedReader:
    """Reads what snapshots hold; see `StateReader`.

    Args:
        schedule: Of the step.
        addresses: Host and port of each process.
        token: Of the model.
    """

    def __init__(self, schedule: Schedule, addresses: Sequence[Address], token: str) -> None:
        self._parts = shards(schedule, len(addresses))
        self._readers = [StateReader(address, token) for address in addresses[: len(self._parts)]]

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """See `StateReader.get`."""
        return self._readers[owner(self._parts, number)].get(number, spec)

    def end(self) -> None:
        """See `StateReader.end`."""
        for reader in self._readers:
            reader.end()

    def end_all(self) -> None:
        """Whoever waits for MemoryX does so no longer."""
        for reader in self._readers:
            reader.shut_down()

    def close(self) -> None:
        """Hangs up."""
        for reader in self._readers:
            reader.close()


def _nothing() -> None:
    """Nobody else waits."""
