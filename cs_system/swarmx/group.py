"""The engine of a group of wafers: each is a process that computes its share of the batch."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from cs_system.address import host_port
from cs_system.engine.base import SharedChunks
from cs_system.engine.micro_batches import for_memory, share
from cs_system.engine.state import from_device
from cs_system.errors import (
    ArtifactRefusedError,
    CsSystemError,
    ExecutableError,
    ExecutionError,
    MemoryxError,
    ProgramError,
    StorageFullError,
    WaferLostError,
)
from cs_system.memoryx.client import ShardedReader
from cs_system.memoryx.config import MemoryxAddress, MemoryxConfig, MemoryxProcess, start_memoryx
from cs_system.memoryx.layered import LayeredEngine
from cs_system.memoryx.protocol import (
    MAX_TEXT_BYTES,
    FrameChannel,
    FrameType,
    admit,
    refuse,
)
from cs_system.messages import samples_per_step
from cs_system.security import check_system_peer, client_credentials
from cs_system.swarmx.health import HeartbeatMonitor, StragglerMonitor, WorkReport
from cs_system.swarmx.hosts import HostPool, LocalHost, Wafer
from cs_system.swarmx.protocol import WaferAssignment, memoryx_key, split_inputs
from cs_toolkit.layered_step import Schedule, traffic
from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.network.connection import Connection, listen, shut_down
from cs_toolkit.network.frames import FrameError
from cs_toolkit.network.liveness import peer_timeout_s
from cs_toolkit.security.acceptor import MAX_UNPROVED, Acceptor
from cs_toolkit.security.sealing import encrypt
from cs_toolkit.security.tls import Credentials
from cs_toolkit.security.tls_connection import TlsError
from cs_toolkit.step import CompiledStep

log = logging.getLogger("cs_system.server")

_WATCH_INTERVAL_S = 0.5
# How long to wait for the cause of a failure: when a wafer dies, others may fail before its death shows.
_CAUSE_TIMEOUT_S = 1.0

# How long to wait for the exit code of a wafer that has disconnected.
_EXIT_CODE_TIMEOUT_S = 0.5

_ACCEPT_TIMEOUT_S = 0.2

# How long a peer may take to prove that it is a wafer.
_TOKEN_TIMEOUT_S = 5.0

Arrays = list[np.ndarray]


class GroupSteps:
    """A step that was dispatched to the wafers."""

    count = 1

    def __init__(self, engine: GroupEngine) -> None:
        self._engine = engine

    def is_ready(self) -> bool:
        """Return True if its outputs have arrived."""
        return self._engine.has_outputs

    def wait(self) -> dict[str, np.ndarray]:
        """Wait for the step, and return its outputs by name."""
        return self._engine.outputs()


class GroupEngine(LayeredEngine):
    """The engine of a step in layers on several wafers.

    Args:
        step: The step.
        schedule: Schedule of the step.
        data: Bytes of its executables, by their names.
        memoryx: Where weights and optimizer state are stored.
        count: Number of wafers.
        host_pool: Where they are started.

    Raises:
        ArtifactRefusedError: the batch cannot be shared equally.
    """

    def __init__(
        self,
        step: CompiledStep,
        schedule: Schedule,
        data: Mapping[str, bytes],
        memoryx: MemoryxConfig,
        count: int,
        host_pool: HostPool | None = None,
    ) -> None:
        samples = samples_per_step(step.interface)
        parts = schedule.micro.count
        if samples % (count * parts):
            what = "a batch" if parts == 1 else f"each of the {parts} micro-batches of a batch"
            raise ArtifactRefusedError(
                f"{what} of {samples} samples cannot be shared equally by {count} CS systems; choose a "
                f"batch size that {count * parts} divides, or another number of systems"
            )
        super().__init__(step.interface, schedule)
        self._step, self._data, self._config = step, data, memoryx
        self._count = count
        self._heartbeats: HeartbeatMonitor | None = None
        self._stragglers: StragglerMonitor | None = None
        self._stop_watching = threading.Event()
        self._host_pool = host_pool or LocalHost()
        self._is_split = split_inputs(step)
        self._traffic = traffic(schedule)
        self._started_processes: list[MemoryxProcess] = []
        self.wafers: list[Wafer] = []
        self._channels: list[FrameChannel] = []
        # Of the current wafers: they end with `free`.
        self._threads: list[threading.Thread] = []
        self._failures_changed = threading.Condition()
        self._failures: list[tuple[int, CsSystemError]] = []
        self._ready: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._reader: ShardedReader | None = None
        self._outputs: queue.SimpleQueue[Arrays | CsSystemError] = queue.SimpleQueue()

    def program(self) -> float:
        """Start the wafers, which compile their calls; return the seconds that it took."""
        started = time.monotonic()
        if not self._channels:
            try:
                self._start()
            except BaseException:
                self.free()
                raise
        return time.monotonic() - started

    def dispatch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> GroupSteps:
        """Send each wafer its share of the batch, without waiting for the step."""
        inputs = self._batch(chunk, offset, count)
        plan, whole = self._schedule, [inputs[position] for position in self._schedule.micro.whole.values()]
        for rank in range(self._count):
            shares = [
                share(array, plan.parts_of(number), self._count, rank) if is_split else array
                for number, array, is_split in zip(plan.inputs, inputs, self._is_split, strict=True)
            ]
            more = for_memory(plan, self._traffic, inputs) if rank == 0 else []
            self._send(rank, FrameType.BEGIN, 0, [*shares, *whole, *more])
        return GroupSteps(self)

    @property
    def has_outputs(self) -> bool:
        """True if the outputs of the oldest step have arrived."""
        return not self._outputs.empty()

    def outputs(self) -> dict[str, np.ndarray]:
        """Wait for the outputs of the oldest step."""
        numbers = dict.fromkeys(self._schedule.outputs)
        values = {}
        if numbers:
            arrays = self._outputs.get()
            if isinstance(arrays, CsSystemError):
                self._outputs.put(arrays)  # for the next caller
                self._lose_state()
                raise arrays
            values = dict(zip(numbers, arrays, strict=True))
        return {
            spec.name: from_device(values[number][None], spec)
            for spec, number in zip(self.interface.outputs, self._schedule.outputs, strict=True)
        }

    def unresponsive(self) -> str | None:
        """Describe a wafer, or a part that a wafer waits for, that has not answered for seconds; or None."""
        heartbeats, stragglers = self._heartbeats, self._stragglers
        return (
            None
            if heartbeats is None or stragglers is None
            else heartbeats.unresponsive() or stragglers.unresponsive()
        )

    def use_chunks(self, chunks: SharedChunks) -> None:
        """Do nothing: batches are read in this process, and sent to the wafers."""

    def stragglers(self) -> StragglerMonitor | None:
        """Return the work times of the wafers."""
        return self._stragglers

    def abort(self) -> None:
        """Kill the wafers, from any thread: a call that waits for them ends with WaferLostError."""
        for wafer in tuple(self.wafers):
            wafer.kill()
        for channel in tuple(self._channels):
            channel.connection.shut_down()

    def free(self) -> None:
        """End the wafers, and the MemoryX processes that were started for them."""
        self._lose_state()
        self._stop_watching.set()
        self._heartbeats = self._stragglers = None
        # The first wafer last: the others would report its end as a failure.
        for group in (slice(1, None), slice(0, 1)):
            for channel in self._channels[group]:
                channel.connection.shut_down()
            for wafer in self.wafers[group]:
                wafer.end()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()  # it may still record the failure of its wafer
        for channel in self._channels:
            channel.connection.close()
        self._channels, self.wafers = [], []
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        own, self._started_processes = self._started_processes, []
        for memoryx in own:
            memoryx.end()

    def _start_thread(self, body: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=body, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _start(self) -> None:
        # Those of wafers that were ended before concern no later ones.
        self._failures = []
        self._ready, self._outputs = queue.SimpleQueue(), queue.SimpleQueue()
        hosts = self._host_pool.gather(self._count)
        addresses, self._started_processes, secret = start_memoryx(
            self._config, self._schedule, hosts.listen, hosts.address
        )
        token = hosts.token
        waiting = self._count + MAX_UNPROVED
        with listen(hosts.listen, 0, waiting) as listener:
            for wafer in hosts.start(listener.getsockname()[1], self._count):
                self.wafers.append(wafer)
            self._heartbeats = heartbeats = HeartbeatMonitor(self._count, self._config.peer_timeout_s)
            self._stragglers = StragglerMonitor(self._count)
            self._stop_watching = stop = threading.Event()
            self._start_thread(self._watch, heartbeats, self._stragglers, stop)
            credentials = client_credentials() if hosts.encrypted else None
            self._channels = accept_wafers(listener, token, self.wafers, heartbeats, credentials)
        with socket.socket(socket.AF_INET6 if ":" in hosts.listen else socket.AF_INET) as holder:
            # Reserves a free port, which only the first wafer's coordinator can share.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind((hosts.listen, 0))
            self._assign(host_port(hosts.address, holder.getsockname()[1]), addresses, secret, token)

    def _assign(self, coordinator: str, memoryx: tuple[MemoryxAddress, ...], secret: str, token: str) -> None:
        """Send the wafers their assignments, and wait until they are ready."""
        assert self._heartbeats is not None
        assert self._stragglers is not None
        for rank in range(self._count):
            self._start_thread(self._receive, rank, self._heartbeats, self._stragglers)
        model, encrypted = secrets.token_hex(16), encrypt(secret, memoryx_key(token))
        for rank, channel in enumerate(self._channels):
            assignment = WaferAssignment(rank, self._count, coordinator, memoryx, encrypted, model)
            try:
                channel.send(FrameType.OPEN, 0, assignment.to_bytes(self._step))
                for number, executable in enumerate(self._step.executables):
                    channel.send(FrameType.FUNCTION, number, self._data[executable.name])
            except ConnectionError:
                raise self._find_cause() from None
        for _ in range(self._count):
            if self._ready.get() < 0:
                raise self._find_cause()
        self._reader = ShardedReader(self._schedule, memoryx, secret, model, self._config.peer_timeout_s)

    def _watch(
        self, heartbeats: HeartbeatMonitor, stragglers: StragglerMonitor, stop: threading.Event
    ) -> None:
        """Log silent and slow wafers, and end a wafer that has been silent for too long."""
        while not stop.wait(_WATCH_INTERVAL_S):
            heartbeats.check()
            stragglers.log_changes()
            overdue, wafers, channels = heartbeats.overdue(), self.wafers, self._channels
            if overdue is not None and channels:
                rank, silence_s = overdue
                self._record_failure(WaferLostError.silent(rank, self._count, silence_s))
                # Both are needed: shutting the connection down wakes the thread that reads it, and killing
                # the process ends sums in which other wafers wait for it.
                wafers[rank].kill()
                channels[rank].connection.shut_down()
                return

    def _receive(self, rank: int, heartbeats: HeartbeatMonitor, stragglers: StragglerMonitor) -> None:
        channel, wafer, values = self._channels[rank], self.wafers[rank], self._schedule.values
        outputs = [values[number] for number in dict.fromkeys(self._schedule.outputs)]
        try:
            while True:
                header = channel.receive_header()
                heartbeats.record(rank)
                if header.type is FrameType.ALIVE:
                    stragglers.record(
                        rank, WorkReport.from_json(channel.receive_payload(header, MAX_TEXT_BYTES))
                    )
                    continue
                if header.type is FrameType.DONE:
                    self._ready.put(rank)
                elif header.type is FrameType.ANSWERS:
                    self._outputs.put(channel.receive_arrays(header, outputs))
                else:
                    raise channel.receive_failure(header)
        except CsSystemError as error:
            self._record_failure(error)
        except ConnectionError:
            self._record_failure(WaferLostError.of(rank, self._count, wafer.host), _has_aborted(wafer))
        # Wakes `_assign`, `_keep` and `outputs`, which raise the cause.
        self._ready.put(-1)
        self._outputs.put(self._find_cause())

    def _record_failure(self, error: CsSystemError, has_aborted: bool = False) -> None:
        with self._failures_changed:
            self._failures.append((_cause_priority(error, has_aborted), error))
            self._failures_changed.notify_all()
        reader = self._reader
        if reader is not None:
            reader.end_all()

    def _find_cause(self) -> CsSystemError:
        """Return the failure that most likely caused the others; of several the first."""
        with self._failures_changed:
            self._failures_changed.wait_for(
                lambda: any(priority == 0 for priority, _ in self._failures), _CAUSE_TIMEOUT_S
            )
            if not self._failures:
                return ExecutionError("the wafers do not answer")
            return min(self._failures, key=lambda item: item[0])[1]

    def _send(self, rank: int, kind: FrameType, index: int, arrays: Arrays) -> None:
        try:
            self._channels[rank].send_arrays(kind, index, arrays)
        except ConnectionError:
            self._lose_state()
            raise self._find_cause() from None

    def _put(self, number: int, array: np.ndarray) -> None:
        self._send(0, FrameType.PUT, number, [array])

    def _keep(self, numbers: Sequence[int]) -> ShardedReader:
        self._send(0, FrameType.SNAPSHOT, len(numbers), [np.array(numbers, np.uint32)])
        if self._ready.get() < 0:
            self._lose_state()
            raise self._find_cause()
        assert self._reader is not None
        return self._reader


def _cause_priority(error: CsSystemError, has_aborted: bool) -> int:
    """Return how likely a failure is only the consequence of another one, from 0 (it is not) to 3.

    When a wafer ends, sums fail on the others, MemoryX disconnects, and JAX aborts their processes.
    """
    if isinstance(error, WaferLostError):
        return 2 if has_aborted else 0
    if isinstance(error, StorageFullError | ExecutableError):
        return 0
    return 3 if isinstance(error, ExecutionError | ProgramError) else 1


def _has_aborted(wafer: Wafer) -> bool:
    """Return True if a wafer that has disconnected has aborted, as JAX does when another one is gone."""
    deadline = time.monotonic() + _EXIT_CODE_TIMEOUT_S
    while not wafer.has_ended and time.monotonic() < deadline:
        time.sleep(_EXIT_CODE_TIMEOUT_S / 50)
    return wafer.exit_code == -signal.SIGABRT


def accept_wafers(
    listener: socket.socket,
    token: str,
    wafers: Sequence[Wafer],
    heartbeats: HeartbeatMonitor,
    credentials: Credentials | None = None,
) -> list[FrameChannel]:
    """Accept the connections of all wafers, and return them in the order of their ranks.

    Args:
        listener: Socket that the wafers connect to.
        token: Their secret.
        wafers: The wafers that have been started.
        heartbeats: Records wafers that have connected.
        credentials: For TLS; None: without TLS.

    Raises:
        WaferLostError: one has ended, or does not connect.
    """
    connected: dict[int, FrameChannel] = {}
    arrived: queue.SimpleQueue[tuple[int, FrameChannel]] = queue.SimpleQueue()
    refusals = LineLimiter(log)

    def admit_wafer(connection: Connection, peer: str) -> None:
        try:
            connection.handshake(_TOKEN_TIMEOUT_S)
            check_system_peer(connection)
            channel = admit(connection, token, _TOKEN_TIMEOUT_S)
            rank = _receive_rank(channel)
        except (OSError, FrameError, MemoryxError) as error:
            if acceptor.prove(connection):
                refusals.log(logging.WARNING, "%s is not a wafer of the group: %s", peer, error)
            if not isinstance(error, TlsError):  # which has no channel to say more
                refuse(connection, error)
            connection.close()
            return
        arrived.put((rank, channel))

    # A thread for each connection: a peer that sends nothing must not hold up the wafers.
    acceptor = Acceptor(listener, credentials, admit_wafer, refusals)
    accepting = threading.Thread(target=acceptor.run, daemon=True)
    accepting.start()
    try:
        while len(connected) < len(wafers):
            for rank, wafer in enumerate(wafers):
                if wafer.has_ended:
                    raise WaferLostError.at_start(rank, len(wafers), wafer.exit_code, wafer.host)
                if rank in connected:
                    heartbeats.record(rank)  # nobody reads its heartbeats before all have connected
            if (overdue := heartbeats.overdue()) is not None:
                raise WaferLostError.silent(overdue[0], len(wafers), overdue[1])
            with suppress(queue.Empty):
                rank, channel = arrived.get(timeout=_ACCEPT_TIMEOUT_S)
                if rank in connected or rank >= len(wafers):
                    channel.connection.close()
                else:
                    connected[rank] = channel
    except BaseException:
        for channel in connected.values():
            channel.connection.close()
        raise
    finally:
        shut_down(listener)  # ends the thread that accepts
        accepting.join()
        while not arrived.empty():  # a peer beyond the wafers of the group
            arrived.get()[1].connection.close()
    return [connected[rank] for rank in range(len(wafers))]


def _receive_rank(channel: FrameChannel) -> int:
    """Return the rank of a wafer.

    Raises:
        ConnectionError: it is gone, or silent.
        MemoryxError: it sends another frame.
    """
    channel.connection.break_when_lost(round(peer_timeout_s(os.environ)))
    header = channel.receive_header(time.monotonic() + _TOKEN_TIMEOUT_S)
    # No time limit from here on: `HeartbeatMonitor` finds wafers that are silent.
    channel.connection.limit_receive(None)
    if header.type is not FrameType.JOIN:
        raise MemoryxError(f"got {header.type.name}, expected JOIN")
    return header.index
