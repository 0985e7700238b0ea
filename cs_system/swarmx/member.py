"""The process of one wafer of a group: it computes its share of every batch as the CS system tells it to."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cs_stream.sockets import shut_down, tune
from cs_system.address import SystemAddress, is_loopback, parse_address
from cs_system.engine.device import device_errors
from cs_system.engine.layers import Layers, micro_batches
from cs_system.engine.streamed import select_executables
from cs_system.errors import CsSystemError, ExecutionError, ProgramError, SystemBugError
from cs_system.memoryx.client import ShardedListener, ShardedMemoryx
from cs_system.memoryx.protocol import (
    MAX_TEXT_BYTES,
    FrameType,
    Header,
    receive_arrays,
    receive_header,
    receive_payload,
    receive_tensors,
    send_frame,
    send_tensors,
)
from cs_system.swarmx.health import WorkReport
from cs_system.swarmx.protocol import WaferAssignment, detect_loss, split_inputs
from cs_toolkit.layered_step import schedule_from_json, traffic
from cs_toolkit.step import TensorSpec

HEARTBEAT_INTERVAL_S = 1.0
"""A wafer tells the CS system so often that it is there."""

_MAX_EXECUTABLE_BYTES = 2 << 30

_AXIS = "csx"

_POLL_S = 0.01

# JAX does not annotate it.
_block_until_ready: Callable[[Any], Any] = jax.block_until_ready

_PartitionSpec: Callable[..., Any] = PartitionSpec

_initialize: Callable[..., None] = jax.distributed.initialize

_from_parts: Callable[..., Any] = jax.make_array_from_single_device_arrays

_devices: Callable[[], Any] = jax.devices

_local_devices: Callable[[], Any] = jax.local_devices

_jax: Any = import_module("jaxlib._jax")

_make_gloo: Callable[..., Any] = _jax.make_gloo_tcp_collectives


def serve(address: tuple[str, int], token: str, rank: int) -> int:
    """Serves a CS system until it hangs up; returns the exit code.

    Args:
        address: Host and port where the system waits for its wafers.
        token: Its secret.
        rank: Of this wafer in its group.
    """
    with socket.create_connection(address) as sock:
        tune(sock)
        detect_loss(sock)
        send_frame(sock, FrameType.JOIN, rank, token.encode())
        sending = threading.Lock()
        wafer = _Wafer(sock, sending)
        threading.Thread(target=_stay_alive, args=(sock, sending, wafer.work), daemon=True).start()
        try:
            wafer.start()
            wafer.serve()
        except Exception as error:
            return _fail(sock, sending, error)
    return 0


def _stay_alive(sock: socket.socket, sending: threading.Lock, work: Callable[[], WorkReport]) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            with sending:
                send_frame(sock, FrameType.ALIVE, 0, work().to_json())
            time.sleep(HEARTBEAT_INTERVAL_S)


def _fail(sock: socket.socket, sending: threading.Lock, error: Exception) -> int:
    """Tells the CS system, where it still listens, and hangs up; the exit code of the process."""
    if isinstance(error, ConnectionError):
        return 0
    if not isinstance(error, CsSystemError):
        error = SystemBugError(f"internal error of a wafer: {type(error).__name__}: {error}")
    text = json.dumps({"code": error.code, "message": str(error)}).encode()
    try:
        with sending:
            send_frame(sock, FrameType.FAILED, 0, text)
            shut_down(sock)
    except ConnectionError:
        return 0
    return error.exit_code


class _Wafer:
    def __init__(self, sock: socket.socket, sending: threading.Lock) -> None:
        self._sock, self._sending = sock, sending
        self._address = str(sock.getsockname()[0])
        self._clock = CallClock()
        self._stream: ShardedMemoryx | ShardedListener | None = None

    def work(self) -> WorkReport:
        """What this wafer has done until now; any thread may ask."""
        stream = self._stream
        if stream is None:
            return WorkReport()
        receiving_s = sum(transfer.seconds for transfer in stream.transfers())
        return WorkReport(self._clock.computing_s, receiving_s, stream.unresponsive() or "")

    def start(self) -> None:
        """Is told what to compute, and gets ready for it.

        Raises:
            ConnectionError: the system hangs up.
            CsSystemError: the device or MemoryX failed.
        """
        sock = self._sock
        header = receive_header(sock)
        self._order, self._step = WaferAssignment.from_bytes(
            bytes(receive_payload(sock, header, MAX_TEXT_BYTES))
        )
        self._data = {}
        for executable in self._step.executables:
            header = receive_header(sock)
            self._data[executable.name] = bytes(receive_payload(sock, header, _MAX_EXECUTABLE_BYTES))
        self._schedule = schedule_from_json(self._step.schedule)
        self._traffic = traffic(self._schedule)
        self._stream = self._connect()
        self._layers = self._compile()
        self._outputs: queue.SimpleQueue[dict[int, Any]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Computes until the system hangs up.

        Raises:
            ConnectionError: it has.
            CsSystemError: the device or MemoryX failed.
        """
        if isinstance(self._stream, ShardedMemoryx):
            self._stream.wait_open()
            threading.Thread(target=self._answer, daemon=True).start()
        with self._sending:
            send_frame(self._sock, FrameType.DONE, 0)
        while True:
            header = receive_header(self._sock)
            if header.type is FrameType.PUT:
                self._take_state(header)
            elif header.type is FrameType.SNAPSHOT:
                self._keep_state(header)
            else:
                self._run_step(header)

    def _connect(self) -> ShardedMemoryx | ShardedListener:
        order = self._order
        if order.rank:
            return ShardedListener(self._schedule, order.memoryx, order.token)
        client = ShardedMemoryx(self._schedule, order.memoryx)
        functions = select_executables(self._step, self._data, self._schedule.memory_calls())
        client.open(functions, order.token, order.count - 1)
        return client

    def _compile(self) -> Layers:
        order = self._order
        with device_errors(ProgramError, "programming"):
            self._devices = GroupDevices(order.coordinator, order.count, order.rank, self._address)
            cut = zip(self._schedule.inputs, split_inputs(self._step), strict=True)
            places = {number: self._devices.by_sample for number, is_cut in cut if is_cut}
            executables = select_executables(self._step, self._data, self._traffic.calls)
            return Layers(
                self._schedule, self._traffic, executables, self._devices, places, self._clock.called
            )

    # State goes through the first wafer

    def _take_state(self, header: Header) -> None:
        assert isinstance(self._stream, ShardedMemoryx)
        (array,) = receive_arrays(self._sock, header, [self._schedule.values[header.index]])
        self._stream.put(header.index, array)

    def _keep_state(self, header: Header) -> None:
        assert isinstance(self._stream, ShardedMemoryx)
        numbers = np.empty(header.index, np.uint32)
        receive_tensors(self._sock, header, [numbers])
        self._stream.snapshot([int(number) for number in numbers])
        with self._sending:
            send_frame(self._sock, FrameType.DONE, 0)

    # Steps

    def _run_step(self, header: Header) -> None:
        schedule, count = self._schedule, self._order.count
        specs, cut = self._step.interface.inputs, split_inputs(self._step)
        shares = [_share(spec, count) if is_cut else spec for spec, is_cut in zip(specs, cut, strict=True)]
        whole = [specs[position] for position in schedule.micro.whole.values()]
        for_memory = [schedule.values[n] for n in self._traffic.inputs] if not self._order.rank else []
        arrays = receive_arrays(self._sock, header, [*shares, *whole, *for_memory])
        end = len(specs) + len(whole)
        batches = micro_batches(schedule, arrays[: len(specs)], arrays[len(specs) : end])
        for batch in batches:
            for number, is_cut in zip(schedule.inputs, cut, strict=True):
                if is_cut:
                    batch[number] = self._devices.put_share(batch[number], schedule.values[number].shape)
        assert self._stream is not None
        with device_errors(ExecutionError, "running the steps"):
            values = self._layers.run(batches, arrays[end:], self._stream)
        if not self._order.rank:
            self._outputs.put(values)

    def _answer(self) -> None:
        """Sends the outputs of steps, in their order."""
        assert self._stream is not None
        try:
            while True:
                found = {**self._outputs.get(), **self._stream.answers()}
                arrays = [np.asarray(found[number]) for number in dict.fromkeys(self._schedule.outputs)]
                with self._sending:
                    send_tensors(self._sock, FrameType.ANSWERS, 0, arrays)
        except Exception as error:
            _fail(self._sock, self._sending, error)


def _share(spec: TensorSpec, count: int) -> TensorSpec:
    return TensorSpec(spec.name, spec.dtype, (spec.shape[0] // count, *spec.shape[1:]))


class CallClock:
    """Notes when calls of the device have ended, in a thread of its own: who makes them waits for others.

    Attributes:
        computing_s: seconds of all calls so far that have no sums over wafers.
    """

    def __init__(self) -> None:
        self.computing_s = 0.0
        self._calls: queue.SimpleQueue[tuple[float, Sequence[Any], bool]] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="clock", daemon=True).start()

    def called(self, began_s: float, results: Sequence[Any], has_sums: bool) -> None:
        """A call has been made.

        Args:
            began_s: Monotonic time before it.
            results: Of the call.
            has_sums: Whether it waits for other wafers.
        """
        self._calls.put((began_s, results, has_sums))

    def _watch(self) -> None:
        ended_s = 0.0
        while True:
            began_s, results, has_sums = self._calls.get()
            try:
                _block_until_ready(results)
            except Exception:
                return  # told by whoever reads the results
            del results
            before_s, ended_s = ended_s, time.monotonic()
            if not has_sums:
                self.computing_s += ended_s - max(began_s, before_s)


def _meet_at(address: str) -> None:
    """Where gloo listens; it would take what the name of the machine stands for, which may be its loopback.

    No public name of JAX says it.
    """
    _jax.make_gloo_tcp_collectives = partial(_make_gloo, hostname=address)


def wait_for_listener(address: SystemAddress, timeout_s: float = 60.0) -> bool:
    """Whether somebody listens there in time. JAX, where nobody does yet, calls again only after a second."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address.host, address.port), timeout_s):
            return True
        time.sleep(_POLL_S)
    return False


def _join(coordinator: str, count: int, rank: int) -> None:
    """The first process lets the others come to it, on loopback alone if that is where they are."""
    address = parse_address(coordinator)
    options = {}
    if rank:
        wait_for_listener(address)  # JAX says what is wrong where nobody does
    elif is_loopback(address.host):
        options["coordinator_bind_address"] = coordinator
    _initialize(coordinator, count, rank, **options)


class GroupDevices:
    """See `cs_system.engine.executable.Devices`: the sums over the batch are XLA's, in an order that stays.

    Args:
        coordinator: HOST:PORT where the processes of the group meet; the first one listens there.
        count: Of wafers.
        rank: Of this one, from 0.
        address: Of this machine, under which the others reach it.
    """

    def __init__(self, coordinator: str, count: int, rank: int, address: str) -> None:
        settings: Any = jax.config
        _meet_at(address)
        settings.update("jax_cpu_collectives_implementation", "gloo")
        _join(coordinator, count, rank)
        mesh = Mesh(np.array(_devices()), (_AXIS,))
        self.whole: Any = NamedSharding(mesh, _PartitionSpec())
        self.by_sample: Any = NamedSharding(mesh, _PartitionSpec(_AXIS))
        (self._device,) = _local_devices()

    def put(self, array: np.ndarray) -> Any:
        """A value that is the same on all."""
        return _from_parts(array.shape, self.whole, [jax.device_put(array, self._device)])

    def put_share(self, share: np.ndarray, shape: tuple[int, ...]) -> Any:
        """A value of which each wafer has the samples of its own.

        Args:
            share: Those of this one.
            shape: Of all.
        """
        return _from_parts(shape, self.by_sample, [jax.device_put(share, self._device)])
