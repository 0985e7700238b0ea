"""MemoryX as a wafer sees it: one process or several, each with whole layers of the model.

The wafer forwards the contributions of each process's gradients to norms. All processes compute with the
same values in the same order, so the numbers do not depend on how many there are.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from cs_system.engine.base import Executables
from cs_system.errors import CsSystemError, ExecutionError, MemoryxError
from cs_system.memoryx.config import MemoryxAddress
from cs_system.memoryx.protocol import (
    FrameType,
    Header,
    ModelDescription,
    greet,
    send_model,
)
from cs_system.memoryx.weights import (
    Arrays,
    Computing,
    OnFailure,
    Transfer,
    WeightListener,
    WeightStream,
    answer_error,
    connect_memoryx,
    loss_error,
    wait_for_item,
)
from cs_toolkit.layered_step import Schedule, Shard, owner, shards, traffic
from cs_toolkit.network.connection import name_of
from cs_toolkit.network.liveness import DEFAULT_PEER_TIMEOUT_S
from cs_toolkit.step import TensorSpec

# Capacity of the queue of frames to send.
_WAITING = 8

S = TypeVar("S", bound=WeightStream)
OnPartial = Callable[[int, Arrays], None]

# Waits for the device and returns the values that it has computed.
Results = Callable[[], Arrays]


class MemoryxClient(WeightStream):
    """The connection of a wafer that opens a model, begins steps, and sends their results.

    Two threads: one receives frames into two slots of memory, so that the weights of a call arrive while the
    previous one is computed; one sends results as soon as the device has computed them.

    Args:
        address: Host and port of MemoryX.
        secret: Its secret.
        shard: Part of the step that is stored there.
        on_failure: Called with the error when the connection fails, unless this side closes it.
        on_partial: Called with a round and the contributions of the gradients there to the other parts.
        maps_files: Whether to map the files of a MemoryX on the same machine.
        peer_timeout_s: Silence after which MemoryX counts as lost.
    """

    def __init__(
        self,
        address: MemoryxAddress,
        secret: str,
        shard: Shard,
        on_failure: OnFailure,
        on_partial: OnPartial,
        maps_files: bool = True,
        peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S,
    ) -> None:
        super().__init__(address, secret, shard, on_failure, maps_files, peer_timeout_s)
        self._opening: Future[None] = Future()
        self._on_partial = on_partial
        self._answers: queue.SimpleQueue[Arrays | CsSystemError] = queue.SimpleQueue()
        self._snapshot_done: queue.SimpleQueue[Arrays | CsSystemError] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._steps_begun = self._steps_updated = 0
        # Bounded, because the state sent to MemoryX may be larger than this machine's memory.
        self._to_send: queue.Queue[tuple[FrameType, int, Results] | None] = queue.Queue(_WAITING)

    def open(
        self,
        schedule: Schedule,
        functions: Executables,
        name: str,
        listeners: int = 0,
    ) -> None:
        """Send the model in a thread, as MemoryX may still be starting; `wait_open` waits for the answer.

        Args:
            schedule: Schedule of the whole step.
            functions: Bytes and interface of the functions that MemoryX computes, by number.
            name: Random name by which other wafers, and readers of its state, find the model.
            listeners: Number of other wafers.
        """
        interfaces = {number: interface for number, (_, interface) in functions.items()}
        model = ModelDescription(schedule, interfaces, name, listeners, self._shard.index, self._shard.count)

        def send() -> None:
            try:
                self._greet()
                send_model(self._channel, model, functions)
                self._opening.set_result(None)
            except Exception as error:
                self._opening.set_exception(error)

        self._start("opening", send)

    def wait_open(self) -> None:
        """Wait until MemoryX has the model, and storage for its state.

        Raises:
            MemoryxError: MemoryX is gone.
            CsSystemError: it refuses the model, or has no room for the state.
        """
        try:
            self._watchdog.expect_data()
            self._opening.result()
            while (header := self._channel.receive_header()).type is FrameType.ALIVE:
                self._watchdog.expect_data()
            if header.type is not FrameType.OPENED:
                raise answer_error(self._channel, header, self._name)
            self._map_files(header)
        except ConnectionError as error:
            raise self._failure or self._loss_error(error) from error
        self._start("weights", self._receive)
        self._start("gradients", self._send)

    # State, between steps

    def put(self, number: int, array: np.ndarray) -> None:
        """Send a state tensor, in the device's dtype."""
        self._queue(FrameType.PUT, number, lambda: [array])

    def snapshot(self, numbers: Sequence[int]) -> None:
        """Have MemoryX keep state as it is after the steps begun so far, for a `StateReader`.

        Raises:
            CsSystemError: MemoryX is gone or has failed.
        """
        array = np.array(numbers, np.uint32)
        self._queue(FrameType.SNAPSHOT, len(numbers), lambda: [array])
        wait_for_item(self._snapshot_done)

    # A step

    def begin(self, inputs: Arrays) -> None:
        """Begin a step: MemoryX starts to send its weights."""
        self._queue(FrameType.BEGIN, 0, lambda: inputs)

    def send_results(self, call: int, results: Results) -> None:
        """Send the results of a call, as soon as the device has computed them."""
        self._queue(FrameType.RESULTS, call, results)

    def share(self, index: int, values: Arrays) -> None:
        """Send the contributions of the other parts' gradients to a round."""
        self._queue(FrameType.SHARED, index, lambda: values)

    def answers(self) -> dict[int, np.ndarray]:
        """Wait for the outputs that the update of the oldest unanswered step computes; by number.

        Raises:
            CsSystemError: MemoryX is gone or has failed.
        """
        numbers = self._traffic.answers
        if not numbers:
            return {}
        arrays: Arrays = wait_for_item(self._answers)
        return dict(zip(numbers, arrays, strict=True))

    def close(self) -> None:
        """Close the connection: MemoryX drops the model."""
        self._connection.shut_down()
        self._to_send.put(None)
        super().close()

    # The threads

    def _handle(self, header: Header) -> None:
        specs = self._schedule.values
        if header.type is FrameType.ANSWERS:
            self._answers.put(
                self._channel.receive_arrays(header, [specs[number] for number in self._traffic.answers])
            )
        elif header.type is FrameType.PARTIAL:
            given = [specs[number] for number in self._shard.given[header.index]]
            self._on_partial(header.index, self._channel.receive_arrays(header, given))
        elif header.type is FrameType.DONE:
            self._snapshot_done.put([])
        elif header.type is FrameType.UPDATED:
            with self._changed:
                self._steps_updated = header.index
                self._changed.notify_all()
        else:
            super()._handle(header)

    def _send(self) -> None:
        while (item := self._to_send.get()) is not None:
            kind, index, arrays = item
            try:
                # After a failure the rest is dropped, so that no caller waits for room in the queue.
                if self._failure is None:
                    self._send_one(kind, index, arrays())
            except ConnectionError as error:
                self._fail(self._loss_error(error))
            except Exception as error:
                # The device raises the error of a failed call when its results are read.
                self._fail(ExecutionError(f"running the steps failed: {type(error).__name__}: {error}"))

    def _send_one(self, kind: FrameType, index: int, arrays: Arrays) -> None:
        if kind is FrameType.BEGIN:
            self._steps_begun += 1
        if kind is FrameType.RESULTS and self._files is not None:
            with self._changed:
                # The previous update still reads the values at this place.
                self._changed.wait_for(lambda: self._failure or self._steps_updated >= self._steps_begun - 1)
            if self._failure is None:
                self._files.write_results(index, arrays)
            arrays = []
        self._channel.send_arrays(kind, index, arrays)

    def _queue(self, kind: FrameType, index: int, arrays: Results) -> None:
        if self._failure is not None:
            raise self._failure
        self._to_send.put((kind, index, arrays))

    def end(self, error: CsSystemError) -> None:
        """End the stream: all waiting calls raise the error."""
        super().end(error)
        for arrived in (self._answers, self._snapshot_done):
            arrived.put(self._failure or error)
        with self._changed:
            self._changed.notify_all()


class StateReader:
    """A separate connection that reads a snapshot while steps run; for one thread at a time.

    Args:
        address: Host and port of MemoryX.
        secret: Its secret.
        name: Name of the model.
        peer_timeout_s: Silence after which MemoryX counts as lost.

    Raises:
        MemoryxError: nothing answers at the address, or it refuses this reader.
    """

    def __init__(
        self,
        address: MemoryxAddress,
        secret: str,
        name: str,
        peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S,
    ) -> None:
        self._name = name_of(address)
        self._lock = threading.Lock()
        connection = connect_memoryx(address)
        try:
            self._channel = greet(connection, secret, peer_timeout_s, f"MemoryX at {self._name}")
            # MemoryX sends heartbeats while a request waits for the update of a step.
            connection.limit_receive(peer_timeout_s)
            self._channel.send(FrameType.READ, 0, name.encode())
        except ConnectionError as error:
            connection.close()
            raise loss_error(self._name, error) from error
        except MemoryxError:
            connection.close()
            raise

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """Return a tensor of the snapshot, in the device's dtype; each may be read once.

        Raises:
            CsSystemError: MemoryX is gone or has failed, or the snapshot has ended.
        """
        with self._lock:
            try:
                header = self._request(FrameType.GET, number, FrameType.STATE)
                (array,) = self._channel.receive_arrays(header, [spec])
            except ConnectionError as error:
                raise loss_error(self._name, error) from error
        return array

    def end(self) -> None:
        """Discard the rest of the snapshot; returns when MemoryX has done so.

        Raises:
            MemoryxError: MemoryX is gone.
        """
        # Waits for the answer: an END that arrived late would end the next snapshot, which is requested on
        # another connection.
        with self._lock:
            try:
                self._request(FrameType.END, 0, FrameType.DONE)
            except ConnectionError as error:
                raise loss_error(self._name, error) from error

    def close(self) -> None:
        """Close the connection."""
        self.shut_down()
        self._channel.connection.close()

    def shut_down(self) -> None:
        """Shut the connection down; a thread that is reading gets the error that MemoryX is gone."""
        self._channel.connection.shut_down()

    def _request(self, kind: FrameType, index: int, expected: FrameType) -> Header:
        self._channel.send(kind, index)
        while (header := self._channel.receive_header()).type is FrameType.ALIVE:
            pass
        if header.type is not expected:
            raise answer_error(self._channel, header, self._name)
        return header


class _ShardedStreams(Generic[S]):
    """The streams of all processes of MemoryX, combined.

    Attributes:
        parts: Part of the model of each process; no more than there are layers to share.
        addresses: Addresses of the processes that have a part.
        on_failure: Called with the error when a process is lost, for those who wait for it elsewhere.
    """

    def __init__(self, schedule: Schedule, addresses: Sequence[MemoryxAddress]) -> None:
        self._schedule, self._traffic = schedule, traffic(schedule)
        self.parts = shards(schedule, len(addresses))
        self.addresses = tuple(addresses[: len(self.parts)])
        self._streams: list[S] = []
        self.on_failure: OnFailure = lambda error: None
        self._calls = itertools.cycle(range(len(self._traffic.calls)))

    def weights(self, is_computing: Computing) -> Arrays:
        """Wait for the weights of the next call, from all processes."""
        call = next(self._calls)
        found: dict[int, np.ndarray] = {}
        for stream, part in zip(self._streams, self.parts, strict=True):
            found.update(zip(part.traffic.to_wafer[call], stream.weights(is_computing), strict=True))
        return [found[number] for number in self._traffic.to_wafer[call]]

    def release_weights(self) -> None:
        """Release the weights of the oldest call, which has read them."""
        for stream in self._streams:
            stream.release_weights()

    def unresponsive(self) -> str | None:
        """Describe a process that has not answered for seconds; None: all answer."""
        return next((text for stream in self._streams if (text := stream.unresponsive()) is not None), None)

    def transfers(self) -> list[Transfer]:
        """Return the transfer times of the weights from each process."""
        return [stream.transfer for stream in self._streams]

    def close(self) -> None:
        """Close all connections."""
        for stream in self._streams:
            stream.close()

    def _fail_all(self, error: CsSystemError) -> None:
        """End all streams after one process is lost, so that nobody waits for the others."""
        for stream in self._streams:
            stream.end(error)
        self.on_failure(error)


class ShardedMemoryx(_ShardedStreams[MemoryxClient]):
    """The model of a wafer that begins steps, on all processes of MemoryX.

    Args:
        schedule: Schedule of the step.
        addresses: Host and port of each process.
        secret: Their secret.
        maps_files: Whether to map the files of a MemoryX on the same machine.
        peer_timeout_s: Silence after which a process counts as lost.

    Raises:
        MemoryxError: nothing answers at an address.
    """

    def __init__(
        self,
        schedule: Schedule,
        addresses: Sequence[MemoryxAddress],
        secret: str,
        maps_files: bool = True,
        peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S,
    ) -> None:
        super().__init__(schedule, addresses)
        self._contributions: dict[int, dict[int, np.ndarray]] = {}
        self._arrived_parts: dict[int, int] = {}
        self._lock = threading.Lock()
        try:
            for address, part in zip(self.addresses, self.parts, strict=True):
                handler = partial(self._merge_partials, part)
                self._streams.append(
                    MemoryxClient(address, secret, part, self._fail_all, handler, maps_files, peer_timeout_s)
                )
        except CsSystemError:
            self.close()
            raise

    def open(self, executables: Executables, name: str, listeners: int = 0) -> None:
        """Send each process its part of the model; `wait_open` waits until all have accepted it."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            numbers = dict.fromkeys(call.function for call in part.schedule.memory_calls())
            stream.open(self._schedule, {n: executables[n] for n in numbers}, name, listeners)

    def wait_open(self) -> None:
        """Wait until all processes have the model, and storage for their state."""
        for stream in self._streams:
            stream.wait_open()

    def put(self, number: int, array: np.ndarray) -> None:
        """Send a state tensor to the process that stores it; small ones go to all."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            if number in part.schedule.state.values():
                stream.put(number, array)

    def snapshot(self, numbers: Sequence[int]) -> None:
        """Have each process keep its part of some state as it is after the steps begun so far."""
        owners = [owner(self.parts, number) for number in numbers]
        for index, stream in enumerate(self._streams):
            stream.snapshot([number for number, at in zip(numbers, owners, strict=True) if at == index])

    def begin(self, inputs: Arrays) -> None:
        """Begin a step on all processes."""
        values = dict(zip(self._traffic.inputs, inputs, strict=True))
        for stream, part in zip(self._streams, self.parts, strict=True):
            stream.begin([values[number] for number in part.traffic.inputs])

    def send_results(self, call: int, results: Results) -> None:
        """Send the results of a call to the processes that need them."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            positions = [self._traffic.to_memory[call].index(n) for n in part.traffic.to_memory[call]]
            if positions:
                stream.send_results(call, partial(_select, results, positions))

    def answers(self) -> dict[int, np.ndarray]:
        """Wait for the outputs that the update of the oldest unanswered step computes; by number."""
        found: dict[int, np.ndarray] = {}
        for stream in self._streams:
            found |= stream.answers()
        return found

    def _merge_partials(self, part: Shard, index: int, values: Arrays) -> None:
        """Collect the contributions to a round; after the last one send each part those of the others."""
        with self._lock:
            found = self._contributions.setdefault(index, {})
            found.update(zip(part.given[index], values, strict=True))
            self._arrived_parts[index] = self._arrived_parts.get(index, 0) + 1
            if self._arrived_parts[index] < len(self.parts):
                return
            del self._contributions[index], self._arrived_parts[index]
        for stream, other in zip(self._streams, self.parts, strict=True):
            stream.share(index, [found[number] for number in other.taken[index]])


class ShardedListener(_ShardedStreams[WeightListener]):
    """The weights of another wafer of a group, from all processes of MemoryX.

    Args:
        schedule: Schedule of the step.
        addresses: Host and port of each process.
        secret: Their secret.
        name: Name of the model.
        on_failure: Called with the error when a process is lost, also while this wafer waits for no weights.
        peer_timeout_s: Silence after which a process counts as lost.
    """

    def __init__(
        self,
        schedule: Schedule,
        addresses: Sequence[MemoryxAddress],
        secret: str,
        name: str,
        on_failure: OnFailure,
        peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S,
    ) -> None:
        super().__init__(schedule, addresses)
        self.on_failure = on_failure
        for address, part in zip(self.addresses, self.parts, strict=True):
            self._streams.append(
                WeightListener(address, secret, part, self._fail_all, peer_timeout_s=peer_timeout_s)
            )
            self._streams[-1].join(name)

    def begin(self, inputs: Arrays) -> None:
        """Do nothing: the first wafer begins the step."""

    def send_results(self, call: int, results: object) -> None:
        """Do nothing: the first wafer sends the sums of all."""

    def answers(self) -> dict[int, np.ndarray]:
        """Return nothing: the first wafer gets the answers."""
        return {}


class ShardedReader:
    """Reads snapshots from all processes of MemoryX.

    Args:
        schedule: Schedule of the step.
        addresses: Host and port of each process.
        secret: Their secret.
        name: Name of the model.
        peer_timeout_s: Silence after which a process counts as lost.
    """

    def __init__(
        self,
        schedule: Schedule,
        addresses: Sequence[MemoryxAddress],
        secret: str,
        name: str,
        peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S,
    ) -> None:
        self._parts = shards(schedule, len(addresses))
        self._readers = [
            StateReader(address, secret, name, peer_timeout_s) for address in addresses[: len(self._parts)]
        ]

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """Return a tensor of the snapshot, in the device's dtype; each may be read once."""
        return self._readers[owner(self._parts, number)].get(number, spec)

    def end(self) -> None:
        """Discard the rest of the snapshot on all processes."""
        for reader in self._readers:
            reader.end()

    def end_all(self) -> None:
        """Shut all connections down, so that nobody waits for MemoryX any longer."""
        for reader in self._readers:
            reader.shut_down()

    def close(self) -> None:
        """Close all connections."""
        for reader in self._readers:
            reader.close()


def _select(results: Results, positions: Sequence[int]) -> Arrays:
    arrays = results()
    return [arrays[position] for position in positions]
