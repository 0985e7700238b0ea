"""The wafer's side of MemoryX: the model goes there once, then weights come and gradients go step by step.

Two threads: one takes frames from the socket into two slots of memory, so that the weights of a call come
while the one before is computed; one sends results when the device has computed them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cs_stream.sockets import shut_down
from cs_system.errors import CsSystemError, ExecutionError
from cs_system.memoryx.frames import (
    FrameType,
    Header,
    receive_fresh,
    receive_header,
    send_frame,
    send_tensors,
)
from cs_system.memoryx.messages import Opening
from cs_system.memoryx.weights import Arrays, Failed, WeightStream, result
from cs_system.patience import PATIENCE_S
from cs_toolkit.schedule import Schedule
from cs_toolkit.shards import Shard
from cs_toolkit.step import StepInterface

_WAITING = 8
"""Frames that wait to be sent."""

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
        maps_files, patience_s: See `WeightStream`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        shard: Shard,
        failed: Failed,
        contributed: Contributed,
        maps_files: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(address, shard, failed, maps_files, patience_s)
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

    def results(self, call: int, results: Results) -> None:
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
