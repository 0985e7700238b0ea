"""Attackers that replay recorded connections, and networks that flip single bits."""

import socket
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from cs_stream.errors import ConnectError, ProtocolError
from cs_stream.frames import HEADER_BYTES, FrameType, decode_header
from tests.faults.cs_stream.test_connections import BATCH_BYTES, hello_size
from tests.loopback import Loopback, RawWorker, numbered_input, take_numbered

COUNT = 12


def answers(address: tuple[str, int], sent: bytes) -> list[FrameType]:
    """Send bytes to a data port; return the types of the frames that it answers until it closes."""
    types = []
    with socket.create_connection(address, timeout=30) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        stream = sock.makefile("rb")
        try:
            while header := stream.read(HEADER_BYTES):
                decoded = decode_header(header)
                stream.read(decoded.nbytes)
                types.append(decoded.type)
        except ConnectionResetError:
            pass
    return types


def test_a_recorded_connection_is_refused_and_disturbs_no_worker(bad_network: Callable[..., Any]) -> None:
    with Loopback() as run:
        network = bad_network(run.receiver.address)
        future = run.start(run.sender(0, network.address), numbered_input(run.spec.layout, 0, 1, COUNT))
        assert take_numbered(run.ring, count=2) == [0, 1]
        recorded = bytes(network.recorded[0])
        hello_bytes = HEADER_BYTES + decode_header(recorded[:HEADER_BYTES]).nbytes
        assert len(recorded) >= hello_bytes + HEADER_BYTES + 2 * BATCH_BYTES
        # HELLO by itself, and everything: proof, batches.
        assert answers(run.receiver.address, recorded[:hello_bytes]) == [FrameType.CHALLENGE]
        assert answers(run.receiver.address, recorded) == [FrameType.CHALLENGE, FrameType.ERR]
        assert take_numbered(run.ring) == list(range(2, COUNT))
        assert run.ring.stats().workers[0].connects == 1
        run.ring.close()
        assert future.result(timeout=60).reconnects == 0


def test_the_recorded_answers_of_a_system_deceive_no_worker(bad_network: Callable[..., Any]) -> None:
    with Loopback() as run, socket.create_server(("127.0.0.1", 0)) as listener:
        network = bad_network(run.receiver.address)
        inputs = numbered_input(run.spec.layout, 0, 1, COUNT)
        first = run.start(run.sender(0, network.address), inputs)
        assert take_numbered(run.ring) == list(range(COUNT))
        run.ring.close()
        assert first.result(timeout=60).end == "bye"
        # An attacker that has recorded all answers of the system takes its place.
        future = run.start(run.sender(0, listener.getsockname(), connect_timeout_s=1.0), inputs)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(network.answered[0])
            # HELLO, and then neither PROOF nor batches.
            stream = sock.makefile("rb")
            header = decode_header(stream.read(HEADER_BYTES))
            assert header.type is FrameType.HELLO
            assert len(stream.read()) == header.nbytes
        listener.close()
        with pytest.raises(ConnectError, match="within 1 s"):
            future.result(timeout=60)


def flips(count: int, size: int) -> list[tuple[int, int]]:
    """Some bytes of a stream, each with a bit of it."""
    random = Random(35)
    return [(random.randrange(size), 1 << random.randrange(8)) for _ in range(count)]


@pytest.mark.parametrize("part", ["hello", "batches"])
def test_a_bit_changed_on_the_way_to_the_system_changes_no_batch(
    part: str, bad_network: Callable[..., Any]
) -> None:
    with Loopback() as run:
        hello_bytes = hello_size(run)
    start, size = (0, hello_bytes) if part == "hello" else (hello_bytes, 8 * BATCH_BYTES)
    for offset, bit in flips(40, size):
        with Loopback() as run:
            network = bad_network(run.receiver.address, flip_at=(start + offset,), flip=bit)
            sender = run.sender(0, network.address, handshake_timeout_s=0.5)
            future = run.start(sender, numbered_input(run.spec.layout, 0, 1, COUNT))
            assert take_numbered(run.ring) == list(range(COUNT)), (offset, bit)
            run.ring.close()
            assert future.result(timeout=60).end == "bye", (offset, bit)


def test_a_bit_changed_on_the_way_to_a_worker_changes_no_batch(bad_network: Callable[..., Any]) -> None:
    """In CHALLENGE, WELCOME or CREDIT."""
    for offset, bit in flips(40, 6 * HEADER_BYTES):
        with Loopback() as run:
            network = bad_network(run.receiver.address, flip_back_at=(offset,), flip=bit)
            sender = run.sender(0, network.address, handshake_timeout_s=0.5)
            future = run.start(sender, numbered_input(run.spec.layout, 0, 1, COUNT))
            assert take_numbered(run.ring) == list(range(COUNT)), (offset, bit)
            run.ring.close()
            assert future.result(timeout=60).end == "bye", (offset, bit)


@pytest.mark.parametrize("offset", [0, 4])
def test_a_first_answer_with_a_changed_magic_or_version_does_not_end_the_worker(
    offset: int, bad_network: Callable[..., Any]
) -> None:
    with Loopback() as run:
        network = bad_network(run.receiver.address, flip_back_at=(offset,), flip=4)
        future = run.start(run.sender(0, network.address), numbered_input(run.spec.layout, 0, 1, COUNT))
        assert take_numbered(run.ring) == list(range(COUNT))
        run.ring.close()
        assert future.result(timeout=60).end == "bye"
        assert network.connections == 2


def test_an_answer_damaged_after_a_damaged_hello_does_not_end_the_worker(
    bad_network: Callable[..., Any],
) -> None:
    with Loopback() as run:
        # A byte of the JSON of HELLO, and the magic of the first answer to the next connection.
        never = 1 << 30
        network = bad_network(run.receiver.address, flip_at=(HEADER_BYTES,), flip_back_at=(never, 0), flip=4)
        future = run.start(run.sender(0, network.address), numbered_input(run.spec.layout, 0, 1, COUNT))
        assert take_numbered(run.ring) == list(range(COUNT))
        run.ring.close()
        assert future.result(timeout=60).end == "bye"
        assert network.connections == 3


def test_damage_that_does_not_end_ends_the_worker(bad_network: Callable[..., Any]) -> None:
    with Loopback() as run:
        network = bad_network(run.receiver.address, flip_at=(5,) * 20)
        future = run.start(run.sender(0, network.address), numbered_input(run.spec.layout, 0, 1, COUNT))
        with pytest.raises(ProtocolError, match="refuses worker 0 of job 'job': frame type: got 17"):
            future.result(timeout=60)
        assert network.connections == 6


def test_damage_in_between_is_forgiven_as_often_as_batches_arrive(bad_network: Callable[..., Any]) -> None:
    with Loopback() as run:
        hello_bytes = hello_size(run) + 32  # with the name of the run
        # The first batch of each connection arrives, the header of the second one does not.
        offsets = (hello_bytes - 32 + BATCH_BYTES + 5, *(hello_bytes + BATCH_BYTES + 5 for _ in range(9)))
        network = bad_network(run.receiver.address, flip_at=offsets)
        future = run.start(run.sender(0, network.address), numbered_input(run.spec.layout, 0, 1, COUNT))
        assert take_numbered(run.ring) == list(range(COUNT))
        run.ring.close()
        assert future.result(timeout=60).reconnects == 10
        assert network.connections == 11


def test_a_peer_without_the_token_cannot_fence_a_worker() -> None:
    with Loopback() as run:
        future = run.start_sender(0, count=COUNT)
        assert take_numbered(run.ring, count=1) == [0]
        for _ in range(10):
            peer = RawWorker(run.receiver.address, run.identity(0, token=""), run.spec.layout)
            with peer:
                assert peer.send_hello().header.type is FrameType.ERR
        assert take_numbered(run.ring) == list(range(1, COUNT))
        run.ring.close()
        assert (future.result(timeout=60).end, future.result().reconnects) == ("bye", 0)


def test_idle_connections_keep_no_worker_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cs_stream.receiver._MAX_HANDSHAKES", 8)
    with Loopback() as run:
        idle = [socket.create_connection(run.receiver.address, timeout=10) for _ in range(40)]
        for sock in idle[:32]:
            assert sock.recv(1) == b""  # dropped for later ones, long before its time is over
        future = run.start_sender(0, count=COUNT)
        assert take_numbered(run.ring) == list(range(COUNT))
        run.ring.close()
        assert future.result(timeout=60).reconnects == 0
        for sock in idle:
            sock.close()
    assert "more than 8 have not identified their job yet" in caplog.text
