"""Wafers that die or stop, and unauthenticated peers: reported within seconds, and no process is left."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cs_system.errors import (
    ExecutableError,
    MemoryxError,
    StorageFullError,
    WaferLostError,
    WrongOrderError,
)
from cs_system.memoryx.config import MemoryxConfig
from cs_system.memoryx.protocol import NO_TAG, FrameType, Header, greet
from cs_system.swarmx import member
from cs_system.swarmx.group import GroupEngine, accept_wafers
from cs_system.swarmx.health import HeartbeatMonitor
from cs_system.swarmx.hosts import RunHosts, Wafer, WaferProcess
from cs_toolkit.network.connection import connect, listen, shut_down
from tests.processes import wait_until
from tests.programs.steps.hostile import with_callback
from tests.systems import descendants_of

from .groups import group, pids_of, train
from .streamed_steps import Streamed, running_memoryx

TOKEN = "a token"


def check_gone(pids: list[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True)
class Disturbed(RunHosts):
    """This machine; what `act` does happens before the CS system looks who comes.

    Attributes:
        act: Is given the port where it waits, and the wafers.
    """

    act: Callable[[int, Sequence[Wafer]], None] = field(kw_only=True)

    def gather(self, count: int) -> RunHosts:
        return self

    def start(self, port: int, count: int) -> Iterator[Wafer]:
        wafers = list(super().start(port, count))
        self.act(port, wafers)
        yield from wafers


class SteadyWafer:
    """A wafer that does not end."""

    host, has_ended, exit_code = "", False, None

    def end(self) -> None:
        return

    kill = end


def test_a_killed_wafer_is_named_and_nothing_is_left(stack: Streamed, tmp_path: Path) -> None:
    with group(stack, MemoryxConfig((), tmp_path), 2) as engine:
        expected = train(engine, stack, 2)
        pids = pids_of(engine)
        os.kill(pids[1], signal.SIGKILL)
        began_s = time.monotonic()
        with pytest.raises(WaferLostError, match=r"CS system 2 of 2 has gone; .* from its last checkpoint"):
            train(engine, stack)
        assert time.monotonic() - began_s < 30
        with pytest.raises(WrongOrderError, match="put_state comes before"):
            train(engine, stack, 1)
        engine.free()
        check_gone(pids)
        # Wafers that are started again have nothing of this failure.
        engine.put_state(stack.state)
        assert train(engine, stack, 2) == expected


def test_a_wafer_that_hangs_for_a_while_is_named_and_changes_nothing(
    stack: Streamed, memoryx: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with group(stack, MemoryxConfig((memoryx,)), 2) as engine:
        expected = train(engine, stack)
        engine.put_state(stack.state)
        train(engine, stack, 3)
        engine.put_state(stack.state)
        assert engine.unresponsive() is None
        with caplog.at_level("INFO", "cs_system.server"):
            with stopped(pids_of(engine)[1]):
                losses: list[bytes] = []
                steps = threading.Thread(
                    target=lambda: losses.extend(a.tobytes() for a in train(engine, stack))
                )
                steps.start()
                wait_until(engine.unresponsive)
                told = engine.unresponsive()
                wait_until(lambda: "CS system 2 of 2 has not answered for 10 s" in caplog.text)
                assert not losses
            steps.join()
        assert "CS system 2 of 2 answers again" in caplog.text
        assert engine.unresponsive() is None
    assert told is not None
    assert told.startswith("CS system 2 of 2 has not answered for")
    assert told.endswith("; the run ends after 60 s")
    assert losses == [loss.tobytes() for loss in expected]


def test_a_wafer_that_hangs_for_long_is_ended(stack: Streamed, tmp_path: Path) -> None:
    with group(stack, MemoryxConfig((), tmp_path, peer_timeout_s=8.0), 2) as engine:
        train(engine, stack, 2)
        pids = pids_of(engine)
        with (
            stopped(pids[0]),
            pytest.raises(WaferLostError, match="CS system 1 of 2 has not answered for 8 s"),
        ):
            train(engine, stack)
        engine.free()
        check_gone(pids)


def test_a_wafer_that_dies_at_its_start(stack: Streamed, tmp_path: Path) -> None:
    pids: list[int] = []

    def kill(_: int, wafers: Sequence[Wafer]) -> None:
        processes = [wafer for wafer in wafers if isinstance(wafer, WaferProcess)]
        pids.extend(process.pid for process in processes)
        processes[-1].kill()
        processes[-1].wait()

    place, host_pool = MemoryxConfig((), tmp_path), Disturbed(act=kill)
    engine = GroupEngine(stack.compiled, stack.schedule, stack.data, place, 2, host_pool)
    began_s = time.monotonic()
    with pytest.raises(WaferLostError, match=r"CS system 2 of 2 has ended .*signal 9"):
        engine.program()
    assert time.monotonic() - began_s < 30
    assert len(pids) == 2
    check_gone(pids)


def test_a_peer_that_is_no_wafer_gets_the_reason() -> None:
    with listen("127.0.0.1", 0) as listener, ThreadPoolExecutor(1) as pool:
        ready = pool.submit(accept_wafers, listener, TOKEN, [SteadyWafer()], HeartbeatMonitor(1, 60.0))
        with connect(listener.getsockname()) as stranger:
            stranger.send([Header(FrameType.OPEN, 0, 0).encode()])
            answer = bytearray(4096)
            size = stranger.receive_some(memoryview(answer))
        assert b"got OPEN, expected HELLO" in answer[:size]
        with connect(listener.getsockname()) as wafer:
            greet(wafer, TOKEN, 5.0).send(FrameType.JOIN, 0)
            (channel,) = ready.result()
            channel.connection.close()


def test_unauthenticated_peers_do_not_disturb_the_start(stack: Streamed, memoryx: tuple[str, int]) -> None:
    strangers: list[socket.socket] = []

    def disturb(port: int, _: Sequence[Wafer]) -> None:
        for address in (("127.0.0.1", port), memoryx[:2]):
            strangers.extend(socket.create_connection(address) for _ in range(4))
            talking, guessing, leaving, _silent = strangers[-4:]
            talking.sendall(b"GET / HTTP/1.1\r\nHost: wafer\r\n\r\n")
            # A handshake without the secret, and the name of a wafer.
            for kind, payload in ((FrameType.HELLO, b"nonce"), (FrameType.PROOF, b""), (FrameType.JOIN, b"")):
                guessing.sendall(Header(kind, 1, len(payload)).encode() + payload)
            leaving.close()

    place, host_pool = MemoryxConfig((memoryx,)), Disturbed(act=disturb)
    engine = GroupEngine(stack.compiled, stack.schedule, stack.data, place, 2, host_pool)
    try:
        engine.put_state(stack.state)
        assert len(strangers) == 8
        losses = train(engine, stack, 2)
    finally:
        engine.free()
        for sock in strangers:
            sock.close()
    assert len(losses) == 2


def test_a_full_disk_is_reported_by_the_group(stack: Streamed, tmp_path: Path) -> None:
    """The error names this wafer, not the consequences for the others."""
    with running_memoryx(tmp_path) as (process, address):
        for pid in (process.pid, *descendants_of(process.pid)):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        engine = GroupEngine(stack.compiled, stack.schedule, stack.data, MemoryxConfig((address,)), 2)
        with pytest.raises(StorageFullError, match=r"MemoryX needs [\d,]+ bytes in .* --memoryx-dir"):
            engine.program()


def test_a_refused_executable_is_reported_by_the_group(stack: Streamed, tmp_path: Path) -> None:
    """The error names the operation, not the wafer that JAX ends because the other one has ended."""
    number = max({call.function for call in stack.schedule.calls()})
    name = stack.compiled.executables[number].name
    data = {**stack.data, name: with_callback(stack.data[name])}
    engine = GroupEngine(stack.compiled, stack.schedule, data, MemoryxConfig((), tmp_path), 2)
    with pytest.raises(ExecutableError, match=rf"executable 'function {number}' is refused: .* @xla_ffi_pyt"):
        engine.program()


@contextmanager
def cut_when_it_joins(target: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Forward connections to MemoryX, but cut that of a wafer that joins the model of another one."""
    name_bytes = 32
    joins = Header(FrameType.JOIN, 0, name_bytes).encode()[: -2 * len(NO_TAG)]
    ends: list[socket.socket] = []

    def forward(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while (data := source.recv(1 << 16)) and joins not in data:
                sink.sendall(data)
        for sock in (source, sink):
            shut_down(sock)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.create_connection(target)
                ends.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=forward, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()
        shut_down(listener)
    for sock in ends:
        sock.close()


def test_a_wafer_that_cannot_join_is_reported_and_its_model_is_dropped(
    stack: Streamed, tmp_path: Path
) -> None:
    """It gets no weights before the first step, for which the first wafer and MemoryX wait."""
    with running_memoryx(tmp_path) as (_, address), cut_when_it_joins(address[:2]) as place:
        engine = GroupEngine(stack.compiled, stack.schedule, stack.data, MemoryxConfig((place,)), 2)
        began_s = time.monotonic()
        with pytest.raises(MemoryxError, match=r"MemoryX at \S+ has gone"):
            engine.program()
        assert time.monotonic() - began_s < 30
        wait_until(lambda: not [*tmp_path.iterdir()], lambda: [*tmp_path.iterdir()], 30)


def test_a_killed_memoryx_is_reported_by_the_group(stack: Streamed, tmp_path: Path) -> None:
    """The error names MemoryX, not the consequences for the wafers."""
    with (
        running_memoryx(tmp_path) as (process, address),
        group(stack, MemoryxConfig((address,)), 2) as engine,
    ):
        train(engine, stack, 2)
        process.kill()
        with pytest.raises(MemoryxError, match=r"MemoryX at \S+ has gone .* from its last checkpoint"):
            train(engine, stack)


def test_a_wafer_of_a_run_that_has_ended_logs_why_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    assert member.serve(address, "token", 0) == 1
    assert f"the CS system at 127.0.0.1:{address[1]} does not wait for this wafer" in caplog.text
