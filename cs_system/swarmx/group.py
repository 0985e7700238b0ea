"""The engine of a group of wafers: each is a process that computes its share of the batch."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import queue
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cs_stream.sockets import name_of, set_time_limit, shut_down, tune
from cs_system.address import host_port
from cs_system.engine.device import from_device
from cs_system.engine.layers import for_memory, share
from cs_system.engine.streamed import LayeredEngine
from cs_system.errors import (
    ArtifactRefusedError,
    CsSystemError,
    ExecutionError,
    MemoryxError,
    ProgramError,
    StorageFullError,
    WaferLostError,
    from_wire,
)
from cs_system.memoryx.client import ShardedReader
from cs_system.memoryx.config import MemoryxConfig, MemoryxProcess, start_memoryx
from cs_system.memoryx.protocol import (
    HEARTBEAT_TIMEOUT_S,
    MAX_TEXT_BYTES,
    FrameType,
    receive_arrays,
    receive_header,
    receive_payload,
    send_frame,
    send_tensors,
)
from cs_system.messages import samples_per_step
from cs_system.swarmx.health import HeartbeatMonitor, StragglerMonitor, WorkReport
from cs_system.swarmx.hosts import HostPool, LocalHost, RunHosts, Wafer
from cs_system.swarmx.protocol import WaferAssignment, detect_loss, split_inputs
from cs_toolkit.layered_step import Schedule, traffic
from cs_toolkit.step import CompiledStep

log = logging.getLogger("cs_system.server")

_LOOK_S = 0.5
_STRANGERS = 64
"""Connections of others that may wait beside those of the wafers."""
_CAUSE_S = 1.0
"""The death of a wafer makes others fail, maybe before it is seen: so long the cause is waited for."""

_CODE_S = 0.5
"""So long the exit code of a wafer that has hung up is waited for."""

_ACCEPT_S = 0.2

_WORD_S = 1.0
"""A stranger that connects and says nothing holds the others up for so long."""

Arrays = list[np.ndarray]
_Arriving = queue.SimpleQueue[Arrays | CsSystemError]


class GroupSteps:
    """A step that the wafers have been told to compute; see `PendingSteps`."""

    count = 1

    def __init__(self, engine: GroupEngine) -> None:
        self._engine = engine

    def is_ready(self) -> bool:
        """Whether its outputs are here."""
        return self._engine.has_outputs

    def wait(self) -> dict[str, np.ndarray]:
        """See `PendingSteps`."""
        return self._engine.outputs()


class GroupEngine(LayeredEngine):
    """A step in layers on several wafers; see `Engine`.

    Args:
        step: What to run.
        schedule: Of the step.
        data: Bytes of its executables, by their names.
        memoryx: Where weights and optimizer state are kept.
        count: Of wafers.
        machines: Where they are started.
        heartbeat_timeout_s: Silence after which a wafer is ended.

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
        machines: HostPool | None = None,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        samples = samples_per_step(step.interface)
        parts = schedule.micro.count
        if samples % (count * parts):
            what = "a batch" if parts == 1 else f"each of the {parts} micro-batches of a batch"
            raise ArtifactRefusedError(
                f"{what} of {samples} samples cannot be shared equally by {count} CS systems; choose a "
                f"batch size that {count * parts} divides, or another num_csx"
            )
        super().__init__(step.interface, schedule)
        self._step, self._data, self._place = step, data, memoryx
        self._count, self._heartbeat_timeout_s = count, heartbeat_timeout_s
        self._heartbeats: HeartbeatMonitor | None = None
        self._stragglers: StragglerMonitor | None = None
        self._watched = threading.Event()
        self._machines = machines or LocalHost()
        self._cut = split_inputs(step)
        self._traffic = traffic(schedule)
        self._own: list[MemoryxProcess] = []
        self.wafers: list[Wafer] = []
        self._socks: list[socket.socket] = []
        self._failed = threading.Condition()
        self._failures: list[tuple[int, CsSystemError]] = []
        self._ready: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._reader: ShardedReader | None = None
        self._outputs: _Arriving = queue.SimpleQueue()

    def program(self) -> float:
        """See `Engine`."""
        started = time.monotonic()
        if not self._socks:
            try:
                self._start()
            except BaseException:
                self.free()
                raise
        return time.monotonic() - started

    def dispatch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> GroupSteps:
        """See `Engine`."""
        inputs = self._batch(chunk, offset, count)
        plan, whole = self._schedule, [inputs[position] for position in self._schedule.micro.whole.values()]
        for rank in range(self._count):
            shares = [
                share(array, plan.parts_of(number), self._count, rank) if is_cut else array
                for number, array, is_cut in zip(plan.inputs, inputs, self._cut, strict=True)
            ]
            more = for_memory(plan, self._traffic, inputs) if rank == 0 else []
            self._send(rank, FrameType.BEGIN, 0, [*shares, *whole, *more])
        return GroupSteps(self)

    @property
    def has_outputs(self) -> bool:
        """Whether those of the oldest step are here."""
        return not self._outputs.empty()

    def outputs(self) -> dict[str, np.ndarray]:
        """Waits for those of the oldest step."""
        numbers = dict.fromkeys(self._schedule.outputs)
        values = dict(zip(numbers, self._result(self._outputs), strict=True)) if numbers else {}
        return {
            spec.name: from_device(values[number][None], spec)
            for spec, number in zip(self.interface.outputs, self._schedule.outputs, strict=True)
        }

    def unresponsive(self) -> str | None:
        """See `Engine`."""
        heartbeats, pace = self._heartbeats, self._stragglers
        return (
            None if heartbeats is None or pace is None else heartbeats.unresponsive() or pace.unresponsive()
        )

    def stragglers(self) -> StragglerMonitor | None:
        """See `Engine`."""
        return self._stragglers

    def free(self) -> None:
        """See `Engine`."""
        self._lose_state()
        self._watched.set()
        self._heartbeats = self._stragglers = None
        # The first one last: the others would take its end for a fault.
        for group in (slice(1, None), slice(0, 1)):
            for sock in self._socks[group]:
                shut_down(sock)
            for wafer in self.wafers[group]:
                wafer.end()
        for sock in self._socks:
            sock.close()
        self._socks, self.wafers = [], []
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        own, self._own = self._own, []
        for memoryx in own:
            memoryx.end()

    # Inside

    def _start(self) -> None:
        hosts = self._machines.gather(self._count)
        addresses, self._own = start_memoryx(self._place, self._schedule, hosts.listen, hosts.address)
        token = secrets.token_hex(16)
        family = socket.AF_INET6 if ":" in hosts.listen else socket.AF_INET
        waiting = self._count + _STRANGERS
        with socket.create_server((hosts.listen, 0), family=family, backlog=waiting) as listener:
            for wafer in hosts.start(listener.getsockname()[1], token, self._count):
                self.wafers.append(wafer)
            self._heartbeats = heartbeats = HeartbeatMonitor(self._count, self._heartbeat_timeout_s)
            self._stragglers = StragglerMonitor(self._count)
            self._watched = watched = threading.Event()
            threading.Thread(
                target=self._watch, args=(heartbeats, self._stragglers, watched), daemon=True
            ).start()
            self._socks = accept_wafers(listener, token, self.wafers, heartbeats)
        with _held_port(hosts) as port:
            self._order(host_port(hosts.address, port), addresses, token)

    def _order(self, coordinator: str, memoryx: tuple[tuple[str, int], ...], token: str) -> None:
        """Tells the wafers what to compute, and waits until they can."""
        assert self._heartbeats is not None
        assert self._stragglers is not None
        for rank in range(self._count):
            arguments = (rank, self._heartbeats, self._stragglers)
            threading.Thread(target=self._receive, args=arguments, daemon=True).start()
        for rank, sock in enumerate(self._socks):
            order = WaferAssignment(rank, self._count, coordinator, memoryx, token)
            try:
                send_frame(sock, FrameType.OPEN, 0, order.to_bytes(self._step))
                for number, executable in enumerate(self._step.executables):
                    send_frame(sock, FrameType.FUNCTION, number, self._data[executable.name])
            except ConnectionError:
                raise self._cause() from None
        for _ in range(self._count):
            if self._ready.get() < 0:
                raise self._cause()
        self._reader = ShardedReader(self._schedule, memoryx, token)

    def _watch(self, heartbeats: HeartbeatMonitor, pace: StragglerMonitor, watched: threading.Event) -> None:
        """Names wafers that are silent or slow, and ends one that is silent for too long."""
        while not watched.wait(_LOOK_S):
            heartbeats.log_changes()
            pace.log_changes()
            overdue, wafers, socks = heartbeats.overdue(), self.wafers, self._socks
            if overdue is not None and socks:
                rank, silent_s = overdue
                self._note(WaferLostError.silent(rank, self._count, silent_s))
                # Wakes whoever waits for it; others may wait for it in a sum.
                wafers[rank].kill()
                shut_down(socks[rank])
                return

    def _receive(self, rank: int, heartbeats: HeartbeatMonitor, pace: StragglerMonitor) -> None:
        sock, wafer, values = self._socks[rank], self.wafers[rank], self._schedule.values
        outputs = [values[number] for number in dict.fromkeys(self._schedule.outputs)]
        try:
            while True:
                header = receive_header(sock)
                heartbeats.record(rank)
                if header.type is FrameType.ALIVE:
                    pace.record(
                        rank, WorkReport.from_json(bytes(receive_payload(sock, header, MAX_TEXT_BYTES)))
                    )
                    continue
                if header.type is FrameType.DONE:
                    self._ready.put(rank)
                elif header.type is FrameType.ANSWERS:
                    self._outputs.put(receive_arrays(sock, header, outputs))
                else:
                    fields = json.loads(receive_payload(sock, header, MAX_TEXT_BYTES))
                    raise from_wire(fields["code"], fields["message"], {})
        except CsSystemError as error:
            self._note(error)
        except ConnectionError:
            self._note(WaferLostError.of(rank, self._count, wafer.host), _has_aborted(wafer))
        self._ready.put(-1)
        self._outputs.put(self._cause())

    def _note(self, error: CsSystemError, has_aborted: bool = False) -> None:
        with self._failed:
            self._failures.append((_doubt(error, has_aborted), error))
            self._failed.notify_all()
        reader = self._reader
        if reader is not None:
            reader.end_all()

    def _cause(self) -> CsSystemError:
        """The failure that is least in doubt of being what another one did; of several the first."""
        with self._failed:
            self._failed.wait_for(lambda: any(doubt == 0 for doubt, _ in self._failures), _CAUSE_S)
            if not self._failures:
                return ExecutionError("the wafers do not answer")
            return min(self._failures, key=lambda item: item[0])[1]

    def _send(self, rank: int, kind: FrameType, index: int, arrays: Arrays) -> None:
        try:
            send_tensors(self._socks[rank], kind, index, arrays)
        except ConnectionError:
            self._lose_state()
            raise self._cause() from None

    def _put(self, number: int, array: np.ndarray) -> None:
        self._send(0, FrameType.PUT, number, [array])

    def _keep(self, numbers: Sequence[int]) -> ShardedReader:
        self._send(0, FrameType.SNAPSHOT, len(numbers), [np.array(numbers, np.uint32)])
        if self._ready.get() < 0:
            self._lose_state()
            raise self._cause()
        assert self._reader is not None
        return self._reader

    def _result(self, arrived: _Arriving) -> Arrays:
        found = arrived.get()
        if isinstance(found, CsSystemError):
            arrived.put(found)  # for whoever asks again
            self._lose_state()
            raise found
        return found


def _doubt(error: CsSystemError, has_aborted: bool) -> int:
    """How likely a failure is only what another one did; 0: it is not.

    When a wafer ends, sums fail on the others, MemoryX hangs up, and JAX aborts their processes.
    """
    if isinstance(error, WaferLostError):
        return 2 if has_aborted else 0
    if isinstance(error, StorageFullError):
        return 0
    return 3 if isinstance(error, ExecutionError | ProgramError) else 1


def _has_aborted(wafer: Wafer) -> bool:
    """Whether a wafer that has hung up has ended itself, as JAX does where another one has gone."""
    deadline = time.monotonic() + _CODE_S
    while not wafer.has_ended and time.monotonic() < deadline:
        time.sleep(_CODE_S / 50)
    return wafer.exit_code == -signal.SIGABRT


@contextlib.contextmanager
def _held_port(hosts: RunHosts) -> Iterator[int]:
    """A free port that nobody but the first wafer's coordinator, which shares ports, takes in the body."""
    with socket.socket(socket.AF_INET6 if ":" in hosts.listen else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((hosts.listen, 0))
        yield int(holder.getsockname()[1])


def accept_wafers(
    listener: socket.socket, token: str, wafers: Sequence[Wafer], heartbeats: HeartbeatMonitor
) -> list[socket.socket]:
    """The connections of all wafers, in their order; whoever else connects is sent away.

    Args:
        listener: Where they come to.
        token: Their secret.
        wafers: Which have been started.
        heartbeats: Is told of each one that has come.

    Raises:
        WaferLostError: one has ended, or does not come.
    """
    found: dict[int, socket.socket] = {}
    listener.settimeout(_ACCEPT_S)
    try:
        while len(found) < len(wafers):
            _check(wafers, found, heartbeats)
            try:
                sock, address = listener.accept()
            except TimeoutError:
                continue
            rank = _rank_of(sock, name_of(address), token)
            if rank is None or rank in found or rank >= len(wafers):
                sock.close()
            else:
                found[rank] = sock
    except BaseException:
        for sock in found.values():
            sock.close()
        raise
    return [found[rank] for rank in range(len(wafers))]


def _check(wafers: Sequence[Wafer], found: dict[int, socket.socket], heartbeats: HeartbeatMonitor) -> None:
    for rank, wafer in enumerate(wafers):
        if wafer.has_ended:
            raise WaferLostError.at_start(rank, len(wafers), wafer.exit_code, wafer.host)
        if rank in found:
            heartbeats.record(rank)  # it speaks, and nobody listens before all are here
    overdue = heartbeats.overdue()
    if overdue is not None:
        rank, silent_s = overdue
        raise WaferLostError.silent(rank, len(wafers), silent_s)


def _rank_of(sock: socket.socket, address: str, token: str) -> int | None:
    """The place of a wafer in its group; None for a stranger."""
    tune(sock)
    detect_loss(sock)
    try:
        set_time_limit(sock, socket.SO_RCVTIMEO, _WORD_S)
        header = receive_header(sock)
        word = bytes(receive_payload(sock, header, len(token)))
        # A model is compiled for minutes, in which nothing comes; `HeartbeatMonitor` looks for what is late.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
    except (ConnectionError, MemoryxError) as error:
        log.warning("%s is no wafer of the group: %s", address, error)
        return None
    is_known = header.type is FrameType.JOIN and hmac.compare_digest(word, token.encode())
    return header.index if is_known else None
