"""Broken, damaged, repeated and misplaced frames, and the recovery from them."""

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cs_stream.batches import BatchLayout
from cs_stream.errors import ChecksumError, WorkerLostError
from cs_stream.frames import HEADER_BYTES, FrameType
from cs_stream.messages import ErrorCode, Welcome
from cs_stream.protocol import HelloReceived, ProofReceived, ReadControl, ServerConnection, ServerState
from cs_toolkit.network.connection import Connection
from tests.loopback import SMALL, Loopback, numbered_batch, numbered_input, take_numbered

LARGE = BatchLayout.of([("image", "float32", (512, 512)), ("label", "int32", (4,))])


@pytest.mark.parametrize("sent_bytes", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 1 << 19])
def test_half_a_frame_is_received_again(sent_bytes: int) -> None:
    with Loopback(layout=LARGE) as run:
        with run.raw_worker(0) as broken:
            assert broken.join().next_seq == 0
            broken.send(broken.batch_frame(0))
            broken.send(broken.batch_frame(1)[:sent_bytes])
            assert take_numbered(run.ring, count=1) == [0]
        sender = run.start_sender(0, count=4)
        assert take_numbered(run.ring) == [1, 2, 3]
        run.ring.close()
        assert sender.result(timeout=60).batches == 3


def test_a_successor_overwrites_the_data_that_its_predecessor_is_still_sending() -> None:
    """The old connection is alive, in the middle of a frame, when the new one takes its slot."""
    with Loopback(layout=LARGE) as run, run.raw_worker(0) as old:
        old.join()
        frame = old.batch_frame(0)
        junk = bytes(len(frame) - HEADER_BYTES)
        old.send(frame[:HEADER_BYTES] + junk[: 1 << 19])
        with run.raw_worker(0) as new:
            assert new.join().next_seq == 0
            assert old.read_failure().code == ErrorCode.REPLACED
            new.send(new.batch_frame(0) + new.batch_frame(1))
            assert take_numbered(run.ring, count=2) == [0, 1]
            with pytest.raises((EOFError, ConnectionError)):
                old.read_frame()


def test_a_system_that_is_silent_for_the_liveness_time_is_reconnected() -> None:
    with Loopback() as run, socket.create_server(("127.0.0.1", 0)) as listener:
        sender = run.sender(0, listener.getsockname())
        run.start(sender, numbered_input(SMALL, 0, 1, 5))
        for _ in range(2):
            sock, _ = listener.accept()
            with sock:
                core = ServerConnection()
                while core.state is not ServerState.DECIDING:
                    if core.state is ServerState.IDENTIFYING:
                        core.challenge(run.spec.token)
                        sock.sendall(core.data_to_send())
                    want = core.wants()
                    assert isinstance(want, ReadControl)
                    core.receive_data(sock.recv(want.size_bytes))
                core.accept(Welcome(0, 0, False, True, 0.2, "run"), 0, 1, SMALL.nbytes)
                sock.sendall(core.data_to_send())
                # Signs of life, left without an answer, and then the end.
                while sock.recv(4096):
                    pass
        sender.stop()


def test_a_successor_is_welcomed_when_its_predecessor_has_left_the_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    reading, leave = threading.Event(), threading.Event()

    receive = Connection.receive_ahead

    def receive_slowly(connection: Connection, buffers: list[memoryview], ahead: memoryview) -> int:
        reading.set()
        try:
            return receive(connection, buffers, ahead)
        finally:
            leave.wait(timeout=60)
            order.append("left")

    monkeypatch.setattr(Connection, "receive_ahead", receive_slowly)
    with Loopback() as run, run.raw_worker(0) as old, run.raw_worker(0) as new:
        old.join()
        old.send(old.batch_frame(0)[: HEADER_BYTES + 10])
        assert reading.wait(timeout=60)
        timer = threading.Timer(0.2, leave.set)
        timer.start()
        new.join()
        order.append("welcomed")
        timer.join()
    assert order == ["left", "welcomed"]


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([(0, {}), (0, {})], "seq of BATCH: got 0, expected 1"),
        ([(1, {})], "seq of BATCH: got 1, expected 0"),
        ([(0, {"nbytes": SMALL.nbytes + 64})], "nbytes of batch 0: got 192, expected 128"),
        ([(0, {"generation": 7})], "BATCH origin: got worker 0 generation 7, expected worker 0 generation 1"),
        ([(0, {"worker": 1})], "BATCH origin: got worker 1 generation 1, expected worker 0 generation 1"),
        ([(seq, {}) for seq in range(9)], "credit: got batch 8, expected none from 8 on yet"),
        ([(0, {"flags": 0})], "checksum flag of batch 0: got 0"),
    ],
    ids=["repeated", "skipped", "size", "generation", "worker", "credit", "no-checksum"],
)
def test_a_frame_that_breaks_the_rules_ends_its_connection_only(
    frames: list[tuple[int, dict[str, Any]]], text: str
) -> None:
    with Loopback() as run:
        with run.raw_worker(0) as worker:
            worker.join()
            worker.send(b"".join(worker.batch_frame(seq, **changes) for seq, changes in frames))
            failure = worker.read_failure()
            assert failure.code == ErrorCode.PROTOCOL
            assert failure.text.startswith(text)
        run.start_sender(0, count=10)
        assert take_numbered(run.ring) == list(range(10))


@pytest.mark.parametrize("total", [0, 2])
def test_a_wrong_total_is_no_end_of_input(total: int) -> None:
    with Loopback() as run:
        with run.raw_worker(0) as worker:
            worker.join()
            worker.send(worker.batch_frame(0) + worker.control_frame(FrameType.EOS, total))
            assert worker.read_failure().text == f"total of EOS: got {total}, expected 1"
        run.start_sender(0, count=3)
        assert take_numbered(run.ring) == [0, 1, 2]


def test_a_damaged_batch_is_sent_once_more_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="cs_stream")
    with Loopback() as run:
        with run.raw_worker(0) as worker:
            worker.join()
            worker.send(worker.batch_frame(0) + worker.batch_frame(1, tag=bytes(16)))
            assert worker.read_failure().code == ErrorCode.CHECKSUM
        run.start_sender(0, count=3)
        assert take_numbered(run.ring) == [0, 1, 2]
    assert [record.getMessage() for record in caplog.records if "it is sent once more" in record.getMessage()]


def test_a_second_damaged_batch_fails_the_run() -> None:
    with Loopback() as run:
        for _ in range(2):
            with run.raw_worker(0) as worker:
                next_seq = worker.join().next_seq
                frame = bytearray(worker.batch_frame(next_seq))
                frame[HEADER_BYTES + 17] ^= 1
                worker.send(bytes(frame))
                assert worker.read_failure().code == ErrorCode.CHECKSUM
        with pytest.raises(
            ChecksumError, match="it arrived corrupted 2 times: check the network between raw"
        ):
            run.ring.take(timeout_s=10)
        summary = run.start_sender(0, count=3).result(timeout=60)
        assert summary.end == "stopped"
        assert "arrived corrupted" in str(summary.stopped_reason)


def test_damage_is_not_seen_where_digests_are_switched_off() -> None:
    with Loopback(checksum=False) as run, run.raw_worker(0) as worker:
        assert not worker.join().checksum
        worker.send(worker.batch_frame(0, flags=0))
        assert take_numbered(run.ring, count=1) == [0]


def test_signs_of_life_are_answered_between_batches() -> None:
    with Loopback() as run, run.raw_worker(0) as worker:
        worker.join()
        frames = b"".join(worker.batch_frame(seq) for seq in range(4))
        pings = [worker.control_frame(FrameType.PING) for _ in range(2)]
        worker.send(pings[0] + frames + pings[1])
        assert [worker.read_frame().header.type for _ in range(2)] == [FrameType.PING] * 2
        assert take_numbered(run.ring, count=4) == [0, 1, 2, 3]
        # Half of the window is left, so what was released is granted.
        assert worker.read_frame().header.type is FrameType.CREDIT


def test_a_worker_that_is_silent_for_the_liveness_time_is_lost() -> None:
    with Loopback(liveness_s=0.2, reconnect_s=0.0) as run, run.raw_worker(0) as worker:
        worker.join()
        with pytest.raises(WorkerLostError, match="it has not answered for"):
            run.ring.take(timeout_s=10)
        assert worker.read_failure().code == ErrorCode.TIMEOUT


def test_a_slow_input_function_gives_signs_of_life() -> None:
    """A system that receives only while the input function runs."""
    leave = threading.Event()

    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        assert leave.wait(timeout=60)
        yield numbered_batch(SMALL, skip)

    with Loopback() as run, socket.create_server(("127.0.0.1", 0)) as listener:
        future = run.start(run.sender(0, listener.getsockname()), make_batches)
        sock, _ = listener.accept()
        core = ServerConnection()
        pings = 0
        with sock:
            while pings < 3:
                want = core.wants()
                assert isinstance(want, ReadControl)
                events = core.receive_data(sock.recv(want.size_bytes))
                if core.state is ServerState.IDENTIFYING:
                    core.challenge(run.spec.token)
                if core.state is ServerState.DECIDING:
                    core.accept(Welcome(0, 4, False, True, 0.2, "run"), 0, 1, SMALL.nbytes)
                answer = core.data_to_send()
                pings += answer[5:6] == bytes([FrameType.PING])
                sock.sendall(answer)
                assert not [event for event in events if not isinstance(event, HelloReceived | ProofReceived)]
            core.bye()
            sock.sendall(core.data_to_send())
            sock.shutdown(socket.SHUT_WR)
            leave.set()
            assert future.result(timeout=60).end == "bye"
