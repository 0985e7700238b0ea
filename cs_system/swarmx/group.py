"""The engine of a group of wafers: each is a process that computes its share of the batch."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cs_stream.sockets import shut_down
from cs_system.engine.device import from_device
from cs_system.engine.layered import LayeredEngine
from cs_system.errors import (
    ArtifactRefusedError,
    CsSystemError,
    ExecutionError,
    ProgramError,
    StorageFullError,
    WaferLostError,
    from_wire,
)
from cs_system.interface import samples_per_step
from cs_system.memoryx.frames import (
    MAX_TEXT_BYTES,
    FrameType,
    receive_fresh,
    receive_header,
    receive_payload,
    send_frame,
    send_tensors,
)
from cs_system.memoryx.place import MemoryxPlace
from cs_system.memoryx.process import OwnMemoryx
from cs_system.swarmx.gathering import gathered
from cs_system.swarmx.orders import Order, cut_inputs
from cs_system.swarmx.pulse import PATIENCE_S, Pulse
from cs_toolkit.schedule import Schedule
from cs_toolkit.step import CompiledStep
from cs_toolkit.traffic import traffic

_END_TIMEOUT_S = 5.0
_LOOK_S = 0.5
_STRANGERS = 64
"""Connections of others that may wait beside those of the wafers."""
_CAUSE_S = 1.0
"""The death of a wafer makes others fail, maybe before it is seen: so long the cause is waited for."""

_CODE_S = 0.5
"""So long the exit code of a wafer that has hung up is waited for."""

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
        patience_s: Silence after which a wafer is ended.

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
        patience_s: float = PATIENCE_S,
    ) -> None:
        samples = samples_per_step(step.interface)
        if samples % count:
            raise ArtifactRefusedError(
                f"a batch of {samples} samples cannot be shared equally by {count} CS systems; choose a "
                f"batch size that {count} divides, or another num_csx"
            )
        super().__init__(step.interface, schedule)
        self._step, self._data, self._place = step, data, memoryx
        self._count, self._patience_s = count, patience_s
        self._pulse: Pulse | None = None
        self._watched = threading.Event()
        self._cut = cut_inputs(step)
        self._for_memory = traffic(schedule).inputs
        self._own: OwnMemoryx | None = None
        self.wafers: list[subprocess.Popen[bytes]] = []
        self._socks: list[socket.socket] = []
        self._failed = threading.Condition()
        self._failures: list[tuple[int, CsSystemError]] = []
        self._states: _Arriving = queue.SimpleQueue()
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
        by_number = dict(zip(self._schedule.inputs, inputs, strict=True))
        for rank in range(self._count):
            shares = [
                array[len(array) // self._count * rank :][: len(array) // self._count] if is_cut else array
                for array, is_cut in zip(inputs, self._cut, strict=True)
            ]
            whole = [by_number[number] for number in self._for_memory] if rank == 0 else []
            self._send(rank, FrameType.BEGIN, 0, [*shares, *whole])
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

    def late(self) -> str | None:
        """See `Engine`."""
        pulse = self._pulse
        return None if pulse is None else pulse.late()

    def free(self) -> None:
        """See `Engine`."""
        self._lose_state()
        self._watched.set()
        self._pulse = None
        # The first one last: the others would take its end for a fault.
        for group in (slice(1, None), slice(0, 1)):
            for sock in self._socks[group]:
                shut_down(sock)
            _end(self.wafers[group])
        for sock in self._socks:
            sock.close()
        self._socks, self.wafers = [], []
        own, self._own = self._own, None
        if own is not None:
            own.close()

    # Inside

    def _start(self) -> None:
        address = self._place.address
        if address is None:
            self._own = OwnMemoryx(self._place)
            address = self._own.address
        token = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0), backlog=self._count + _STRANGERS) as listener:
            host, port = listener.getsockname()
            self.wafers = [_wafer(f"{host}:{port}", token, rank) for rank in range(self._count)]
            self._pulse = pulse = Pulse(self._count, self._patience_s)
            self._watched = watched = threading.Event()
            threading.Thread(target=self._watch, args=(pulse, watched), daemon=True).start()
            self._socks = gathered(listener, token, self.wafers, pulse)
        with _held_port() as port:
            self._order(f"127.0.0.1:{port}", address, token)

    def _order(self, coordinator: str, memoryx: tuple[str, int], token: str) -> None:
        """Tells the wafers what to compute, and waits until they can."""
        assert self._pulse is not None
        ready: queue.SimpleQueue[int] = queue.SimpleQueue()
        for rank in range(self._count):
            threading.Thread(target=self._receive, args=(rank, ready, self._pulse), daemon=True).start()
        for rank, sock in enumerate(self._socks):
            order = Order(rank, self._count, coordinator, memoryx, token)
            try:
                send_frame(sock, FrameType.OPEN, 0, order.to_bytes(self._step))
                for number, executable in enumerate(self._step.executables):
                    send_frame(sock, FrameType.FUNCTION, number, self._data[executable.name])
            except ConnectionError:
                raise self._cause() from None
        for _ in range(self._count):
            if ready.get() < 0:
                raise self._cause()

    def _watch(self, pulse: Pulse, watched: threading.Event) -> None:
        """Names wafers that are silent, and ends one that is for too long."""
        while not watched.wait(_LOOK_S):
            pulse.tell()
            overdue, wafers, socks = pulse.overdue(), self.wafers, self._socks
            if overdue is not None and socks:
                rank, silent_s = overdue
                self._note(WaferLostError.silent(rank, self._count, silent_s))
                # Wakes whoever waits for it; others may wait for it in a sum.
                wafers[rank].kill()
                shut_down(socks[rank])
                return

    def _receive(self, rank: int, ready: queue.SimpleQueue[int], pulse: Pulse) -> None:
        sock, process, values = self._socks[rank], self.wafers[rank], self._schedule.values
        outputs = [values[number] for number in dict.fromkeys(self._schedule.outputs)]
        try:
            while True:
                header = receive_header(sock)
                pulse.heard(rank)
                if header.type is FrameType.ALIVE:
                    continue
                if header.type is FrameType.DONE:
                    ready.put(rank)
                elif header.type is FrameType.STATE:
                    self._states.put(receive_fresh(sock, header, [values[header.index]]))
                elif header.type is FrameType.ANSWERS:
                    self._outputs.put(receive_fresh(sock, header, outputs))
                else:
                    fields = json.loads(receive_payload(sock, header, MAX_TEXT_BYTES))
                    raise from_wire(fields["code"], fields["message"], {})
        except CsSystemError as error:
            self._note(error)
        except ConnectionError:
            self._note(WaferLostError.of(rank, self._count), _has_aborted(process))
        ready.put(-1)
        failure = self._cause()
        for waiting in (self._states, self._outputs):
            waiting.put(failure)

    def _note(self, error: CsSystemError, has_aborted: bool = False) -> None:
        with self._failed:
            self._failures.append((_doubt(error, has_aborted), error))
            self._failed.notify_all()

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

    def _get(self, number: int) -> np.ndarray:
        self._send(0, FrameType.GET, number, [])
        (array,) = self._result(self._states)
        return array

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


def _has_aborted(process: subprocess.Popen[bytes]) -> bool:
    """Whether a wafer that has hung up has ended itself, as JAX does where another one has gone."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_CODE_S) == -signal.SIGABRT
    return False


def _wafer(leader: str, token: str, rank: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cs_system", "wafer", f"--leader={leader}", f"--rank={rank}"]
    # Not on the command line, which every user of the machine sees.
    environment = {**os.environ, "CS_WAFER_TOKEN": token}
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """A free port that nobody but the first wafer's coordinator, which shares ports, takes in the body."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits until processes have ended; those that have not in time are killed."""
    deadline = time.monotonic() + _END_TIMEOUT_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
