"""The MemoryX process: it stores a model's state, streams weights to wafers, and updates the state.

Three threads serve a wafer: the reader receives frames; the streamer sends the weights of a step in the order
in which the wafer computes; the updater computes the update when all gradients of a step have arrived. The
weights of a layer are sent for the next step as soon as the layer is updated, even if later layers are not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from cs_system.engine.base import Executables
from cs_system.engine.machine import limit_threads
from cs_system.engine.xla_cache import XlaCache
from cs_system.errors import (
    CsSystemError,
    MemoryxError,
    PortInUseError,
    unexpected_error,
)
from cs_system.memoryx.admission import Admission
from cs_system.memoryx.protocol import (
    HEARTBEAT_INTERVAL_S,
    MAX_NAME_BYTES,
    FrameChannel,
    FrameType,
    Header,
    ModelDescription,
    receive_model,
)
from cs_system.memoryx.remote import RemoteMemory
from cs_system.memoryx.store import (
    ModelMemory,
    Snapshot,
    Values,
    accumulate_results,
    always_streamed,
    is_first_micro_batch,
)
from cs_system.part_spans import part_spans
from cs_system.processes import prepare_child_processes
from cs_toolkit.garbage import freeze_objects
from cs_toolkit.layered_step import Shard, shards
from cs_toolkit.network.connection import PeerGoneError, listen, name_of
from cs_toolkit.network.liveness import peer_timeout_s
from cs_toolkit.security.tls import Credentials

log = logging.getLogger("cs_system.memoryx")

_BACKLOG = 16
_JOIN_TIMEOUT_S = 120.0
# How long an update may continue after the end of its connection.
_UPDATE_END_S = 5.0
_ENDING = (signal.SIGTERM, signal.SIGINT)


MakeMemory = Callable[[ModelDescription, Shard, Executables], ModelMemory]


@dataclass(frozen=True)
class MemoryxOptions:
    """The options of `cs_system memoryx serve`.

    Attributes:
        host, port: Address to listen on; port 0 takes any free one.
        directory: Where state and gradients are stored while a model trains.
        threads: Number of compute threads; None: one for each CPU.
        xla_cache: Compiled functions; None stores nothing.
        secret: Secret that wafers must know.
        credentials: For TLS with wafers; None: without TLS.
    """

    host: str
    port: int
    directory: Path
    threads: int | None
    xla_cache: XlaCache | None
    secret: str = field(repr=False)
    credentials: Credentials | None = None


def serve(options: MemoryxOptions) -> int:
    """Run MemoryX until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after SIGTERM, 130 after SIGINT.

    Raises:
        PortInUseError: the port cannot be listened on.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # inherited by all threads started from now on
    try:
        listener = listen(options.host, options.port, _BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PortInUseError.at(options.host, options.port, "--port", reason) from error
    threads = limit_threads(options.threads)

    def make_memory(model: ModelDescription, shard: Shard, executables: Executables) -> RemoteMemory:
        # Several models may be of different users: a crash of XLA ends only the one that caused it.
        return RemoteMemory(model, shard, executables, options.directory, threads, options.xla_cache)

    prepare_child_processes()
    _start(listener, options.secret, options.credentials, make_memory)
    place = name_of(listener.getsockname())
    log.info("MemoryX ready: --memoryx=%s, state in %s", place, options.directory)
    freeze_objects()
    caught = signal.sigwait(_ENDING)
    return 130 if caught == signal.SIGINT else 0


def serve_system(
    listener: socket.socket, directory: Path, secret: str, credentials: Credentials | None = None
) -> int:
    """Run the MemoryX that a CS system has started, on a listening socket, until the process is ended.

    Args:
        listener: The socket.
        directory: Where state and gradients are stored.
        secret: Secret that wafers must know.
        credentials: For TLS with wafers; None: without TLS.
    """
    from cs_system.memoryx.update_server import make_local_memory, start_update_device

    threads = start_update_device(None, None)

    def make_memory(model: ModelDescription, shard: Shard, executables: Executables) -> ModelMemory:
        return make_local_memory(shard, executables, directory, threads)

    _start(listener, secret, credentials, make_memory).join()
    return 0


def _start(
    listener: socket.socket, secret: str, credentials: Credentials | None, make_memory: MakeMemory
) -> threading.Thread:
    """Start to accept wafers."""
    registry = ModelRegistry()

    def serve(channel: FrameChannel) -> None:
        # A wafer whose machine has lost its power does not disconnect; its model takes memory and disk.
        channel.connection.break_when_lost(round(peer_timeout_s(os.environ)))
        WaferConnection(channel, make_memory, registry).serve()

    accepting = threading.Thread(target=Admission(listener, secret, serve, credentials).run, daemon=True)
    accepting.start()
    return accepting


@dataclass
class Listener:
    """Another wafer of a group.

    Attributes:
        channel: Its connection.
        has_files: Whether it reads weights from the files of MemoryX; None until it has answered.
    """

    channel: FrameChannel
    has_files: bool | None = None


class ModelRegistry:
    """The models that wafers have opened, for other wafers that listen and for readers of their state."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._joined: dict[bytes, list[Listener]] = {}
        self._opened: dict[bytes, WaferConnection] = {}

    def add(self, name: bytes, connection: WaferConnection) -> None:
        """Add a model that may be read."""
        with self._changed:
            self._opened[name] = connection

    def find(self, name: bytes) -> WaferConnection | None:
        """Return the connection that has opened a model."""
        with self._changed:
            return self._opened.get(name)

    def remove(self, name: bytes) -> None:
        """Remove a model."""
        with self._changed:
            self._opened.pop(name, None)

    def join(self, name: bytes, channel: FrameChannel) -> None:
        """Add a listener to a model; returns when the wafer has closed the connection."""
        listener = Listener(channel)
        self._change(lambda: self._joined.setdefault(name, []).append(listener))
        with contextlib.suppress(ConnectionError):
            has_files = _receive_mapped(channel)
            self._change(lambda: setattr(listener, "has_files", has_files))
            channel.receive_header()  # a listener sends nothing more
        self._change(lambda: self._joined.pop(name, None))

    def wait_for_listeners(
        self, name: bytes, count: int, files: bytes, first: FrameChannel
    ) -> list[Listener]:
        """Wait for the wafers of a group, until they know where the files of the model are.

        Args:
            name: Name of the model.
            count: Number of wafers besides the first one.
            files: Description of the files.
            first: Connection of the first wafer.

        Raises:
            MemoryxError: some do not connect in time.
            ConnectionError: one is gone.
        """
        listeners = self._wait_for(name, count, first, lambda listener: True)
        for listener in listeners:
            listener.channel.send(FrameType.OPENED, 0, files)
        return self._wait_for(name, count, first, lambda listener: listener.has_files is not None)

    def _wait_for(
        self, name: bytes, count: int, first: FrameChannel, condition: Callable[[Listener], bool]
    ) -> list[Listener]:
        def matching() -> list[Listener]:
            return [listener for listener in self._joined.get(name, ()) if condition(listener)]

        deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: len(matching()) >= count, HEARTBEAT_INTERVAL_S):
                    return matching()
                connected = 1 + len(matching())
            if time.monotonic() > deadline_s:
                raise MemoryxError(
                    f"{connected} of {count + 1} CS systems connected to MemoryX within "
                    f"{_JOIN_TIMEOUT_S:g} s; look at the logs of the others"
                )
            # The first wafer sends nothing now: only this shows that it is gone, and its files are useless.
            first.send(FrameType.ALIVE, 0)

    def _change(self, change: Callable[[], object]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


def _receive_mapped(channel: FrameChannel) -> bool:
    """Receive the answer of a wafer to `OPENED`: whether it has mapped the files."""
    header = channel.receive_header()
    if header.type is not FrameType.MAPPED:
        raise MemoryxError(f"got {header.type.name} from the wafer, expected MAPPED")
    return bool(header.index)


@dataclass
class _Step:
    """A step in progress.

    Attributes:
        number: Number in this connection, from 1.
        inputs: Batch tensors that MemoryX needs.
        expected: Number of result frames that have not arrived.
        known: Its small values.
        is_streamed: All weights have been sent, and `known` is complete.
    """

    number: int
    inputs: list[np.ndarray]
    expected: int
    known: Values = field(default_factory=dict)
    is_streamed: bool = False


class WaferConnection:
    """The connection of a wafer, served until the wafer closes it.

    Args:
        channel: The connection, closed by the caller.
        make_memory: Makes the state and gradients of a model.
        registry: The models that wafers have opened.
    """

    def __init__(self, channel: FrameChannel, make_memory: MakeMemory, registry: ModelRegistry) -> None:
        self._channel, self._make_memory = channel, make_memory
        self._registry = registry
        self._spans = part_spans("MemoryX")
        self._listeners: list[Listener] = []
        self._has_files = False
        self._changed = threading.Condition()
        self._has_ended = False
        self._last_step: _Step | None = None
        self._updated_step = 0
        self._snapshot: Snapshot | None = None
        # For each state that steps replace: the last step whose new value it has.
        self._version: dict[int, int] = {}
        self._shared: queue.SimpleQueue[tuple[int, list[np.ndarray]] | None] = queue.SimpleQueue()
        self._to_stream: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._to_update: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()

    def serve(self) -> None:
        """Serve the wafer; returns when it has closed the connection, or got the error that ends it."""
        self._run_guarded(self._serve)

    def _serve(self) -> None:
        header = self._channel.receive_header()
        if header.type is FrameType.READ:
            self._serve_reader(self._channel.receive_payload(header, MAX_NAME_BYTES))
            return
        with self._channel.heartbeats():
            if header.type is FrameType.JOIN:
                name = self._channel.receive_payload(header, MAX_NAME_BYTES)
                self._registry.join(name, self._channel)
            else:
                self._train(header)

    def _train(self, header: Header) -> None:
        model, memory = self._receive_model(header)
        with contextlib.closing(memory):
            self._memory, self._model_name = memory, model.name.encode()
            self._version = dict.fromkeys(memory.schedule.replacements, 0)
            self._always_streamed = always_streamed(memory.shard)
            files = memory.files.to_json()
            if model.listeners:
                self._listeners = self._registry.wait_for_listeners(
                    self._model_name, model.listeners, files, self._channel
                )
            self._registry.add(self._model_name, self)
            try:
                self._serve_steps(files)
            finally:
                self._registry.remove(self._model_name)

    def _serve_steps(self, files: bytes) -> None:
        self._channel.send(FrameType.OPENED, 0, files)
        self._has_files = _receive_mapped(self._channel)
        threads = [
            threading.Thread(target=self._run_guarded, args=(body,), name=name, daemon=True)
            for name, body in (("streamer", self._stream), ("updater", self._update))
        ]
        for thread in threads:
            thread.start()
        self._run_guarded(self._read)
        limit_s = time.monotonic() + _UPDATE_END_S
        for thread in threads:
            thread.join(max(0.0, limit_s - time.monotonic()))
        # A function of the model may contain a loop that never ends, and nobody waits for its results.
        if any(thread.is_alive() for thread in threads):
            self._memory.abort()
        for thread in threads:
            thread.join()

    def _receive_model(self, header: Header) -> tuple[ModelDescription, ModelMemory]:
        model, executables = receive_model(self._channel, header)
        parts = shards(model.schedule, model.shards)
        if not 0 <= model.shard < len(parts):
            raise MemoryxError(f"got part {model.shard} of a model that has {len(parts)}")
        shard = parts[model.shard]
        memory = self._make_memory(model, shard, executables)
        log.info(
            "part %d of %d of a model of %d layers: %.1f MB of state and gradients",
            shard.index + 1,
            shard.count,
            len(model.schedule.layers),
            memory.nbytes / 1e6,
        )
        return model, memory

    # The threads

    def _read(self) -> None:
        handlers: dict[FrameType, Callable[[Header], None]] = {
            FrameType.PUT: self._take_state,
            FrameType.SNAPSHOT: self._keep_state,
            FrameType.BEGIN: self._begin,
            FrameType.RESULTS: self._take_results,
            FrameType.SHARED: self._take_shared,
        }
        while True:
            header = self._channel.receive_header()
            handler = handlers.get(header.type)
            if handler is None:
                raise MemoryxError(f"got {header.type.name} from the wafer, which MemoryX sends")
            handler(header)

    def _stream(self) -> None:
        memory = self._memory
        while (step := self._to_stream.get()) is not None:
            # The small values of this step depend on the previous update.
            self._wait_for(memory.small, step.number - 1)
            step.known.update(memory.begin_step())
            for call, numbers in enumerate(memory.traffic.to_wafer):
                began_s = time.monotonic()
                self._wait_for(numbers, step.number - 1)
                ready_s = time.monotonic()
                some = [memory.value(number, step.known) for number in self._always_streamed[call]]
                arrays = [memory.value(number, step.known) for number in numbers]
                for listener in self._listeners:
                    listener.channel.send_arrays(
                        FrameType.WEIGHTS, call, some if listener.has_files else arrays
                    )
                self._channel.send_arrays(FrameType.WEIGHTS, call, some if self._has_files else arrays)
                self._spans.add("weights out", "wait for the update", began_s, ready_s, ("call", call))
                self._spans.add("weights out", "send weights", ready_s, time.monotonic(), ("call", call))
            with self._changed:
                step.is_streamed = True
                self._changed.notify_all()

    def _update(self) -> None:
        while (step := self._to_update.get()) is not None:
            self._wait_until_streamed(step)
            for number, array in zip(self._memory.traffic.inputs, step.inputs, strict=True):
                np.copyto(self._memory.arrived[number], array)
            # A snapshot that is requested from now on is of this step or a later one, and copies nothing.
            snapshot = self._snapshot
            before_change = None if snapshot is None else partial(snapshot.before_change, step.number)
            after_change = partial(self._after_change, step.number)
            began_s = time.monotonic()
            answers = self._memory.update(step.known, self._exchange, before_change, after_change)
            self._spans.add("update", "update", began_s, time.monotonic(), ("step", step.number))
            with self._changed:
                self._updated_step = step.number
                self._changed.notify_all()
            if self._has_files:
                self._channel.send(FrameType.UPDATED, step.number)
            if answers:
                self._channel.send_arrays(FrameType.ANSWERS, 0, answers)

    # The handlers of the reader

    def _begin(self, header: Header) -> None:
        number = 1 if self._last_step is None else self._last_step.number + 1
        memory = self._memory
        # New arrays, because the previous update may still read those of its step.
        specs = [memory.schedule.values[value] for value in memory.traffic.inputs]
        inputs = self._channel.receive_arrays(header, specs)
        step = self._last_step = _Step(number, inputs, sum(map(bool, memory.traffic.to_memory)))
        self._to_stream.put(step)
        if not step.expected:
            self._to_update.put(step)

    def _take_results(self, header: Header) -> None:
        step, memory = self._last_step, self._memory
        if step is None or not step.expected or header.index >= len(memory.traffic.to_memory):
            raise MemoryxError(f"got results of call {header.index} from the wafer, expected none")
        # The previous update still reads the values at this place.
        self._wait_until_updated(step.number - 1)
        began_s = time.monotonic()
        if self._has_files:
            self._channel.receive_tensors(header, [])
        else:
            numbers = memory.traffic.to_memory[header.index]
            if is_first_micro_batch(memory.shard, header.index):
                self._channel.receive_tensors(header, [memory.arrived[number] for number in numbers])
            else:
                specs = [memory.schedule.values[number] for number in numbers]
                results = self._channel.receive_arrays(header, specs)
                accumulate_results(memory.shard, header.index, memory.arrived, results)
        self._spans.add("results in", "receive results", began_s, time.monotonic(), ("call", header.index))
        step.expected -= 1
        if not step.expected:
            self._to_update.put(step)

    def _take_shared(self, header: Header) -> None:
        memory = self._memory
        if header.index >= len(memory.shard.taken):
            raise MemoryxError(f"got values of round {header.index} from the wafer, expected none")
        specs = [memory.schedule.values[number] for number in memory.shard.taken[header.index]]
        self._shared.put((header.index, self._channel.receive_arrays(header, specs)))

    def _exchange(self, index: int, given: list[np.ndarray]) -> list[np.ndarray]:
        """Exchange the contributions to a round with the other parts, through the wafer."""
        self._channel.send_arrays(FrameType.PARTIAL, index, given)
        found = self._shared.get()
        if found is None:
            raise PeerGoneError("the connection has ended")
        at, taken = found
        if at != index:
            raise MemoryxError(f"got values of round {at} from the wafer, expected round {index}")
        return taken

    def _take_state(self, header: Header) -> None:
        """Receive a state tensor, between two steps."""
        if self._last_step is not None:
            self._wait_until_updated(self._last_step.number)
        self._check_state([header.index])
        self.end_snapshot()
        self._memory.receive_state(header.index, lambda array: self._channel.receive_tensors(header, [array]))

    def _keep_state(self, header: Header) -> None:
        wanted = self._channel.receive_numbers(header, len(self._memory.schedule.state))
        self._check_state(wanted)
        self.end_snapshot()
        step = 0 if self._last_step is None else self._last_step.number
        self._snapshot = Snapshot(self._memory.state, step, wanted)
        self._channel.send(FrameType.DONE, 0)

    def _check_state(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in self._memory.state:
                raise MemoryxError(f"got value {number} from the wafer, which is no state")

    # Snapshots

    def _serve_reader(self, name: bytes) -> None:
        """Serve a reader of snapshots until it closes the connection."""
        model = self._registry.find(name)
        if model is None:
            raise MemoryxError("the model that is to be read is not here any more; load it again")
        try:
            while (header := self._channel.receive_header()).type in (FrameType.GET, FrameType.END):
                if header.type is FrameType.END:
                    model.end_snapshot()
                    self._channel.send(FrameType.DONE, 0)
                    continue
                try:
                    with self._channel.heartbeats():  # it may wait for the update of a long step
                        kept = model.read_snapshot(header.index)
                except MemoryxError as error:
                    self._fail(error)
                else:
                    self._channel.send_arrays(FrameType.STATE, header.index, [kept])
        finally:
            model.end_snapshot()

    def read_snapshot(self, number: int) -> np.ndarray:
        """Return a tensor of the snapshot; wait for the update of its step.

        Raises:
            MemoryxError: there is no snapshot, or the tensor has been read.
            PeerGoneError: the wafer is gone.
        """
        snapshot = self._snapshot
        if snapshot is not None:
            self._wait_for([number], snapshot.step)
            if (found := snapshot.take(number)) is not None:
                return found
        raise MemoryxError(f"value {number} is not kept for a reader: the state has been put or read since")

    def end_snapshot(self) -> None:
        """Discard the snapshot."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.end()

    # Synchronization of the threads

    def _after_change(self, step: int, state: frozenset[int]) -> None:
        with self._changed:
            self._version.update(dict.fromkeys(state, step))
            self._changed.notify_all()

    def _wait_for(self, state: Iterable[int], version: int) -> None:
        """Wait until some state has the value that a step has given it."""
        replaced = [number for number in state if number in self._version]
        self._wait(lambda: all(self._version[number] >= version for number in replaced))

    def _wait_until_updated(self, step: int) -> None:
        self._wait(lambda: self._updated_step >= step)

    def _wait_until_streamed(self, step: _Step) -> None:
        self._wait(lambda: step.is_streamed)

    def _wait(self, is_true: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or is_true())
            if self._has_ended:
                raise PeerGoneError("the connection has ended")

    def _run_guarded(self, body: Callable[[], None]) -> None:
        """Run the body of a thread; the first failure ends all of them."""
        try:
            body()
        except ConnectionError as error:
            log.debug("the wafer has gone: %s", error)
        except CsSystemError as error:
            if self._has_ended:
                log.debug("after the end of the connection: %s", error)
            else:
                self._fail(error)
        except Exception as error:
            log.exception("internal error of MemoryX")
            self._fail(unexpected_error("MemoryX", error))
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
            self.end_snapshot()
            for channel in (self._channel, *(listener.channel for listener in self._listeners)):
                channel.connection.shut_down()
            self._shared.put(None)
            self._to_stream.put(None)
            self._to_update.put(None)

    def _fail(self, error: CsSystemError) -> None:
        """Send the error to the wafers that are still connected."""
        log.error("%s", error)
        for channel in (self._channel, *(listener.channel for listener in self._listeners)):
            with contextlib.suppress(ConnectionError):
                channel.send_failure(error)
