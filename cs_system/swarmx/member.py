"""The process of a wafer of a group: it computes its share of every batch."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cs_system.address import SystemAddress, is_loopback, parse_address
from cs_system.engine.layers import Layers
from cs_system.engine.micro_batches import micro_batches
from cs_system.engine.state import device_errors
from cs_system.errors import CsSystemError, ExecutionError, ProgramError, unexpected_error
from cs_system.memoryx.client import ShardedListener, ShardedMemoryx
from cs_system.memoryx.engine import select_executables
from cs_system.memoryx.protocol import (
    HEARTBEAT_INTERVAL_S,
    MAX_EXECUTABLE_BYTES,
    MAX_TEXT_BYTES,
    FrameChannel,
    FrameType,
    Header,
    greet,
)
from cs_system.part_spans import part_spans
from cs_system.swarmx.health import WorkReport
from cs_system.swarmx.protocol import WaferAssignment, memoryx_key, split_inputs
from cs_toolkit.layered_step import schedule_from_json, traffic
from cs_toolkit.network.connection import name_of
from cs_toolkit.network.liveness import peer_timeout_s
from cs_toolkit.security.sealing import decrypt
from cs_toolkit.security.tls import Credentials
from cs_toolkit.security.tls_connection import TlsError, connect

log = logging.getLogger("cs_system.server")

# How long the CS system may take to answer; it accepts its wafers one at a time.
_GREETING_S = 60.0
_AXIS = "csx"
_POLL_S = 0.01
# JAX measures the silence of wafers with the wall clock: it would abort a group when the clock of its machine
# is set, or continues after the machine was suspended. So JAX never does: 23 days are fewer than 2**31 ms,
# and a clock that is set back, a silence of 2**64 ms, ends no group with recoverable members.
# HeartbeatMonitor notices silent wafers.
_JAX_HEARTBEAT_S = 2_000_000

# JAX has no annotation for it.
_block_until_ready: Callable[[Any], Any] = jax.block_until_ready
_PartitionSpec: Callable[..., Any] = PartitionSpec
_initialize: Callable[..., None] = jax.distributed.initialize
_from_parts: Callable[..., Any] = jax.make_array_from_single_device_arrays
_devices: Callable[[], Any] = jax.devices
_local_devices: Callable[[], Any] = jax.local_devices
_jax: Any = import_module("jaxlib._jax")
_make_gloo: Callable[..., Any] = _jax.make_gloo_tcp_collectives


def serve(address: tuple[str, int], token: str, rank: int, credentials: Credentials | None = None) -> int:
    """Serve a CS system until it disconnects; return the exit code.

    Args:
        address: Host and port where the system waits for its wafers.
        token: Secret of the run.
        rank: Rank of this wafer in its group.
        credentials: For TLS with the system; None: without TLS.
    """
    leader = f"the CS system at {name_of(address)}"
    try:
        connected = connect(address, credentials=credentials)
    except OSError as error:  # a run that has already ended does not wait for its wafers
        log.error("%s does not wait for this wafer: %s", leader, error.strerror or error)
        return 1
    except TlsError as error:
        log.error("%s: %s", leader, error)
        return 1
    with connected as connection:
        connection.break_when_lost(round(peer_timeout_s(os.environ)))
        try:
            channel = greet(connection, token, _GREETING_S, leader)
            channel.send(FrameType.JOIN, rank)
        except ConnectionError:
            return 0
        wafer = _Wafer(channel, token)
        threading.Thread(target=_send_heartbeats, args=(channel, wafer.work), daemon=True).start()
        try:
            wafer.start()
            wafer.serve()
        except Exception as error:
            return _fail(channel, error)
    return 0


def _send_heartbeats(channel: FrameChannel, work: Callable[[], WorkReport]) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            channel.send(FrameType.ALIVE, 0, work().to_json())
            time.sleep(HEARTBEAT_INTERVAL_S)


def _fail(channel: FrameChannel, error: Exception) -> int:
    """Send the error to the CS system, if it is still connected; return the exit code of the process."""
    if isinstance(error, ConnectionError):
        return 0
    if not isinstance(error, CsSystemError):
        error = unexpected_error("a wafer", error)
    try:
        channel.send_failure(error)
    except ConnectionError:
        return 0
    channel.connection.shut_down()
    return error.exit_code


class _Wafer:
    def __init__(self, channel: FrameChannel, token: str) -> None:
        self._channel, self._token = channel, token
        self._address = channel.connection.own_host
        self._timer = ComputeTimer()
        self._stream: ShardedMemoryx | ShardedListener | None = None

    def work(self) -> WorkReport:
        """Return a report of this wafer's work so far; thread-safe."""
        stream = self._stream
        if stream is None:
            return WorkReport()
        receiving_s = sum(transfer.seconds for transfer in stream.transfers())
        return WorkReport(self._timer.computing_s, receiving_s, stream.unresponsive() or "")

    def start(self) -> None:
        """Receive the assignment, and prepare for it.

        Raises:
            ConnectionError: the system disconnects.
            CsSystemError: the device or MemoryX failed.
        """
        channel = self._channel
        header = channel.receive_header()
        self._assignment, self._step = WaferAssignment.from_bytes(
            channel.receive_payload(header, MAX_TEXT_BYTES)
        )
        self._data = {}
        for executable in self._step.executables:
            header = channel.receive_header()
            self._data[executable.name] = channel.receive_payload(header, MAX_EXECUTABLE_BYTES)
        self._schedule = schedule_from_json(self._step.schedule)
        self._traffic = traffic(self._schedule)
        assignment = self._assignment
        secret = decrypt(assignment.encrypted_secret, memoryx_key(self._token))
        timeout_s = peer_timeout_s(os.environ)
        if assignment.rank:
            # The first wafer waits for this one, at MemoryX and in sums: it must not learn of the loss only
            # when it next asks for weights.
            report = partial(_fail, channel)
            self._stream = ShardedListener(
                self._schedule, assignment.memoryx, secret, assignment.model, report, timeout_s
            )
        else:
            client = ShardedMemoryx(self._schedule, assignment.memoryx, secret, peer_timeout_s=timeout_s)
            functions = select_executables(self._step, self._data, self._schedule.memory_calls())
            client.open(functions, assignment.model, assignment.count - 1)
            self._stream = client
        with device_errors(ProgramError, "programming"):
            self._devices = GroupDevices(
                assignment.coordinator, assignment.count, assignment.rank, self._address
            )
            split = zip(self._schedule.inputs, split_inputs(self._step), strict=True)
            places = {number: self._devices.by_sample for number, is_split in split if is_split}
            executables = select_executables(self._step, self._data, self._traffic.calls)
            self._layers = Layers(
                self._schedule,
                self._traffic,
                executables,
                self._devices,
                places,
                self._timer.add_call,
                part_spans(f"wafer {assignment.rank}"),
            )
        self._outputs: queue.SimpleQueue[dict[int, Any]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Compute until the system disconnects.

        Raises:
            ConnectionError: it has disconnected.
            CsSystemError: the device or MemoryX failed.
        """
        stream = self._stream
        if isinstance(stream, ShardedMemoryx):
            stream.wait_open()
            threading.Thread(target=self._answer, daemon=True).start()
        self._channel.send(FrameType.DONE, 0)
        while True:
            header = self._channel.receive_header()
            if header.type is FrameType.PUT:
                assert isinstance(stream, ShardedMemoryx)
                (array,) = self._channel.receive_arrays(header, [self._schedule.values[header.index]])
                stream.put(header.index, array)
            elif header.type is FrameType.SNAPSHOT:
                assert isinstance(stream, ShardedMemoryx)
                stream.snapshot(self._channel.receive_numbers(header, len(self._schedule.state)))
                self._channel.send(FrameType.DONE, 0)
            else:
                self._run_step(header)

    # Steps

    def _run_step(self, header: Header) -> None:
        schedule, count = self._schedule, self._assignment.count
        specs, split = self._step.interface.inputs, split_inputs(self._step)
        shares = [
            replace(spec, shape=(spec.shape[0] // count, *spec.shape[1:])) if is_split else spec
            for spec, is_split in zip(specs, split, strict=True)
        ]
        whole = [specs[position] for position in schedule.micro.whole.values()]
        for_memory = [schedule.values[n] for n in self._traffic.inputs] if not self._assignment.rank else []
        arrays = self._channel.receive_arrays(header, [*shares, *whole, *for_memory])
        end = len(specs) + len(whole)
        batches = micro_batches(schedule, arrays[: len(specs)], arrays[len(specs) : end])
        for batch in batches:
            for number, is_split in zip(schedule.inputs, split, strict=True):
                if is_split:
                    batch[number] = self._devices.put_share(batch[number], schedule.values[number].shape)
        assert self._stream is not None
        with device_errors(ExecutionError, "running the steps"):
            values = self._layers.run(batches, arrays[end:], self._stream)
        if not self._assignment.rank:
            self._outputs.put(values)

    def _answer(self) -> None:
        """Send the outputs of steps, in their order."""
        assert self._stream is not None
        try:
            while True:
                found = {**self._outputs.get(), **self._stream.answers()}
                arrays = [np.asarray(found[number]) for number in dict.fromkeys(self._schedule.outputs)]
                self._channel.send_arrays(FrameType.ANSWERS, 0, arrays)
        except Exception as error:
            _fail(self._channel, error)


class ComputeTimer:
    """Measures how long the device computes calls that need no other wafer.

    It waits for the calls in a separate thread, because the thread that makes them also waits for other
    wafers.

    Attributes:
        computing_s: Total seconds of the calls without sums over wafers.
    """

    def __init__(self) -> None:
        self.computing_s = 0.0
        self._calls: queue.SimpleQueue[tuple[float, Sequence[Any], bool]] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="clock", daemon=True).start()

    def add_call(self, began_s: float, results: Sequence[Any], has_sums: bool) -> None:
        """Add a call that has been started.

        Args:
            began_s: Monotonic time before it.
            results: Results of the call.
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
                return  # reported by the thread that reads the results
            # Frees the memory of the results before the next call comes.
            del results
            before_s, ended_s = ended_s, time.monotonic()
            if not has_sums:
                # The device starts a call when it is made, or after the previous one.
                self.computing_s += ended_s - max(began_s, before_s)


def wait_for_listener(address: SystemAddress, timeout_s: float = 60.0) -> bool:
    """Wait until somebody listens at the address; return False if nobody does in time."""
    # JAX itself would retry only after a second.
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address.host, address.port), timeout_s):
            return True
        time.sleep(_POLL_S)
    return False


class GroupDevices:
    """The devices of a group, one process each; XLA computes the sums over the batch in a fixed order.

    Args:
        coordinator: HOST:PORT where the processes of the group meet; the first one listens there.
        count: Number of wafers.
        rank: Rank of this wafer, from 0.
        address: Address of this machine under which the others reach it.
    """

    def __init__(self, coordinator: str, count: int, rank: int, address: str) -> None:
        settings: Any = jax.config
        # Otherwise gloo listens on the address of the machine's name, which may be loopback. JAX has no
        # public name for this setting.
        _jax.make_gloo_tcp_collectives = partial(_make_gloo, hostname=address)
        settings.update("jax_cpu_collectives_implementation", "gloo")
        settings.update("jax_enable_recoverability", True)
        meeting = parse_address(coordinator)
        options = {}
        if rank:
            wait_for_listener(meeting)  # if nobody listens, the error comes from JAX
        elif is_loopback(meeting.host):
            options["coordinator_bind_address"] = coordinator
        _initialize(coordinator, count, rank, heartbeat_timeout_seconds=_JAX_HEARTBEAT_S, **options)
        mesh = Mesh(np.array(_devices()), (_AXIS,))
        self.whole: Any = NamedSharding(mesh, _PartitionSpec())
        self.by_sample: Any = NamedSharding(mesh, _PartitionSpec(_AXIS))
        (self._device,) = _local_devices()

    def put(self, array: np.ndarray) -> Any:
        """Return a replicated value."""
        return _from_parts(array.shape, self.whole, [jax.device_put(array, self._device)])

    def put_share(self, share: np.ndarray, shape: tuple[int, ...]) -> Any:
        """Return a value that is sharded along its samples.

        Args:
            share: The samples of this wafer.
            shape: Shape of the whole value.
        """
        return _from_parts(shape, self.by_sample, [jax.device_put(share, self._device)])
