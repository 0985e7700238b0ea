"""The wafer's side of MemoryX: the model goes there once, then weights come and gradients go step by step.

Two threads: one takes frames from the socket into two slots of memory, so that the weights of a call come
while the one before is computed; one sends results when the device has computed them.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cs_stream.sockets import shut_down, tune
from cs_system.errors import CsSystemError, ExecutionError, MemoryxError, from_wire
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
    send_tensors,
    views,
)
from cs_system.memoryx.messages import Opening
from cs_toolkit.schedule import Schedule
from cs_toolkit.step import StepInterface, TensorSpec
from cs_toolkit.traffic import Traffic

SLOTS = 2
"""Calls whose weights are on the wafer: one computes, one arrives."""

_WAITING = 8
"""Frames that wait to be sent."""

_CONNECT_TIMEOUT_S = 10.0

Arrays = list[np.ndarray]
Results = Callable[[], Arrays]
"""Waits for the device and gives what it has computed."""
_Arriving = queue.SimpleQueue[Arrays | CsSystemError]


class MemoryxClient:
    """A connection to MemoryX.

    Args:
        address: Host and port.
        schedule: Of the step.
        traffic: Of the schedule.

    Raises:
        MemoryxError: nobody answers there.
    """

    def __init__(self, address: tuple[str, int], schedule: Schedule, traffic: Traffic) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self._schedule, self._traffic = schedule, traffic
        try:
            self._sock = socket.create_connection(address, _CONNECT_TIMEOUT_S)
        except OSError as error:
            raise MemoryxError(
                f"no MemoryX answers at {self._name}: {error.strerror or error}; check --memoryx, and that "
                "it runs (`cs_system memoryx serve`)"
            ) from error
        tune(self._sock)
        specs = schedule.values
        coming = [[specs[number] for number in numbers] for numbers in traffic.to_wafer]
        slot_bytes = max(map(padded_bytes, coming), default=0)
        slots = [aligned_empty(slot_bytes) for _ in range(SLOTS)]
        self._weights = [[views(slot, specs) for specs in coming] for slot in slots]
        self._slot = 0
        self._room = threading.Semaphore(SLOTS)
        self._arrived: _Arriving = queue.SimpleQueue()
        self._answered: _Arriving = queue.SimpleQueue()
        self._states: _Arriving = queue.SimpleQueue()
        # Bounded: state on its way to MemoryX may be larger than this machine's memory.
        self._to_send: queue.Queue[tuple[FrameType, int, Results] | None] = queue.Queue(_WAITING)
        self._failure: CsSystemError | None = None
        self._threads: list[threading.Thread] = []

    def open(self, functions: Mapping[int, tuple[bytes, StepInterface]]) -> None:
        """Sends the model; `wait_open` waits until it is understood.

        Args:
            functions: Bytes and interface of what MemoryX computes, by number.

        Raises:
            MemoryxError: MemoryX has gone.
        """
        opening = Opening(self._schedule, {number: interface for number, (_, interface) in functions.items()})
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
            self._expect(FrameType.DONE)
        except ConnectionError as error:
            raise self._gone(error) from error
        for body, name in ((self._receive, "weights"), (self._send, "gradients")):
            thread = threading.Thread(target=body, name=f"memoryx {name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    # State, between steps

    def put(self, number: int, array: np.ndarray) -> None:
        """Sends a tensor of the state, in the device's dtype."""
        self._queue(FrameType.PUT, number, lambda: [array])

    def get(self, number: int) -> np.ndarray:
        """A tensor of the state after the last step, in the device's dtype.

        Raises:
            CsSystemError: MemoryX has gone or failed.
        """
        self._queue(FrameType.GET, number, list)
        (array,) = self._result(self._states)
        return array

    # A step

    def begin(self, inputs: Arrays) -> None:
        """Begins a step: its first weights come."""
        self._queue(FrameType.BEGIN, 0, lambda: inputs)

    def weights(self) -> Arrays:
        """What comes before the next call; the arrays are there until `computed` says that they may go.

        Raises:
            CsSystemError: MemoryX has gone or failed.
        """
        return self._result(self._arrived)

    def computed(self) -> None:
        """The oldest call whose weights are here has read them."""
        self._room.release()

    def results(self, call: int, results: Results) -> None:
        """Sends what a call has computed for MemoryX, once the device has done it."""
        self._queue(FrameType.RESULTS, call, results)

    def answers(self) -> dict[int, np.ndarray]:
        """What the oldest step without answers puts out of its update, by number.

        Raises:
            CsSystemError: MemoryX has gone or failed.
        """
        numbers = self._traffic.answers
        return dict(zip(numbers, self._result(self._answered), strict=True)) if numbers else {}

    def close(self) -> None:
        """Hangs up: MemoryX forgets the model."""
        self._failure = self._failure or MemoryxError("the connection to MemoryX is closed")
        shut_down(self._sock)
        self._to_send.put(None)
        for _ in range(SLOTS):
            self._room.release()
        for thread in self._threads:
            thread.join()
        self._sock.close()

    # The threads

    def _receive(self) -> None:
        try:
            while True:
                self._take(receive_header(self._sock))
        except (ConnectionError, CsSystemError) as error:
            self._fail(error if isinstance(error, CsSystemError) else self._gone(error))

    def _take(self, header: Header) -> None:
        specs = self._schedule.values
        if header.type is FrameType.WEIGHTS:
            self._room.acquire()
            arrays = self._weights[self._slot][header.index]
            self._slot = (self._slot + 1) % SLOTS
            receive_tensors(self._sock, header, arrays)
            self._arrived.put(arrays)
        elif header.type is FrameType.ANSWERS:
            self._answered.put(self._fresh(header, [specs[number] for number in self._traffic.answers]))
        elif header.type is FrameType.STATE:
            self._states.put(self._fresh(header, [specs[header.index]]))
        else:
            raise self._refusal(header)

    def _fresh(self, header: Header, specs: Sequence[TensorSpec]) -> Arrays:
        arrays = views(aligned_empty(padded_bytes(specs)), specs)
        receive_tensors(self._sock, header, arrays)
        return arrays

    def _send(self) -> None:
        while (item := self._to_send.get()) is not None:
            kind, index, arrays = item
            try:
                # After a failure the rest is dropped, so that nobody waits for room.
                if self._failure is None:
                    send_tensors(self._sock, kind, index, arrays())
            except ConnectionError as error:
                self._fail(self._gone(error))
            except Exception as error:
                # What the device raises for a call that has failed.
                self._fail(ExecutionError(f"running the steps failed: {type(error).__name__}: {error}"))

    # Inside

    def _queue(self, kind: FrameType, index: int, arrays: Results) -> None:
        if self._failure is not None:
            raise self._failure
        self._to_send.put((kind, index, arrays))

    def _result(self, arrived: _Arriving) -> Arrays:
        found = arrived.get()
        if isinstance(found, CsSystemError):
            arrived.put(found)  # for whoever asks again
            raise found
        return found

    def _expect(self, kind: FrameType) -> None:
        header = receive_header(self._sock)
        if header.type is not kind:
            raise self._refusal(header)

    def _refusal(self, header: Header) -> CsSystemError:
        if header.type is not FrameType.FAILED:
            return MemoryxError(f"MemoryX at {self._name} sent {header.type.name}, which a wafer sends")
        fields = json.loads(receive_payload(self._sock, header, MAX_TEXT_BYTES))
        return from_wire(fields["code"], fields["message"], {})

    def _gone(self, error: ConnectionError) -> MemoryxError:
        return MemoryxError(
            f"MemoryX at {self._name} has gone ({error}); the state is lost, start the job again: a training "
            "continues from its last checkpoint"
        )

    def _fail(self, error: CsSystemError) -> None:
        self._failure = self._failure or error
        for arrived in (self._arrived, self._answered, self._states):
            arrived.put(self._failure)
