"""Who is admitted to MemoryX, and frames that are changed or repeated in transit."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from cs_system.errors import MemoryxError
from cs_system.memoryx import admission
from cs_system.memoryx.admission import Admission
from cs_system.memoryx.client import StateReader
from cs_system.memoryx.config import MemoryxAddress, MemoryxConfig
from cs_system.memoryx.protocol import FrameChannel, FrameType, Header, admit, greet, refuse
from cs_system.memoryx.server import ModelRegistry, WaferConnection
from cs_toolkit.network.connection import Connection, PeerGoneError, connect
from cs_toolkit.network.frames import ForeignBytesError
from cs_toolkit.security.tls_connection import connect as connect_with_tls
from cs_toolkit.step import TensorSpec
from tests.certificates import SiteCertificates
from tests.processes import wait_until

from .streamed_steps import Streamed, running_memoryx

SECRET = "the secret"
Channels = tuple[FrameChannel, FrameChannel]


@contextmanager
def pair() -> Iterator[tuple[Connection, Connection]]:
    ends = socket.socketpair()
    with Connection(ends[0]) as near, Connection(ends[1]) as far:
        yield near, far


@contextmanager
def channels(theirs: str = SECRET) -> Iterator[Channels]:
    """The channels of both sides: wafer and MemoryX."""
    with pair() as (near, far), ThreadPoolExecutor(1) as pool:
        wafer = pool.submit(greet, near, SECRET, 5.0)
        yield admit(far, theirs, 5.0), wafer.result()


@contextmanager
def admitting(serve: Callable[[FrameChannel], None], **options: Any) -> Iterator[tuple[str, int]]:
    """A listener with admission; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=Admission(listener, SECRET, serve, **options).run, daemon=True).start()
    yield listener.getsockname()[:2]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_both_sides_need_the_same_secret() -> None:
    def try_greeting(connection: Connection) -> None:
        with connection:
            greet(connection, "a guess", 5.0)

    with pair() as (near, far), ThreadPoolExecutor(1) as pool:
        wafer = pool.submit(try_greeting, near)
        with pytest.raises(PeerGoneError):
            admit(far, SECRET, 5.0)
        with pytest.raises(MemoryxError, match="the same --memoryx-secret-file"):
            wafer.result()


def test_a_recorded_handshake_is_refused() -> None:
    """A listener repeats what a wafer has sent: HELLO, PROOF and a frame."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        recorded = bytearray()
        near = socket.create_connection(listener.getsockname())
        far = socket.create_connection(listener.getsockname())
        for sock in (near, far):
            sock.settimeout(5)
        ends = [Connection(listener.accept()[0]) for _ in range(2)]
        waiting = pool.submit(admit, ends[1], SECRET, 5.0)
        wafer: Future[FrameChannel] = Future()
        threading.Thread(target=lambda: wafer.set_result(greet(ends[0], SECRET, 5.0)), daemon=True).start()
        for size in (56 + 32, 56):  # HELLO with its nonce, PROOF
            recorded += (sent := near.recv(size, socket.MSG_WAITALL))
            far.sendall(sent)
            if size > 56:
                near.sendall(far.recv(56 + 32, socket.MSG_WAITALL))
        assert waiting.result().connection is ends[1]
        wafer.result().send(FrameType.READ, 0, b"model")
        recorded += near.recv(56 + 5, socket.MSG_WAITALL)
        with pair() as (attacker, memoryx):
            attacker.send([bytes(recorded)])
            with pytest.raises(MemoryxError, match="it does not know the secret"):
                admit(memoryx, SECRET, 5.0)
        for end in ends:
            end.close()
        near.close()
        far.close()


def test_no_changed_bit_of_a_frame_is_taken() -> None:
    arrays = [np.arange(5, dtype=np.float32), np.arange(3, dtype=np.int32)]
    for bit in range(0, 8 * (56 + 20), 5):
        with channels() as (memoryx, wafer):
            sent: list[bytes] = []
            send = wafer.connection.send
            wafer.connection.send = lambda buffers, sent=sent: sent.extend(map(bytes, buffers))  # type: ignore[method-assign,misc]
            wafer.send_arrays(FrameType.PUT, 7, arrays)
            data = bytearray(b"".join(sent))
            data[bit // 8] ^= 1 << bit % 8
            send([data])
            with pytest.raises(MemoryxError, match=r"was changed in transit between .*last checkpoint"):
                memoryx.receive_tensors(memoryx.receive_header(), [np.empty_like(each) for each in arrays])


def test_repeated_and_left_out_frames_are_refused() -> None:
    for order in ((0, 0), (1,), (0, 2)):
        with channels() as (memoryx, wafer):
            frames: list[bytes] = []
            send = wafer.connection.send
            wafer.connection.send = lambda buffers, frames=frames: frames.append(b"".join(buffers))  # type: ignore[method-assign,misc]
            for number in range(3):
                wafer.send(FrameType.GET, number)
            send([frames[index] for index in order])
            for _ in order[:-1]:
                memoryx.receive_header()
            with pytest.raises(MemoryxError, match="the header of GET was changed in transit"):
                memoryx.receive_header()


def test_a_peer_of_another_protocol_or_version_gets_the_reason() -> None:
    with admitting(lambda channel: None) as address:
        with socket.create_connection(address, timeout=10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n")
            assert b"not a CSMX stream" in stranger.recv(4096)
        with socket.create_connection(address, timeout=10) as old:
            old.sendall(b"CSMX\x01" + bytes(51))
            assert b"protocol version: got 1, expected 2" in old.recv(4096)
    with pair() as (near, far):
        far.send([b"CSMX\x01" + bytes(55)])
        with pytest.raises(
            MemoryxError, match=r"got 1, expected 2: .* or one of another version of the toolk"
        ):
            greet(near, SECRET, 5.0)
    with pair() as (near, far):
        near.send([b"HTTP/1.1 400"])
        with pytest.raises(ForeignBytesError):
            admit(far, SECRET, 5.0)


def test_a_refused_peer_shows_the_reason_of_the_other_side() -> None:
    with pair() as (near, far):
        refuse(far, MemoryxError("its certificate is that of\x1b[2Juser alice"))
        with pytest.raises(MemoryxError, match=r"^MemoryX at m:1 refuses .*: its .* of\\x1b\[2Juser alice$"):
            greet(near, SECRET, 5.0, "MemoryX at m:1")
    with pair() as (near, far):
        # Without waiting for HELLO, as after a certificate that is not accepted.
        refuse(far, MemoryxError("no"))
        far.close()
        with pytest.raises(MemoryxError, match=r"^the peer refuses the connection: no$"):
            greet(near, SECRET, 5.0)


def test_a_user_who_is_no_part_of_a_system_gets_the_reason(tmp_path: Path) -> None:
    site = SiteCertificates(tmp_path)
    served: list[FrameChannel] = []
    with (
        admitting(served.append, credentials=site.system) as address,
        connect_with_tls(address, 10.0, site.user) as connection,
        pytest.raises(MemoryxError, match=r"^MemoryX refuses the connection: its .*alice.*, expected"),
    ):
        greet(connection, SECRET, 5.0, "MemoryX")
    assert not served


def test_idle_connections_are_limited_and_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_UNPROVED", 8)
    admitted: list[FrameChannel] = []
    with admitting(admitted.append, handshake_s=0.5) as address:
        idle = [socket.create_connection(address, timeout=10) for _ in range(40)]
        for sock in idle[:32]:
            assert sock.recv(1) == b""  # dropped for the later ones, without waiting for their time
        with connect(address) as wafer:
            greet(wafer, SECRET, 5.0)
            wait_until(lambda: len(admitted) == 1)
        assert idle[32].recv(1) == b""
        for sock in idle[33:]:
            assert b"was not heard within the time limit" in sock.recv(4096)
            sock.close()
        for sock in idle[:33]:
            sock.close()
    dropped = [text for text in caplog.messages if text.startswith("dropping")]
    assert len(dropped) == 10  # in a minute
    assert "more than 8 connections prove nothing" in dropped[0]


def test_more_connections_than_the_limit_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_CONNECTIONS", 2)
    leave, served = threading.Event(), threading.Semaphore(0)

    def serve(channel: FrameChannel) -> None:
        served.release()
        leave.wait(60)

    with admitting(serve) as address, connect(address) as first, connect(address) as second:
        for connection in (first, second):
            greet(connection, SECRET, 5.0)
            assert served.acquire(timeout=60)
        with connect(address) as third:
            channel = greet(third, SECRET, 5.0)
            header = channel.receive_header()
            assert header.type is FrameType.FAILED
            assert "MemoryX has 2 connections, and takes no more" in str(channel.receive_failure(header))
        leave.set()


def test_a_training_run_is_not_disturbed_by_idle_connections(
    stack: Streamed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_memoryx(tmp_path) as (process, address):
        # Fewer descriptors than connections.
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (160, 160))
        place = address[:2]
        strangers = [socket.create_connection(place) for _ in range(60)]
        states = []
        for maps_files in (True, False):
            engine = stack.engine(MemoryxConfig((address,), tmp_path, maps_files=maps_files))
            try:
                engine.put_state(stack.state)
                strangers += [socket.create_connection(place) for _ in range(100)]
                for batch in stack.batches[:3]:
                    engine.dispatch([array[None] for array in batch], 0, 1).wait()
                states.append({name: array.tobytes() for name, array in engine.fetch_state().items()})
            finally:
                engine.free()
        assert states[0] == states[1]
        for sock in strangers:
            sock.close()


class FlippingProxy:
    """Forwards connections, and changes a bit of the first one."""

    def __init__(self, target: tuple[str, int], to_memoryx: bool, offset: int, bit: int) -> None:
        self._target, self._to_memoryx, self._offset, self._bit = target, to_memoryx, offset, bit
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.passed = [0, 0]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        is_first = True
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target[:2])
            self._sockets += [near, far]
            for way, ends in enumerate(((near, far), (far, near))):
                flips = is_first and way == int(not self._to_memoryx)
                threading.Thread(target=self._forward, args=(*ends, way, flips), daemon=True).start()
            is_first = False

    def _forward(self, source: socket.socket, sink: socket.socket, way: int, flips: bool) -> None:
        done = 0
        try:
            while data := bytearray(source.recv(1 << 16)):
                if flips and done <= self._offset < done + len(data):
                    data[self._offset - done] ^= self._bit
                done += len(data)
                self.passed[way] = max(self.passed[way], done)
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            sock.close()


def test_a_changed_bit_is_an_error_and_never_another_weight(
    stack: Streamed, memoryx: tuple[str, int], tmp_path: Path
) -> None:
    def train(offset: int, bit: int, to_memoryx: bool) -> tuple[dict[str, bytes] | None, list[int]]:
        """The state after two steps, None if it was refused; and the number of bytes both ways."""
        proxy = FlippingProxy(memoryx, to_memoryx, offset, bit)
        engine = stack.engine(MemoryxConfig((MemoryxAddress(*proxy.address),), tmp_path, maps_files=False))
        try:
            engine.put_state(stack.state)
            for batch in stack.batches[:2]:
                engine.dispatch([array[None] for array in batch], 0, 1).wait()
            return {name: array.tobytes() for name, array in engine.fetch_state().items()}, proxy.passed
        except MemoryxError:
            return None, proxy.passed
        finally:
            engine.free()
            proxy.close()

    expected, sizes = train(-1, 0, True)
    assert expected is not None
    random, outcomes = Random(35), []
    for way in (0, 1):
        for _ in range(6):
            found, _ = train(random.randrange(sizes[way]), 1 << random.randrange(8), way == 0)
            outcomes.append(found)
    # Padding is not checked, as it is not used.
    assert all(found is None or found == expected for found in outcomes)
    assert outcomes.count(None) >= 9


class SilentProxy:
    """Forwards connections; from the second one, a reader, MemoryX hears nothing after the first bytes."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target, self._sockets = target, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        for limit in (1 << 40, 56 + 32 + 56 + 56 + 32):  # of a reader: HELLO, PROOF and READ
            near, far = self._listener.accept()[0], socket.create_connection(self._target[:2])
            self._sockets += [near, far]
            for source, sink, count in ((near, far, limit), (far, near, 1 << 40)):
                threading.Thread(target=self._forward, args=(source, sink, count), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, sink: socket.socket, count: int) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data[:count])
                count -= len(data[:count])

    def close(self) -> None:
        self._listener.close()
        for sock in self._sockets:
            sock.close()


def test_a_reader_does_not_wait_for_ever(stack: Streamed, memoryx: tuple[str, int], tmp_path: Path) -> None:
    proxy = SilentProxy(memoryx)
    place = MemoryxConfig((MemoryxAddress(*proxy.address),), tmp_path, maps_files=False, peer_timeout_s=2.0)
    engine = stack.engine(place)
    try:
        engine.put_state(stack.state)
        with pytest.raises(MemoryxError, match=r"has gone \(the peer was not heard within the time limit\)"):
            engine.fetch_state()
    finally:
        engine.free()
        proxy.close()


def test_a_reader_may_wait_for_a_long_update() -> None:
    class SlowModel:
        def read_snapshot(self, number: int) -> np.ndarray:
            time.sleep(2.5)
            return np.full(3, number, np.int32)

        def end_snapshot(self) -> None:
            return

    registry = ModelRegistry()
    registry.add(b"model", SlowModel())  # type: ignore[arg-type]

    def serve(channel: FrameChannel) -> None:
        WaferConnection(channel, lambda *_: None, registry).serve()  # type: ignore[arg-type,return-value]

    with admitting(serve) as address:
        reader = StateReader(MemoryxAddress(*address), SECRET, "model", peer_timeout_s=1.5)
        assert reader.get(7, TensorSpec("w", "int32", (3,))).tolist() == [7, 7, 7]
        reader.close()


def test_without_descriptors_a_line_comes_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cs_toolkit.network.connection._ACCEPT_PAUSE_S", 0.01)
    failures = iter([OSError(errno.EMFILE, os.strerror(errno.EMFILE))] * 5)

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            for failure in failures:
                raise failure
            return super().accept()

    listener = Listener(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    admitted: list[FrameChannel] = []
    threading.Thread(target=Admission(listener, SECRET, admitted.append).run, daemon=True).start()
    with connect(listener.getsockname()) as connection:
        greet(connection, SECRET, 10.0)
        wait_until(lambda: admitted)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    (line,) = caplog.messages
    assert line.startswith("cannot accept a connection: [Errno 24] Too many open files")


def test_accepting_ends_when_the_listener_is_shut_down(caplog: pytest.LogCaptureFixture) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    accepting = threading.Thread(target=Admission(listener, SECRET, lambda channel: None).run, daemon=True)
    accepting.start()
    listener.shutdown(socket.SHUT_RDWR)  # its owner closes it later
    accepting.join(10.0)
    listener.close()
    assert not accepting.is_alive()
    assert not caplog.records


def test_a_header_has_the_size_that_the_protocol_documents() -> None:
    assert len(Header(FrameType.GET, 1, 0).encode()) == 56
