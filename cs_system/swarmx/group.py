"""The engine of a group of wafers: each is a process that computes its share of the batch."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cs_stream.sockets import name_of, shut_down, tune
from cs_system.address import host_port
from cs_system.engine.device import from_device
from cs_system.engine.layered import LayeredEngine
from cs_system.engine.micro import for_memory, share
from cs_system.errors import (
    ArtifactRefusedError,
    CsSystemError,
    ExecutionError,
    MemoryxError,
    ProgramError,
    WaferLostError,
    from_wire,
)
from cs_system.interface import samples_per_step
from cs_system.memoryx.frames import (
    MAX_TEXT_BYTES,
    MAX_TOKEN_BYTES,
    FrameType,
    receive_fresh,
    receive_header,
    receive_payload,
    send_frame,
    send_tensors,
)
from cs_system.memoryx.place import MemoryxPlace
from cs_system.memoryx.process import OwnMemoryx, started_memoryx
from cs_system.memoryx.sharded import ShardedReader
from cs_system.swarmx.channel import notice_loss
from cs_system.swarmx.hosts import Hosts, Machines, OneMachine, Wafer
from cs_system.swarmx.orders import Order, cut_inputs
from cs_toolkit.schedule import Schedule
from cs_toolkit.step import CompiledStep
from cs_toolkit.traffic import traffic

_START_TIMEOUT_S = 60.0
_JOIN_TIMEOUT_S = 5.0
_POLL_S = 0.2
_CAUSE_S = 0.5
"""The death of a wafer makes others fail, maybe before it is seen: so long the cause is waited for."""

log = logging.getLogger("cs_system.server")

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

    Raises:
        ArtifactRefusedError: the batch cannot be shared equally.
    """

    def __init__(
        self,
        step: CompiledStep,
        schedule: Schedule,
        data: Mapping[str, bytes],
        memoryx: MemoryxPlace,
        count: int,
        machines: Machines | None = None,
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
        self._count = count
        self._machines = machines or OneMachine()
        self._cut = cut_inputs(step)
        self._traffic = traffic(schedule)
        self._own: list[OwnMemoryx] = []
        self.wafers: list[Wafer] = []
        self._socks: list[socket.socket] = []
        self._failures: queue.SimpleQueue[tuple[int, CsSystemError]] = queue.SimpleQueue()
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

    def free(self) -> None:
        """See `Engine`."""
        self._lose_state()
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
            memoryx.close()

    # Inside

    def _start(self) -> None:
        hosts = self._machines.gather(self._count)
        addresses, self._own = started_memoryx(self._place, self._schedule, hosts.listen, hosts.address)
        token = secrets.token_hex(16)
        family = socket.AF_INET6 if ":" in hosts.listen else socket.AF_INET
        with socket.create_server((hosts.listen, 0), family=family, backlog=self._count) as listener:
            listener.settimeout(_POLL_S)
            for wafer in hosts.start(listener.getsockname()[1], token, self._count):
                self.wafers.append(wafer)
            self._socks = self._accepted(listener, token)
        with _held_port(hosts) as port:
            self._order(host_port(hosts.address, port), addresses, token)

    def _order(self, coordinator: str, memoryx: tuple[tuple[str, int], ...], token: str) -> None:
        """Tells the wafers what to compute, and waits until they can."""
        for rank, sock in enumerate(self._socks):
            order = Order(rank, self._count, coordinator, memoryx, token)
            send_frame(sock, FrameType.OPEN, 0, order.to_bytes(self._step))
            for number, executable in enumerate(self._step.executables):
                send_frame(sock, FrameType.FUNCTION, number, self._data[executable.name])
        for rank in range(self._count):
            threading.Thread(target=self._receive, args=(rank,), daemon=True).start()
        for _ in range(self._count):
            if self._ready.get() < 0:
                raise self._cause()
        self._reader = ShardedReader(self._schedule, memoryx, token)

    def _accepted(self, listener: socket.socket, token: str) -> list[socket.socket]:
        found: dict[int, socket.socket] = {}
        deadline = time.monotonic() + _START_TIMEOUT_S
        while len(found) < self._count:
            try:
                sock, address = listener.accept()
            except TimeoutError:
                self._check_start(len(found), deadline)
                continue
            rank = _rank(sock, name_of(address), token)
            if rank is None:
                sock.close()
            else:
                found[rank] = sock
        return [found[rank] for rank in range(self._count)]

    def _check_start(self, found: int, deadline: float) -> None:
        for rank, wafer in enumerate(self.wafers):
            if wafer.has_ended:
                raise WaferLostError.of(rank, self._count, wafer.host)
        if time.monotonic() > deadline:
            raise ProgramError(
                f"{found} of {self._count} wafers were there within {_START_TIMEOUT_S:g} s; look at "
                "the log of the CS system"
            )

    def _receive(self, rank: int) -> None:
        sock, values = self._socks[rank], self._schedule.values
        outputs = [values[number] for number in dict.fromkeys(self._schedule.outputs)]
        try:
            while True:
                header = receive_header(sock)
                if header.type is FrameType.DONE:
                    self._ready.put(rank)
                elif header.type is FrameType.ANSWERS:
                    self._outputs.put(receive_fresh(sock, header, outputs))
                else:
                    fields = json.loads(receive_payload(sock, header, MAX_TEXT_BYTES))
                    raise from_wire(fields["code"], fields["message"], {})
        except CsSystemError as error:
            self._failures.put((rank, error))
        except ConnectionError:
            self._failures.put((rank, WaferLostError.of(rank, self._count, self.wafers[rank].host)))
        self._ready.put(-1)
        failure = self._cause()
        self._outputs.put(failure)

    def _cause(self) -> CsSystemError:
        """The first failure; the death of a wafer before what it has done to others."""
        deadline = time.monotonic() + _CAUSE_S
        found: list[tuple[int, CsSystemError]] = []
        with contextlib.suppress(queue.Empty):
            while not any(isinstance(error, WaferLostError) for _, error in found):
                found.append(self._failures.get(timeout=max(0.0, deadline - time.monotonic())))
        for item in found:
            self._failures.put(item)  # for whoever asks next
        errors = [error for _, error in found] or [ExecutionError("the wafers do not answer")]
        return next((error for error in errors if isinstance(error, WaferLostError)), errors[0])

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


def _rank(sock: socket.socket, address: str, token: str) -> int | None:
    """Of the wafer that has come; None where it is a stranger, who may come from any host."""
    sock.settimeout(_JOIN_TIMEOUT_S)
    try:
        header = receive_header(sock)
        known = bytes(receive_payload(sock, header, MAX_TOKEN_BYTES))
    except (ConnectionError, MemoryxError) as error:
        log.warning("%s is no wafer of the group: %s", address, error)
        return None
    tune(sock)
    notice_loss(sock)
    return header.index if hmac.compare_digest(known, token.encode()) else None


@contextlib.contextmanager
def _held_port(hosts: Hosts) -> Iterator[int]:
    """A free port that nobody but the first wafer's coordinator, which shares ports, takes in the body."""
    with socket.socket(socket.AF_INET6 if ":" in hosts.listen else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((hosts.listen, 0))
        yield int(holder.getsockname()[1])
