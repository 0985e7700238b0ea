"""Refused connections: workers of another run, and foreign peers."""

import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from cs_stream import receiver as receiver_module
from cs_stream.batches import BatchLayout
from cs_stream.errors import ConnectError, ListenError, ProtocolError, RefusedError, StreamingError
from cs_stream.frames import FrameType
from cs_stream.messages import ErrorCode, Failure
from cs_stream.receiver import Receiver, RunSpec
from cs_stream.sender import Sender
from tests.loopback import SMALL, Loopback, RawWorker, numbered_input, take_numbered
from tests.processes import wait_until

OTHER = BatchLayout.of([("image", "float32", (4, 3)), ("label", "int64", (4,))])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_workers": 3}, "num_workers: got 3, expected 2"),
        ({"worker": 2}, "worker: got index 2, expected 0 to 1"),
        ({"input_digest": "other"}, "input_digest: got 'other', expected 'digest'"),
        ({"layout": OTHER.to_json()}, "layout: field 1: got 'label: int64[4]', expected 'label: int32[4]'"),
        ({"protocol_min": 1, "protocol_max": 1}, "protocol: got 1 to 1, expected 2"),
    ],
)
def test_a_worker_that_disagrees_is_refused_before_any_data(changes: dict[str, Any], text: str) -> None:
    with Loopback(num_workers=2) as run, run.raw_worker(1, **changes) as worker:
        answer = worker.send_hello()
        assert answer.header.type is FrameType.ERR
        assert Failure.decode(answer.payload) == Failure(ErrorCode.REFUSED, text)
        with pytest.raises(EOFError):
            worker.read_frame()
        assert [entry.connects for entry in run.ring.stats().workers] == [0, 0]


def test_without_the_token_nobody_joins_or_disturbs_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    with Loopback() as run:
        future = run.start_sender(0, count=4)
        assert take_numbered(run.ring, count=2) == [0, 1]
        with RawWorker(run.receiver.address, run.identity(0, token="a guess"), SMALL) as peer:
            answer = peer.send_hello()
            assert answer.header.type is FrameType.ERR
            assert Failure.decode(answer.payload).text == "PROOF: its tag is not that of its content"
        assert take_numbered(run.ring) == [2, 3]
        run.ring.close()
        assert future.result(timeout=60).reconnects == 0


def test_a_worker_leaves_a_system_that_does_not_know_its_token() -> None:
    with Loopback() as run:
        sender = Sender(run.receiver.address, run.identity(0, token="a guess"), SMALL)
        with pytest.raises(
            RefusedError, match="refuses worker 0 of job 'job': token: the peer has not proved"
        ):
            sender.run(numbered_input(SMALL, 0, 1, 1))
        assert run.ring.stats().workers[0].connects == 0


def test_the_sender_raises_a_refusal_with_the_text() -> None:
    with Loopback(num_workers=2) as run:
        sender = Sender(run.receiver.address, run.identity(0, num_workers=3), OTHER)
        with pytest.raises(RefusedError) as caught:
            sender.run(numbered_input(OTHER, 0, 3, 1))
    assert str(caught.value) == (
        "the CS system refuses worker 0 of job 'job': num_workers: got 3, expected 2; layout: field 1: got "
        "'label: int64[4]', expected 'label: int32[4]'"
    )


def test_without_an_open_run_of_the_job_the_worker_waits_and_then_reports_it() -> None:
    with Receiver() as receiver, Loopback() as other:
        sender = Sender(receiver.address, other.identity(0), SMALL, connect_timeout_s=0.6)
        with pytest.raises(ConnectError) as caught:
            sender.run(numbered_input(SMALL, 0, 1, 1))
    assert "no run took worker 0 of job 'job' within 0.6 s" in str(caught.value)
    assert "no run of job 'job' is open" in str(caught.value)


def test_a_worker_that_is_early_is_taken_when_the_run_opens() -> None:
    with Loopback() as run:
        identity = run.identity(0, job_id="later")
        early = RawWorker(run.receiver.address, identity, SMALL)
        with early:
            early.send_hello()
        sender = Sender(run.receiver.address, identity, SMALL)
        future = run.start(sender, numbered_input(SMALL, 0, 1, 3))
        ring = run.receiver.open_run(RunSpec("later", "a secret", 1, SMALL, "digest"))
        assert take_numbered(ring) == [0, 1, 2]
        ring.close()
        assert future.result(timeout=60).batches == 3


def test_only_one_run_of_a_job_is_open() -> None:
    with Loopback() as run:
        with pytest.raises(StreamingError, match="a run of job 'job' is already open; close it first"):
            run.receiver.open_run(run.spec)
        run.ring.close()
        again = run.receiver.open_run(run.spec)
        again.close()


def http(sock: socket.socket) -> None:
    sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: cs\r\n\r\n")


def tls(sock: socket.socket) -> None:
    sock.sendall(b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + bytes(100))


def noise(sock: socket.socket) -> None:
    sock.sendall(bytes(range(255, 0, -1)) * 50)


def huge_hello(sock: socket.socket) -> None:
    sock.sendall(b"CSBS\x02\x01" + bytes(18) + (1 << 30).to_bytes(8, "little") + bytes(32))


@pytest.mark.parametrize("speak", [http, tls, noise, huge_hello])
def test_a_stranger_loses_its_connection_and_disturbs_nothing(
    speak: Callable[[socket.socket], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="cs_stream")
    with Loopback() as run:
        sender = run.start_sender(0, count=6)
        assert take_numbered(run.ring, count=3) == [0, 1, 2]
        with socket.create_connection(run.receiver.address, timeout=10) as stranger:
            speak(stranger)
            # The end of the stream, after at most an ERR frame; a reset is as good.
            try:
                while stranger.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            name = f"127.0.0.1:{stranger.getsockname()[1]}"
        assert take_numbered(run.ring) == [3, 4, 5]
        run.ring.close()
        assert sender.result(timeout=60).reconnects == 0
    assert [record for record in caplog.records if name in record.getMessage()]


def test_a_silent_peer_is_dropped_after_a_timeout() -> None:
    with Receiver(handshake_timeout_s=0.2) as receiver:
        with socket.create_connection(receiver.address, timeout=10) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(receiver.address, timeout=10) as slow:
            slow.sendall(b"CSBS")
            assert slow.recv(1) == b""


def test_a_port_that_speaks_something_else_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Loopback() as run:
        port = server.getsockname()[1]
        sender = Sender(("127.0.0.1", port), run.identity(0), SMALL)
        future = run.start(sender, numbered_input(SMALL, 0, 1, 1))
        for _ in range(2):  # it asks twice, since a changed bit could look like this
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1 << 16)
        with pytest.raises(ProtocolError) as caught:
            future.result(timeout=60)
    assert f"127.0.0.1:{port} is not the data port of a CS system" in str(caught.value)
    assert "check the address" in str(caught.value)


def test_a_port_without_listener_is_named_in_time() -> None:
    with Loopback() as run:
        address = run.receiver.address
        run.receiver.close()
        sender = Sender(address, run.identity(0), SMALL, connect_timeout_s=0.2)
        with pytest.raises(ConnectError, match=rf"data port 127.0.0.1:{address[1]}: .*Connection refused"):
            sender.run(numbered_input(SMALL, 0, 1, 1))


def test_a_port_that_is_taken_is_named() -> None:
    with (
        Receiver() as receiver,
        pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{receiver.address[1]}"),
    ):
        Receiver(port=receiver.address[1])
    with pytest.raises(ListenError, match="data port: got 70000, expected 0 to 65535"):
        Receiver(port=70_000)


def test_secrets_are_in_no_log_and_no_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Loopback() as run:
        for token in ("a secret", "another secret"):
            with RawWorker(run.receiver.address, run.identity(0, token=token), SMALL) as worker:
                worker.send_hello()
        assert "secret" not in repr(run.spec) + repr(run.identity(0))
    assert caplog.records
    assert "secret" not in caplog.text


def test_a_process_without_descriptors_logs_this_a_few_times(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "_ACCEPT_PAUSE_S", 0.001)
    attempts: list[socket.socket] = []

    def fail(listener: socket.socket) -> None:
        attempts.append(listener)
        raise OSError(errno.EMFILE, "Too many open files")

    with Receiver() as receiver:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", fail)
            with socket.create_connection(receiver.address):
                wait_until(lambda: len(attempts) > 50)
        assert 1 <= len(caplog.records) <= 10
