"""One wafer's connection to MemoryX: its state comes, steps are streamed, gradients are taken, state goes.

Three threads: the reader takes frames; the streamer sends the weights of a step in the order in which the
wafer computes; the updater computes the update when all gradients of a step are here. Weights of a layer go
to the wafer again as soon as the layer is updated, while those behind it are not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from cs_stream.sockets import PeerGoneError, shut_down
from cs_system.engine.functions import Function, OneDevice
from cs_system.errors import CsSystemError, MemoryxError, SystemBugError
from cs_system.memoryx.frames import (
    MAX_TEXT_BYTES,
    MAX_TOKEN_BYTES,
    FrameType,
    Header,
    receive_header,
    receive_payload,
    receive_tensors,
    send_frame,
    send_tensors,
)
from cs_system.memoryx.messages import Opening
from cs_system.memoryx.updates import Memory, Values
from cs_toolkit.traffic import traffic

log = logging.getLogger("cs_system.memoryx")

_MAX_FUNCTION_BYTES = 2 << 30
_JOIN_TIMEOUT_S = 120.0


class Groups:
    """Wafers that get the weights of a model that another one has opened."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._joined: dict[bytes, list[socket.socket]] = {}

    def join(self, token: bytes, sock: socket.socket) -> None:
        """Hands a connection over, and returns when the wafer has hung up."""
        with self._changed:
            self._joined.setdefault(token, []).append(sock)
            self._changed.notify_all()
        with contextlib.suppress(ConnectionError):
            receive_header(sock)  # a listener says nothing more
        with self._changed:
            self._joined.pop(token, None)

    def wait(self, token: bytes, count: int) -> list[socket.socket]:
        """The connections of a group.

        Raises:
            MemoryxError: some do not come.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._joined.get(token, ())) >= count, _JOIN_TIMEOUT_S):
                came = 1 + len(self._joined.get(token, ()))
                raise MemoryxError(
                    f"{came} of {count + 1} CS systems came to MemoryX within {_JOIN_TIMEOUT_S:g} s; look at "
                    "the logs of the others"
                )
            return list(self._joined[token])


@dataclass
class _Step:
    """A step under way.

    Attributes:
        number: in this connection, from 1.
        expected: frames of results that have not come.
        known: its small values.
        streamed: set when all weights have been sent, and `known` is there.
    """

    number: int
    expected: int
    known: Values = field(default_factory=dict)
    streamed: threading.Event = field(default_factory=threading.Event)


class Connection:
    """Serves a wafer until it hangs up.

    Args:
        sock: Connected, and closed by the caller.
        directory: Where state and gradients lie.
        groups: Where other wafers of its group come to.
    """

    def __init__(self, sock: socket.socket, directory: Path, groups: Groups) -> None:
        self._sock = sock
        self._directory = directory
        self._groups = groups
        self._listeners: list[socket.socket] = []
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._has_ended = False
        self._begun: _Step | None = None
        self._updated = 0
        # Of each state that a step replaces, the last step whose new value it has.
        self._version: dict[int, int] = {}
        self._to_stream: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._to_update: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()

    def serve(self) -> None:
        """Returns when the wafer has hung up, or MemoryX has told it why it cannot go on."""
        self._guarded(self._serve)

    def _serve(self) -> None:
        memory = self._open()
        if memory is None:
            return
        self._memory = memory
        threads = [
            threading.Thread(target=self._guarded, args=(body,), name=name, daemon=True)
            for name, body in (("streamer", self._stream), ("updater", self._update))
        ]
        for thread in threads:
            thread.start()
        self._guarded(self._read)
        for thread in threads:
            thread.join()

    def _open(self) -> Memory | None:
        header = receive_header(self._sock)
        if header.type is FrameType.JOIN:
            self._groups.join(bytes(receive_payload(self._sock, header, MAX_TOKEN_BYTES)), self._sock)
            return None
        opening = Opening.from_json(bytes(receive_payload(self._sock, header, MAX_TEXT_BYTES)))
        functions = {}
        for number, interface in opening.functions.items():
            header = receive_header(self._sock)
            data = receive_payload(self._sock, header, _MAX_FUNCTION_BYTES)
            functions[number] = Function(bytes(data), interface, OneDevice())
        memory = Memory(opening.schedule, traffic(opening.schedule), functions, self._directory)
        self._version = dict.fromkeys(opening.schedule.replacements, 0)
        log.info(
            "model of %d layers: %.1f MB of state and gradients in %s",
            len(opening.schedule.layers),
            memory.nbytes / 1e6,
            self._directory,
        )
        if opening.listeners:
            self._listeners = self._groups.wait(opening.token.encode(), opening.listeners)
        send_frame(self._sock, FrameType.DONE, 0)
        return memory

    # The threads

    def _read(self) -> None:
        handlers: dict[FrameType, Callable[[Header], None]] = {
            FrameType.PUT: self._take_state,
            FrameType.GET: self._give_state,
            FrameType.BEGIN: self._begin,
            FrameType.RESULTS: self._take_results,
        }
        while True:
            header = receive_header(self._sock)
            handler = handlers.get(header.type)
            if handler is None:
                raise MemoryxError(f"got {header.type.name} from the wafer, which MemoryX sends")
            handler(header)

    def _stream(self) -> None:
        memory = self._memory
        while (step := self._to_stream.get()) is not None:
            self._wait_for(memory.small, step.number - 1)
            step.known.update(memory.before())
            for call, numbers in enumerate(memory.traffic.to_wafer):
                self._wait_for(numbers, step.number - 1)
                arrays = memory.weights(call, step.known)
                for listener in self._listeners:
                    send_tensors(listener, FrameType.WEIGHTS, call, arrays)
                with self._sending:
                    send_tensors(self._sock, FrameType.WEIGHTS, call, arrays)
            step.streamed.set()

    def _update(self) -> None:
        while (step := self._to_update.get()) is not None:
            step.streamed.wait()
            if self._has_ended:
                return
            answers = self._memory.update(step.known, partial(self._committed, step.number))
            with self._changed:
                self._updated = step.number
                self._changed.notify_all()
            if answers:
                with self._sending:
                    send_tensors(self._sock, FrameType.ANSWERS, 0, answers)

    # What the reader does

    def _begin(self, header: Header) -> None:
        number = 1 if self._begun is None else self._begun.number + 1
        self._wait_until_updated(number - 1)
        memory = self._memory
        receive_tensors(self._sock, header, [memory.arrived[value] for value in memory.traffic.inputs])
        step = self._begun = _Step(number, sum(map(bool, memory.traffic.to_memory)))
        self._to_stream.put(step)
        if not step.expected:
            self._to_update.put(step)

    def _take_results(self, header: Header) -> None:
        step, memory = self._begun, self._memory
        if step is None or not step.expected or header.index >= len(memory.traffic.to_memory):
            raise MemoryxError(f"got results of call {header.index} from the wafer, expected none")
        values = [memory.arrived[value] for value in memory.traffic.to_memory[header.index]]
        receive_tensors(self._sock, header, values)
        step.expected -= 1
        if not step.expected:
            self._to_update.put(step)

    def _take_state(self, header: Header) -> None:
        receive_tensors(self._sock, header, [self._state(header)])

    def _give_state(self, header: Header) -> None:
        array = self._state(header)
        with self._sending:
            send_tensors(self._sock, FrameType.STATE, header.index, [array])

    def _state(self, header: Header) -> np.ndarray:
        """A state between two steps."""
        if self._begun is not None:
            self._wait_until_updated(self._begun.number)
        if header.index not in self._memory.state:
            raise MemoryxError(f"got {header.type.name} of value {header.index}, which is no state")
        return self._memory.state[header.index]

    # What the threads tell each other

    def _committed(self, step: int, state: frozenset[int]) -> None:
        with self._changed:
            self._version.update(dict.fromkeys(state, step))
            self._changed.notify_all()

    def _wait_for(self, state: Iterable[int], version: int) -> None:
        """Until some state has the value that a step has given it."""
        replaced = [number for number in state if number in self._version]
        self._wait(lambda: all(self._version[number] >= version for number in replaced))

    def _wait_until_updated(self, step: int) -> None:
        self._wait(lambda: self._updated >= step)

    def _wait(self, is_true: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or is_true())
            if self._has_ended:
                raise PeerGoneError("the connection has ended")

    def _end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        for sock in (self._sock, *self._listeners):
            shut_down(sock)
        if self._begun is not None:
            self._begun.streamed.set()
        self._to_stream.put(None)
        self._to_update.put(None)

    def _guarded(self, body: Callable[[], None]) -> None:
        """Runs a thread's part; the first failure ends all."""
        try:
            body()
        except ConnectionError as error:
            log.debug("the wafer has gone: %s", error)
        except CsSystemError as error:
            self._fail(error)
        except Exception as error:
            log.exception("internal error of MemoryX")
            self._fail(SystemBugError(f"internal error of MemoryX: {type(error).__name__}: {error}"))
        finally:
            self._end()

    def _fail(self, error: CsSystemError) -> None:
        """Tells the wafer, where it still listens."""
        log.error("%s", error)
        text = json.dumps({"code": error.code, "message": str(error)}).encode()
        with contextlib.suppress(ConnectionError), self._sending:
            send_frame(self._sock, FrameType.FAILED, 0, text)
