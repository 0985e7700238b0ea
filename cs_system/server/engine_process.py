"""Engines in separate processes, seen from the CS system, which imports no JAX itself.

A run has one process. Its end, by a crash of XLA for example, ends the run and nothing else; all of its
memory is free afterwards. A spare process, which has imported JAX and started the device, waits for the next
run.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from cs_system.engine.base import SharedChunks, WaferMonitor
from cs_system.engine.state import check_state, select_state
from cs_system.engine.xla_cache import XlaCache
from cs_system.errors import CsSystemError, EngineLostError, from_wire
from cs_system.memoryx.config import MemoryxConfig
from cs_system.messages import step_to_wire
from cs_system.processes import ChildProcess
from cs_system.server.engine_channel import EngineChannel, Frame, FrameType
from cs_toolkit.network.frames import FrameError
from cs_toolkit.step import CompiledStep, StepInterface, TensorSpec

T = TypeVar("T")

log = logging.getLogger("cs_system.server")

_FREE_TIMEOUT_S = 5.0
# How long to wait for the exit code of a process that has disconnected: it may be writing a core dump.
_EXIT_CODE_TIMEOUT_S = 10.0


class EngineProcess(ChildProcess):
    """The process of an engine. It ends with `end`, and with this process, however that ends.

    Args:
        threads: Number of compute threads.
        cache_dir: Directory of compiled programs; None stores nothing.
        logs_device: Whether it logs its device.

    Attributes:
        channel: Connection for requests, in order.
        reader: Connection for reading a snapshot while steps run.
    """

    def __init__(self, threads: int, cache_dir: Path | None, logs_device: bool = False) -> None:
        pairs = [socket.socketpair() for _ in range(3)]
        ours, theirs = zip(*pairs, strict=True)
        try:
            super().__init__(
                "cs_engine",
                run_engine,
                [threads, str(cache_dir or ""), int(logs_device)],
                [each.fileno() for each in theirs],
                may_fork=True,  # MemoryX
            )
        except BaseException:
            for each in ours:
                each.close()
            raise
        finally:
            for each in theirs:
                each.close()
        self.channel, self.reader = EngineChannel(ours[0]), EngineChannel(ours[1])
        self._descriptors = ours[2]

    @property
    def is_connected(self) -> bool:
        """True until the process has ended, even if its exit code is not known yet."""
        hangup = select.poll()
        hangup.register(self.channel.fileno(), select.POLLRDHUP)
        return not hangup.poll(0)

    def send_descriptor(self, descriptor: int) -> None:
        """Send a file descriptor.

        Raises:
            ConnectionError: the process is gone.
        """
        socket.send_fds(self._descriptors, [b"\0"], [descriptor])

    def end(self, timeout_s: float = _FREE_TIMEOUT_S) -> None:
        """Ask it to end, wait, and close the connections."""
        super().end(timeout_s)
        self._close_connections()

    def release(self) -> None:
        """Let it end by itself, and close the connections."""
        super().release()
        self._close_connections()

    def _close_connections(self) -> None:
        self.channel.close()
        self.reader.close()
        self._descriptors.close()


def run_engine(threads: int, cache_dir: str, logs_device: int, *descriptors: int) -> int:
    """Serve an engine in the process of an `EngineProcess`; return its exit code."""
    from cs_system.server.engine_child import serve

    return serve(threads, Path(cache_dir) if cache_dir else None, bool(logs_device), *descriptors)


class EnginePool:
    """Starts the processes of engines, one ahead of need.

    Args:
        threads: Number of compute threads of each.
        cache: Compiled programs; None stores nothing.
    """

    def __init__(self, threads: int, cache: XlaCache | None) -> None:
        self._threads, self._cache = threads, cache
        self._lock = threading.Lock()
        self._spare: EngineProcess | None = None
        self._is_first = True

    def prepare(self) -> None:
        """Start a spare process if there is none; does not wait for it."""
        # Only while no engine runs: on a GPU, each process takes most of its memory.
        with self._lock:
            if self._spare is None:
                try:
                    self._spare = self._start()
                except OSError as error:
                    log.warning("no process is started for the next job: %s", error.strerror)

    def take(self) -> EngineProcess:
        """Return the spare process, or a new one.

        Raises:
            OSError: there are not enough file descriptors for it.
        """
        with self._lock:
            spare, self._spare = self._spare, None
            if spare is not None and spare.is_connected:
                return spare
            if spare is not None:
                spare.end()
            return self._start()

    def trim_cache(self) -> None:
        """Delete the oldest compiled programs if all of them exceed the limit."""
        if self._cache is not None:
            self._cache.trim()

    def close(self) -> None:
        """End the spare process."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None and spare.has_started:
            spare.end()
        elif spare is not None:
            spare.release()  # the fork server still imports JAX, and ends with this process

    def _start(self) -> EngineProcess:
        logs_device, self._is_first = self._is_first, False
        return EngineProcess(self._threads, self._cache.directory if self._cache else None, logs_device)


class RemoteSteps:
    """Steps that were sent to the process of an engine."""

    def __init__(self, engine: RemoteEngine, count: int) -> None:
        self.count = count
        self.result: dict[str, np.ndarray] | CsSystemError | None = None
        self._engine = engine

    def is_ready(self) -> bool:
        """Return True if the outputs have arrived, or an error."""
        return self.result is not None or self._engine.has_answer(self)

    def wait(self) -> dict[str, np.ndarray]:
        """Wait for the outputs; see `PendingSteps.wait` for the errors."""
        if self.result is None:
            self._engine.wait_for(self)
        if isinstance(self.result, CsSystemError):
            raise self.result
        assert self.result is not None
        return self.result


class RemoteSnapshot:
    """A snapshot of the state in the process of an engine, read on the second connection."""

    def __init__(self, engine: RemoteEngine, specs: Sequence[TensorSpec]) -> None:
        self._engine, self._specs = engine, {spec.name: spec for spec in specs}

    def read(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Read all of the state or part of it; each tensor may be read once."""
        wanted = list(self._specs) if names is None else list(names)
        return self._engine.read_snapshot([self._specs[name] for name in wanted])

    def end(self) -> None:
        """Discard the tensors that have not been read."""
        self._engine.drop_snapshot()


class RemoteEngine:
    """An engine in another process. All calls come from one thread, except those of a snapshot.

    Args:
        process: The process, which may have had other engines before.
        step: The step.
        data: Bytes of its executables, by their names.
        chunk_batches: Number of batches stacked in the chunks.
        memoryx: Where the weights of weight streaming are stored.
    """

    def __init__(
        self,
        process: EngineProcess,
        step: CompiledStep,
        data: Mapping[str, bytes],
        chunk_batches: int,
        memoryx: MemoryxConfig,
    ) -> None:
        self.interface: StepInterface = step.interface
        self.chunk_batches = chunk_batches
        self._process, self._channel = process, process.channel
        self._number = 0
        self._missing: list[str] = [spec.name for spec in step.interface.state]
        # Steps whose outputs have not arrived, by number of their request.
        self._in_flight: dict[int, RemoteSteps] = {}
        self._unresponsive: str | None = None
        self._lost: EngineLostError | None = None
        self._reading = threading.Lock()
        # A ring that the process has not mapped: a duplicate of its descriptor, and its fields.
        self._new_chunks: tuple[int, dict[str, object]] | None = None
        # By identity of a chunk of the ring: its number, and the chunk, so that no other has its identity.
        self._chunks: dict[int, tuple[int, Sequence[np.ndarray]]] = {}
        self._poll = select.poll()  # `select.select` cannot use descriptors above 1023
        self._poll.register(self._channel.fileno(), select.POLLIN)
        message: bytes = step_to_wire(step).SerializeToString()
        executables = [data[executable.name] for executable in step.executables]
        values = {
            "sizes": [len(message), *map(len, executables)],
            "chunk_batches": chunk_batches,
            "memoryx": {
                **asdict(memoryx),
                "directory": str(memoryx.directory),
                "secret_file": memoryx.secret_file and str(memoryx.secret_file),
            },
        }
        self._send("loading", FrameType.LOAD, values, [message, *executables])

    # Requests

    def program(self) -> float:
        """Compile the program in the process; return the seconds that it took."""
        started = time.monotonic()
        self._finish(self._request("programming", FrameType.PROGRAM))
        return time.monotonic() - started

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Send part of the state; see `Engine.put_state` for the errors."""
        check_state(self.interface, state)
        specs = [spec for spec in self.interface.state if spec.name in state]
        arrays = [np.asarray(state[spec.name]) for spec in specs]
        self._finish(
            self._request("loading the state", FrameType.PUT, {"names": [s.name for s in specs]}, arrays)
        )

    @property
    def missing_state(self) -> Sequence[str]:
        """Names of the state that has not arrived, or that a failed step lost."""
        return self._missing

    def use_chunks(self, chunks: SharedChunks) -> None:
        """Prepare for `dispatch` with the chunks of a ring; from any thread."""
        values = {
            "layout": chunks.layout.to_json(),
            "chunk_batches": chunks.chunk_batches,
            "chunks": len(chunks.chunks),
        }
        self._drop_chunks()
        self._chunks = {id(arrays): (index, arrays) for index, arrays in enumerate(chunks.chunks)}
        self._new_chunks = os.dup(chunks.descriptor), values

    def dispatch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> RemoteSteps:
        """Start `count` steps on the batches from `offset` of a chunk of the ring, without waiting."""
        if id(chunk) not in self._chunks:
            raise ValueError("the chunk is not one of the ring of `use_chunks`")
        index, _ = self._chunks[id(chunk)]
        if self._new_chunks is not None:
            descriptor, values = self._new_chunks
            self._send("running the steps", FrameType.CHUNKS, values)
            self._guard("running the steps", lambda: self._process.send_descriptor(descriptor))
            self._drop_chunks()
        number = self._send("running the steps", FrameType.STEPS, numbers=(index, offset, count))
        steps = self._in_flight[number] = RemoteSteps(self, count)
        return steps

    def has_answer(self, steps: RemoteSteps) -> bool:
        """Return True if the outputs of steps have arrived; never waits for the engine."""
        while steps.result is None and self._poll.poll(0):
            self._take_answer("running the steps")
        return steps.result is not None

    def wait_for(self, steps: RemoteSteps) -> None:
        """Wait for the outputs of steps."""
        while steps.result is None:
            self._take_answer("running the steps")

    def snapshot(self, names: Sequence[str] | None = None) -> RemoteSnapshot:
        """Keep the state after the last step dispatched, or part of it, until it has been read."""
        wanted = None if names is None else list(names)
        self._finish(self._request("reading the state", FrameType.KEEP, {"names": wanted}))
        return RemoteSnapshot(self, select_state(self.interface, names))

    def read_snapshot(self, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        """Read tensors of the snapshot; from any thread."""

        def read() -> dict[str, np.ndarray]:
            reader = self._process.reader
            reader.send(FrameType.READ, 0, {"names": [spec.name for spec in specs]})
            return reader.receive_tensors(self._check_answer(reader, reader.receive()), specs)

        with self._reading:
            return self._guard("reading the state", read)

    def drop_snapshot(self) -> None:
        """Discard the rest of the snapshot; from any thread."""

        def drop() -> None:
            reader = self._process.reader
            reader.send(FrameType.DROP, 0)
            self._check_answer(reader, reader.receive())

        with self._reading:
            self._guard("reading the state", drop)

    def unresponsive(self) -> str | None:
        """Describe a part of the system that has not answered for seconds, or None; from any thread."""
        return self._unresponsive

    def stragglers(self) -> WaferMonitor | None:
        """Return None: there is one wafer."""
        return None

    def abort(self) -> None:
        """Kill the process, from any thread: a call that waits for it ends with EngineLostError."""
        self._process.kill()

    def free(self) -> None:
        """Free the engine in the process; a process that does not answer in time is killed."""
        self._drop_chunks()
        self._chunks = {}
        self._missing = [spec.name for spec in self.interface.state]
        if self._lost is not None:
            return
        killer = threading.Timer(_FREE_TIMEOUT_S, self._process.kill)
        killer.start()
        try:
            # Its process ends soon, whatever the answer is.
            with suppress(CsSystemError):
                self._finish(self._request("freeing the device", FrameType.FREE))
        finally:
            killer.cancel()

    # Frames

    def _send(
        self,
        doing: str,
        kind: FrameType,
        values: Mapping[str, object] | None = None,
        parts: Sequence[bytes] = (),
        numbers: tuple[int, int, int] = (0, 0, 0),
    ) -> int:
        if self._lost is not None:
            raise self._lost
        self._number += 1
        self._guard(doing, lambda: self._channel.send(kind, self._number, values, parts, numbers))
        return self._number

    def _request(
        self,
        doing: str,
        kind: FrameType,
        values: Mapping[str, object] | None = None,
        arrays: Sequence[np.ndarray] = (),
    ) -> Frame:
        """Send a request, and receive the head of its answer."""
        if self._lost is not None:
            raise self._lost
        self._number += 1
        self._guard(doing, lambda: self._channel.send_tensors(kind, self._number, arrays, values))
        while (answer := self._take_answer(doing)) is None:
            pass
        return answer

    def _finish(self, answer: Frame) -> None:
        """Update the state by an answer without a payload."""
        self._guard("answering", lambda: self._take_missing(answer))

    def _take_answer(self, doing: str) -> Frame | None:
        """Receive a frame; return it if it answers the last request, not steps before it.

        Raises:
            CsSystemError: the error with which that request ended.
        """
        return self._guard(doing, self._receive)

    def _receive(self) -> Frame | None:
        frame = self._channel.receive()
        if frame.type is FrameType.STATUS:
            self._unresponsive = frame.fields.text("text") or None
            return None
        steps = self._in_flight.pop(frame.number, None)
        if steps is None:
            if frame.number != self._number:
                raise FrameError(f"{frame.type.name}: got request {frame.number}, expected {self._number}")
            return self._check_answer(self._channel, frame)
        if frame.type is FrameType.OUTPUTS:
            shapes = [
                TensorSpec(spec.name, spec.dtype, (steps.count, *spec.shape))
                for spec in self.interface.outputs
            ]
            steps.result = self._channel.receive_tensors(frame, shapes)
        else:
            try:
                self._check_answer(self._channel, frame)
            except CsSystemError as error:
                steps.result = error
        return None

    def _check_answer(self, channel: EngineChannel, frame: Frame) -> Frame:
        """Return an answer, or raise the error that the engine sends instead."""
        if frame.type is FrameType.FAILED:
            fields = frame.values.get("fields")
            if not isinstance(fields, dict) or not all(isinstance(text, str) for text in fields.values()):
                raise FrameError("FAILED: fields: expected texts")
            if channel is self._channel:
                self._take_missing(frame)
            raise from_wire(frame.fields.text("code"), frame.fields.text("message"), fields)
        if frame.type not in (FrameType.DONE, FrameType.STATE):
            raise FrameError(f"got {frame.type.name}, expected an answer")
        return frame

    def _take_missing(self, frame: Frame) -> None:
        numbers, state = frame.values.get("missing"), self.interface.state
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < len(state) for n in numbers):
            raise FrameError(f"{frame.type.name}: missing: expected numbers of state")
        self._missing = [state[number].name for number in numbers]

    def _guard(self, doing: str, body: Callable[[], T]) -> T:
        """Run the body, in which the process may be lost."""
        try:
            return body()
        except FrameError as error:
            self._process.kill()
            self._lose(EngineLostError.broken(doing, str(error)))
        except (ConnectionError, OSError):
            self._process.wait(_EXIT_CODE_TIMEOUT_S)
            if self._process.start_error:
                self._lose(EngineLostError.not_started(doing, self._process.start_error))
            has_state = len(self._missing) < len(self.interface.state)
            code, memory = self._process.exit_code, self._process.memory
            self._lose(EngineLostError.ended(doing, code, memory, has_state=has_state))

    def _lose(self, error: EngineLostError) -> NoReturn:
        self._lost = self._lost or error
        self._missing = [spec.name for spec in self.interface.state]
        raise self._lost from None

    def _drop_chunks(self) -> None:
        new, self._new_chunks = self._new_chunks, None
        if new is not None:
            os.close(new[0])
