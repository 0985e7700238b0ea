"""The state machines: each rule of the protocol, by bytes in and events out."""

from dataclasses import replace
from typing import Any

import pytest

from cs_stream.errors import ChecksumError, ProtocolError, UnprovedError
from cs_stream.frames import (
    FLAG_CHECKSUM,
    HEADER_BYTES,
    FrameBuffer,
    FrameTags,
    FrameType,
    Header,
    decode_header,
)
from cs_stream.messages import ErrorCode, Failure, Hello, Welcome
from cs_stream.protocol import (
    BatchReceived,
    CreditGranted,
    ErrorReceived,
    HelloReceived,
    InputEnded,
    ProofReceived,
    ReadControl,
    ReadPayload,
    RunEnded,
    ServerConnection,
    ServerEvent,
    ServerState,
    Welcomed,
    WorkerConnection,
    WorkerState,
)
from cs_toolkit.network.frames import ForeignBytesError, FrameError, VersionError

PAYLOAD_BYTES = 192
SECRET, NONCE = "secret", "the system's nonce"
FIELDS = [bytes(range(100)), b"label"]
HELLO = Hello("job", "the worker's nonce", 1, 2, [["x", "int32", [4]]], "digest", 42, "host", "instance")
WELCOME = Welcome(next_seq=3, limit=5, ended=False, checksum=True, liveness_s=60.0, run_id="run")
BATCH = Header(FrameType.BATCH, 1, 9, 3, PAYLOAD_BYTES, FLAG_CHECKSUM)


def feed(server: ServerConnection, data: bytes) -> list[ServerEvent]:
    """Hand over control bytes in the pieces that the connection wants."""
    events: list[ServerEvent] = []
    while data:
        want = server.wants()
        assert isinstance(want, ReadControl), want
        events += server.receive_data(data[: want.size_bytes])
        data = data[want.size_bytes :]
    return events


def connected(welcome: Welcome = WELCOME, hello: Hello = HELLO) -> tuple[WorkerConnection, ServerConnection]:
    """The two ends of a connection after WELCOME."""
    worker, server = WorkerConnection(hello, SECRET), ServerConnection()
    assert feed(server, worker.data_to_send()) == [HelloReceived(hello)]
    assert server.wants() is None
    server.challenge(SECRET, NONCE)
    assert worker.receive_data(server.data_to_send()) == []
    assert feed(server, worker.data_to_send()) == [ProofReceived()]
    assert server.wants() is None
    server.accept(welcome, worker=1, generation=9, payload_bytes=PAYLOAD_BYTES)
    assert worker.receive_data(server.data_to_send()) == [Welcomed(welcome)]
    return worker, server


class Peer:
    """The tags of one end of a connection after the handshake, for frames that the end would not send."""

    def __init__(self, is_system: bool = False) -> None:
        self.tags = FrameTags(SECRET, HELLO.nonce, NONCE, HELLO.encode(), is_system)
        # CHALLENGE and WELCOME, or PROOF.
        for _ in range(1 + is_system):
            self.tags.encode(Header(FrameType.PING, 1, 9))

    def frame(self, header: Header, payload: bytes = b"") -> bytes:
        if header.type is FrameType.BATCH:
            return self.tags.encode_batch(header, FIELDS)
        return self.tags.encode(header, payload)


def deliver(server: ServerConnection) -> list[ServerEvent]:
    """Report that the payload has arrived."""
    return server.payload_received(server.is_intact(FIELDS))


def next_header(worker: WorkerConnection) -> bytes:
    """The header of the worker's next batch, which is counted."""
    header = worker.batch_header(PAYLOAD_BYTES, FIELDS)
    worker.count_batch()
    return header


def sent_failure(data: bytes) -> Failure:
    buffer = FrameBuffer()
    frame = buffer.feed(data[:HEADER_BYTES]) or buffer.feed(data[HEADER_BYTES:])
    assert frame is not None
    assert frame.header.type is FrameType.ERR
    return Failure.decode(frame.payload)


def test_hello_and_welcome_arrive_as_they_were_sent() -> None:
    worker, _ = connected()
    assert (worker.next_seq, worker.credit) == (3, 2)


def test_a_batch_is_announced_received_and_counted() -> None:
    worker, server = connected()
    assert feed(server, next_header(worker)) == []
    assert server.wants() == ReadPayload(3, PAYLOAD_BYTES)
    assert deliver(server) == [BatchReceived(3)]
    assert server.next_seq == worker.next_seq == 4


def test_the_core_never_holds_a_payload() -> None:
    _, server = connected()
    feed(server, Peer().frame(BATCH))
    with pytest.raises(ValueError, match="got control bytes in state payload"):
        server.receive_data(b"x")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"seq": 2}, "seq of BATCH: got 2, expected 3"),
        ({"seq": 4}, "seq of BATCH: got 4, expected 3"),
        ({"nbytes": 128}, "nbytes of batch 3: got 128, expected 192"),
        ({"worker": 0}, "BATCH origin: got worker 0 generation 9, expected worker 1 generation 9"),
        ({"generation": 8}, "BATCH origin: got worker 1 generation 8, expected worker 1 generation 9"),
        ({"flags": 0}, "checksum flag of batch 3: got 0, expected it as agreed in WELCOME"),
        ({"flags": 2}, "batch 3: got it in shared memory, which WELCOME has not named"),
    ],
)
def test_a_wrong_batch_header_closes_the_connection_with_a_message(
    changes: dict[str, Any], text: str
) -> None:
    _, server = connected()
    with pytest.raises(ProtocolError) as caught:
        feed(server, Peer().frame(BATCH._replace(**changes)))
    assert str(caught.value) == text
    assert server.state is ServerState.CLOSED
    assert sent_failure(server.data_to_send()) == Failure(ErrorCode.PROTOCOL, text)


def test_a_batch_beyond_credit_is_refused() -> None:
    _, server = connected(replace(WELCOME, limit=3))
    with pytest.raises(ProtocolError, match="credit: got batch 3, expected none from 3 on yet"):
        feed(server, Peer().frame(BATCH))


def test_a_damaged_payload_closes_with_the_code_that_asks_for_a_resend() -> None:
    _, server = connected()
    feed(server, Peer().frame(BATCH))
    assert not server.is_intact([FIELDS[0], b"labeL"])
    with pytest.raises(ChecksumError, match="checksum of batch 3: its bytes are not those that the worker"):
        server.payload_received(is_intact=False)
    failure = sent_failure(server.data_to_send())
    assert failure.code == ErrorCode.CHECKSUM
    assert failure.is_damage


@pytest.mark.parametrize("index", range(HEADER_BYTES))
def test_a_changed_header_is_found_at_the_latest_with_its_payload(index: int) -> None:
    _, server = connected()
    header = bytearray(Peer().frame(BATCH))
    header[index] ^= 1
    try:
        feed(server, bytes(header))
    except FrameError:
        assert server.state is ServerState.CLOSED
        return
    with pytest.raises(ChecksumError):
        deliver(server)


def test_fields_cannot_move_within_a_batch() -> None:
    _, server = connected()
    feed(server, Peer().frame(BATCH))
    assert server.is_intact(FIELDS)
    assert not server.is_intact([*reversed(FIELDS)])


def test_without_agreed_checksums_none_is_sent_or_compared() -> None:
    worker, server = connected(replace(WELCOME, checksum=False))
    assert not worker.checksum
    feed(server, next_header(worker))
    assert server.is_intact([b"other bytes"])
    assert deliver(server) == [BatchReceived(3)]


def test_credit_is_absolute_and_grows_only() -> None:
    worker, server = connected()
    server.grant(5)
    assert server.data_to_send() == b""
    server.grant(7)
    server.grant(11)
    assert worker.receive_data(server.data_to_send()) == [CreditGranted(7), CreditGranted(11)]
    assert worker.credit == 8
    with pytest.raises(ProtocolError, match="limit of CREDIT: got 8, expected at least 11"):
        worker.receive_data(server._tags.encode(Header(FrameType.CREDIT, 1, 9, 8)))  # type: ignore[union-attr]


def test_credit_is_kept_back_while_half_of_the_window_is_left() -> None:
    worker, server = connected(replace(WELCOME, limit=7))
    server.grant(8)
    assert not server.has_data_to_send
    feed(server, next_header(worker))
    deliver(server)
    assert not server.has_data_to_send
    server.grant(9)
    feed(server, next_header(worker))
    deliver(server)
    header = decode_header(server.data_to_send())
    assert header._replace(tag=bytes(16)) == Header(FrameType.CREDIT, 1, 9, 9)
    assert server.limit == 9


def test_a_worker_without_credit_gets_it_immediately() -> None:
    _, server = connected(replace(WELCOME, limit=3))
    server.grant(4)
    assert decode_header(server.data_to_send()).seq == 4


def test_a_worker_cannot_send_without_credit() -> None:
    worker, _ = connected(replace(WELCOME, limit=3))
    with pytest.raises(ValueError, match="got batch 3, expected credit; limit 3"):
        worker.count_batch()


def test_the_end_of_input_states_the_total() -> None:
    worker, server = connected()
    worker.end_of_input()
    assert feed(server, worker.data_to_send()) == [InputEnded(3)]
    assert server.state is ServerState.ENDED
    _, short = connected()
    with pytest.raises(ProtocolError, match="total of EOS: got 2, expected 3"):
        feed(short, Peer().frame(Header(FrameType.EOS, 1, 9, 2)))


def test_a_worker_whose_input_is_complete_is_notified() -> None:
    worker, _ = connected(replace(WELCOME, ended=True))
    assert worker.state is WorkerState.ENDED
    assert worker.credit == 0


def test_a_sign_of_life_is_answered_in_either_phase() -> None:
    worker, server = connected()
    worker.ping()
    worker.end_of_input()
    worker.ping()
    feed(server, worker.data_to_send())
    assert worker.receive_data(server.data_to_send()) == []
    assert worker.state is WorkerState.ENDED


def test_bye_and_err_end_the_connection() -> None:
    worker, server = connected()
    server.bye()
    assert worker.receive_data(server.data_to_send() + b"whatever follows") == [RunEnded()]
    assert worker.state is WorkerState.CLOSED
    failure = Failure(ErrorCode.INPUT_FAILED, "input failed: ValueError: x", "Traceback ...")
    worker, server = connected()
    worker.fail(failure)
    assert feed(server, worker.data_to_send()) == [ErrorReceived(failure)]
    assert server.wants() is None


def test_a_payload_that_completes_after_the_end_counts_for_nothing() -> None:
    _, server = connected()
    feed(server, Peer().frame(BATCH))
    server.bye()
    assert server.wants() is None
    assert deliver(server) == []


def test_a_refusal_reaches_a_worker_that_waits_for_welcome() -> None:
    worker, server = WorkerConnection(HELLO, SECRET), ServerConnection()
    feed(server, worker.data_to_send())
    server.challenge(SECRET)
    worker.receive_data(server.data_to_send())
    feed(server, worker.data_to_send())
    server.fail(Failure(ErrorCode.REFUSED, "num_workers: got 2, expected 3"))
    assert worker.receive_data(server.data_to_send()) == [
        ErrorReceived(Failure("refused", "num_workers: got 2, expected 3"))
    ]


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"SSH-2.0-OpenSSH\r\n", b"\x00", b"CSB\x00"],
    ids=["http", "tls", "ssh", "zero", "almost"],
)
def test_a_stranger_is_known_by_its_first_bytes_and_gets_no_answer(junk: bytes) -> None:
    server = ServerConnection()
    with pytest.raises(ForeignBytesError, match="not a CSBS stream"):
        server.receive_data(junk)
    assert server.state is ServerState.CLOSED
    assert server.data_to_send() == b""


def test_a_frame_of_a_later_version_is_refused_with_both_versions() -> None:
    server = ServerConnection()
    later = bytearray(WorkerConnection(HELLO, SECRET).data_to_send()[:HEADER_BYTES])
    later[4] = 3
    with pytest.raises(VersionError, match="protocol version: got 3, expected 2"):
        server.receive_data(bytes(later))
    assert "got 3, expected 2" in sent_failure(server.data_to_send()).text


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (5, 0, "frame type: got 0, expected 1 to 11"),
        (5, 99, "frame type: got 99, expected 1 to 11"),
        (6, 8, "HELLO flags: got 0x8"),
        (48, 1, "HELLO reserved bytes: got 01"),
        (27, 1, r"HELLO nbytes: got \d+, expected at most 1048576"),
    ],
)
def test_an_impossible_header_is_refused(offset: int, value: int, message: str) -> None:
    header = bytearray(WorkerConnection(HELLO, SECRET).data_to_send()[:HEADER_BYTES])
    header[offset] = value
    with pytest.raises(FrameError, match=message):
        ServerConnection().receive_data(bytes(header))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"\xff\xfe", "HELLO: got no JSON"),
        (b"[" * 5000, "HELLO: got no JSON"),
        (b"[]", "HELLO: got a JSON list, expected an object"),
        (b"{}", r"HELLO: protocol: got nothing, expected two integers \[lowest, highest\]"),
        (b'{"protocol":[1,1],"job_id":5}', "HELLO: job_id: got int, expected a text of at most 1000"),
        (b'{"protocol":[1,1],"job_id":"' + b"x" * 2000 + b'"}', "HELLO: job_id: got str, expected a text"),
        (
            HELLO.encode().replace(b'"worker":1', b'"worker":true'),
            "HELLO: worker: got bool, expected an integer",
        ),
        (
            HELLO.encode().replace(b'"worker":1', b'"worker":-1'),
            "HELLO: worker: got int, expected an integer from",
        ),
        (HELLO.encode().replace(b'"layout"', b'"lay"'), "HELLO: layout: got nothing, expected a value"),
        (
            HELLO.encode().replace(b'"checksum":true', b'"checksum":1'),
            "HELLO: checksum: got int, expected true",
        ),
    ],
)
def test_a_hello_of_another_form_is_refused(payload: bytes, message: str) -> None:
    server = ServerConnection()
    frame = Header(FrameType.HELLO, 0, 0, nbytes=len(payload)).encode() + payload
    with pytest.raises(FrameError, match=message):
        feed(server, frame)
    assert server.state is ServerState.CLOSED


def test_keys_of_a_later_version_are_ignored() -> None:
    payload = HELLO.encode()[:-1] + b',"compression":["zstd"]}'
    assert Hello.decode(payload) == HELLO


def test_a_worker_refuses_a_welcome_for_another_or_with_digests_it_cannot_make() -> None:
    for hello, index, message in (
        (HELLO, 0, "worker of WELCOME: got 0, expected 1"),
        (replace(HELLO, checksum=False), 1, "checksum of WELCOME: got true, expected false"),
    ):
        worker, server = WorkerConnection(hello, SECRET), ServerConnection()
        feed(server, worker.data_to_send())
        server.challenge(SECRET)
        worker.receive_data(server.data_to_send())
        feed(server, worker.data_to_send())
        server.accept(WELCOME, worker=index, generation=9, payload_bytes=PAYLOAD_BYTES)
        with pytest.raises(ProtocolError, match=message):
            worker.receive_data(server.data_to_send())


def test_a_worker_refuses_frames_of_another_generation() -> None:
    worker, _ = connected()
    with pytest.raises(ProtocolError, match="generation of CREDIT: got 8, expected 9"):
        worker.receive_data(Peer(is_system=True).frame(Header(FrameType.CREDIT, 1, 8, 9)))
    assert sent_failure(worker.data_to_send()).code == ErrorCode.PROTOCOL


def test_a_question_is_no_answer_and_an_answer_no_question() -> None:
    with pytest.raises(ProtocolError, match="got a question from the system"):
        connected()[0].receive_data(Peer(is_system=True).frame(Header(FrameType.PING, 1, 9)))
    with pytest.raises(ProtocolError, match="got an answer from the worker"):
        feed(connected()[1], Peer().frame(Header(FrameType.PING, 1, 9, flags=1)))


def test_long_failures_are_cut_to_what_a_frame_holds() -> None:
    failure = Failure(ErrorCode.INPUT_FAILED, "\x00" * 10**6, "start" + "\u20ac" * 10**6 + "end")
    read = Failure.decode(failure.encode())
    assert len(failure.encode()) < 1 << 16
    assert read.detail.endswith("end")


def test_the_secret_is_in_no_byte_that_is_sent() -> None:
    worker, server = WorkerConnection(HELLO, SECRET), ServerConnection()
    sent = worker.data_to_send()
    feed(server, sent)
    server.challenge(SECRET)
    sent += (answer := server.data_to_send())
    worker.receive_data(answer)
    assert SECRET.encode() not in sent + worker.data_to_send()


@pytest.mark.parametrize("other", ["Secret", "", "secret "])
def test_a_system_that_does_not_know_the_secret_is_left(other: str) -> None:
    worker, server = WorkerConnection(HELLO, SECRET), ServerConnection()
    feed(server, worker.data_to_send())
    server.challenge(other)
    with pytest.raises(UnprovedError, match="token: the peer has not proved that it knows this job's own"):
        worker.receive_data(server.data_to_send())
    assert worker.state is WorkerState.CLOSED


def test_messages_do_not_show_values() -> None:
    with pytest.raises(FrameError) as caught:
        Hello.decode(HELLO.encode().replace(b'"job_id":"job"', b'"job_id":["secret"]'))
    assert "secret" not in str(caught.value)
