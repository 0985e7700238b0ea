"""Every frame in every state: a legal move, or a ProtocolError that closes the connection."""

from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cs_stream.errors import ChecksumError, ProtocolError, UnprovedError
from cs_stream.frames import FLAG_CHECKSUM, FLAG_PONG, HEADER_BYTES, FrameTags, FrameType, Header
from cs_stream.messages import Challenge, ErrorCode, Failure, Hello, Welcome
from cs_stream.protocol import (
    HelloReceived,
    ReadControl,
    ReadPayload,
    ServerConnection,
    ServerState,
    WorkerConnection,
    WorkerState,
)
from cs_toolkit.network.frames import FrameError

# The same examples in every run; no limit on the time of one, since the machine may be busy.
repeatable = settings(derandomize=True, deadline=None, max_examples=400)

SECRET, NONCE = "secret", "the system's nonce"
HELLO = Hello("job", "the worker's nonce", 1, 2, [], "", 1, "host", "instance")
WELCOME = Welcome(next_seq=0, limit=4, ended=False, checksum=True, liveness_s=60.0, run_id="run")
FAILURE = Failure(ErrorCode.PROTOCOL, "no more")
PAYLOAD_BYTES = 64

TO_SYSTEM = {
    ServerState.AWAIT_HELLO: {FrameType.HELLO: ServerState.IDENTIFYING},
    ServerState.AWAIT_PROOF: {FrameType.PROOF: ServerState.DECIDING},
    ServerState.STREAMING: {
        FrameType.BATCH: ServerState.PAYLOAD,
        FrameType.SKIP: ServerState.STREAMING,
        FrameType.EOS: ServerState.ENDED,
        FrameType.PING: ServerState.STREAMING,
        FrameType.ERR: ServerState.CLOSED,
    },
    ServerState.ENDED: {FrameType.PING: ServerState.ENDED, FrameType.ERR: ServerState.CLOSED},
}
TO_WORKER = {
    WorkerState.AWAIT_CHALLENGE: {
        FrameType.CHALLENGE: WorkerState.AWAIT_WELCOME,
        FrameType.ERR: WorkerState.CLOSED,
    },
    WorkerState.AWAIT_WELCOME: {
        FrameType.WELCOME: WorkerState.STREAMING,
        FrameType.BYE: WorkerState.CLOSED,
        FrameType.ERR: WorkerState.CLOSED,
    },
    WorkerState.STREAMING: {
        FrameType.CREDIT: WorkerState.STREAMING,
        FrameType.PING: WorkerState.STREAMING,
        FrameType.BYE: WorkerState.CLOSED,
        FrameType.ERR: WorkerState.CLOSED,
    },
    WorkerState.ENDED: {
        FrameType.CREDIT: WorkerState.ENDED,
        FrameType.PING: WorkerState.ENDED,
        FrameType.BYE: WorkerState.CLOSED,
        FrameType.ERR: WorkerState.CLOSED,
    },
}


def tags(is_system: bool) -> FrameTags:
    """The tags of one end of a connection."""
    return FrameTags(SECRET, HELLO.nonce, NONCE, HELLO.encode(), is_system)


def frame(frame_type: FrameType, generation: int, flags: int, end: FrameTags | None = None) -> bytes:
    """A frame of the type that is legal in itself, with the next tag of an end."""
    payloads = {
        FrameType.HELLO: HELLO.encode(),
        FrameType.CHALLENGE: Challenge(NONCE).encode(),
        FrameType.WELCOME: WELCOME.encode(),
        FrameType.ERR: FAILURE.encode(),
    }
    payload = payloads.get(frame_type, b"")
    nbytes = PAYLOAD_BYTES if frame_type is FrameType.BATCH else len(payload)
    if frame_type is FrameType.BATCH:
        flags = FLAG_CHECKSUM
    elif frame_type is not FrameType.PING:
        flags = 0
    seq = 4 if frame_type is FrameType.CREDIT else 0
    header = Header(frame_type, 1, generation, seq, nbytes, flags=flags)
    if end is None:
        return header.encode() + payload
    return (
        end.encode_batch(header, [bytes(PAYLOAD_BYTES)])
        if nbytes == PAYLOAD_BYTES
        else end.encode(header, payload)
    )


def feed(server: ServerConnection, data: bytes) -> None:
    while data:
        want = server.wants()
        assert isinstance(want, ReadControl)
        server.receive_data(data[: want.size_bytes])
        data = data[want.size_bytes :]


def server_in(state: ServerState) -> tuple[ServerConnection, FrameTags]:
    """The system's end in a state, and the tags of the worker that has brought it there."""
    server, worker = ServerConnection(), tags(is_system=False)
    if state is not ServerState.AWAIT_HELLO:
        feed(server, frame(FrameType.HELLO, 0, 0))
        server.challenge(SECRET, NONCE)
    if state in (ServerState.STREAMING, ServerState.ENDED):
        feed(server, frame(FrameType.PROOF, 0, 0, worker))
        server.accept(WELCOME, worker=1, generation=3, payload_bytes=PAYLOAD_BYTES)
    if state is ServerState.ENDED:
        feed(server, frame(FrameType.EOS, 3, 0, worker))
    assert server.state is state
    server.data_to_send()
    return server, worker


def worker_in(state: WorkerState) -> tuple[WorkerConnection, FrameTags]:
    """The worker's end in a state, and the tags of the system that has brought it there."""
    worker, system = WorkerConnection(HELLO, SECRET), tags(is_system=True)
    if state is not WorkerState.AWAIT_CHALLENGE:
        worker.receive_data(frame(FrameType.CHALLENGE, 0, 0, system))
    if state in (WorkerState.STREAMING, WorkerState.ENDED):
        worker.receive_data(frame(FrameType.WELCOME, 3, 0, system))
    if state is WorkerState.ENDED:
        worker.end_of_input()
    assert worker.state is state
    worker.data_to_send()
    return worker, system


def next_frame(frame_type: FrameType, state: ServerState | WorkerState, flags: int, peer: FrameTags) -> bytes:
    """The frame that the peer sends now: without a tag where the key is not known yet."""
    is_keyed = frame_type is FrameType.CHALLENGE or state not in (
        ServerState.AWAIT_HELLO,
        WorkerState.AWAIT_CHALLENGE,
    )
    generation = 3 if state.value in ("streaming", "ended") or frame_type is FrameType.WELCOME else 0
    return frame(frame_type, generation, flags, peer if is_keyed else None)


@pytest.mark.parametrize("frame_type", FrameType)
@pytest.mark.parametrize("state", TO_SYSTEM)
def test_every_frame_in_every_state_of_the_system(state: ServerState, frame_type: FrameType) -> None:
    server, worker = server_in(state)
    expected = TO_SYSTEM[state].get(frame_type)
    data = next_frame(frame_type, state, 0, worker)
    if expected is not None:
        feed(server, data)
        assert server.state is expected
        return
    with pytest.raises(ProtocolError, match=f"got a {frame_type.name} frame in state {state.value}"):
        feed(server, data)
    assert server.state is ServerState.CLOSED
    assert server.wants() is None
    assert server.data_to_send()[5] == FrameType.ERR


@pytest.mark.parametrize("frame_type", FrameType)
@pytest.mark.parametrize("state", TO_WORKER)
def test_every_frame_in_every_state_of_a_worker(state: WorkerState, frame_type: FrameType) -> None:
    worker, system = worker_in(state)
    expected = TO_WORKER[state].get(frame_type)
    data = next_frame(frame_type, state, FLAG_PONG, system)
    if expected is not None:
        worker.receive_data(data)
        assert worker.state is expected
        return
    with pytest.raises(ProtocolError, match=f"got a {frame_type.name} frame in state {state.value}"):
        worker.receive_data(data)
    assert worker.state is WorkerState.CLOSED
    assert worker.data_to_send()[5] == FrameType.ERR


keyed = st.sampled_from([state for state in (*TO_SYSTEM, *TO_WORKER) if state is not ServerState.AWAIT_HELLO])


@repeatable
@given(keyed, st.sampled_from(FrameType), st.data())
def test_no_frame_with_a_flipped_bit_has_an_effect(
    state: ServerState | WorkerState, frame_type: FrameType, data: st.DataObject
) -> None:
    """An error that closes the connection, or a wait for more bytes."""
    # Before CHALLENGE a worker accepts only that, and ERR frames that make it connect again.
    assume(state is not WorkerState.AWAIT_CHALLENGE or frame_type is not FrameType.ERR)
    if isinstance(state, ServerState):
        system_end, peer = server_in(state)
        end: ServerConnection | WorkerConnection = system_end
    else:
        end, peer = worker_in(state)
    sent = bytearray(
        next_frame(frame_type, state, FLAG_PONG if isinstance(end, WorkerConnection) else 0, peer)
    )
    bit = data.draw(st.integers(0, 8 * len(sent) - 1))
    sent[bit // 8] ^= 1 << bit % 8
    before = end.next_seq, end.limit
    try:
        if isinstance(end, ServerConnection):
            feed_until_payload(end, bytes(sent))
        else:
            assert end.receive_data(bytes(sent)) == []
    except FrameError:
        assert end.state.value == "closed"
        assert end.data_to_send()[5:6] in (b"", bytes([FrameType.ERR]))
    assert (end.next_seq, end.limit) == before
    assert end.state.value in (state.value, "closed", "payload")


@repeatable
@given(st.data())
def test_a_hello_with_a_flipped_bit_is_refused_or_gets_no_further(data: st.DataObject) -> None:
    worker, server = WorkerConnection(HELLO, SECRET), ServerConnection()
    sent = bytearray(worker.data_to_send())
    bit = data.draw(st.integers(0, 8 * len(sent) - 1))
    sent[bit // 8] ^= 1 << bit % 8
    try:
        feed(server, bytes(sent))
    except FrameError:
        assert server.state is ServerState.CLOSED
        return
    if server.state is ServerState.AWAIT_HELLO:
        return  # waits for more bytes, until its time is over
    server.challenge(SECRET, NONCE)
    # A changed worker, generation or seq of the header alone is not used, so the handshake may succeed.
    if server._hello != HELLO.encode():
        with pytest.raises(UnprovedError, match="token: the peer has not proved"):
            worker.receive_data(server.data_to_send())


def feed_until_payload(server: ServerConnection, data: bytes) -> None:
    while data and isinstance(want := server.wants(), ReadControl):
        assert server.receive_data(data[: want.size_bytes]) in ([], [HelloReceived(HELLO)])
        data = data[want.size_bytes :]
    if isinstance(server.wants(), ReadPayload):
        assert not server.is_intact([bytes(PAYLOAD_BYTES)])
        with pytest.raises(ChecksumError):
            server.payload_received(is_intact=False)


@pytest.mark.parametrize("state", [s for s in TO_SYSTEM if s is not ServerState.AWAIT_HELLO])
def test_frames_of_another_connection_are_refused_in_every_state(state: ServerState) -> None:
    """As a listener would repeat them, who has recorded a whole connection."""
    server, _ = server_in(state)
    recorded = FrameTags(SECRET, HELLO.nonce, "an earlier nonce", HELLO.encode(), is_system=False)
    for frame_type in TO_SYSTEM[state]:
        server, _ = server_in(state)
        data = next_frame(frame_type, state, 0, recorded)
        if frame_type is FrameType.BATCH:
            feed(server, data)
            assert not server.is_intact([bytes(PAYLOAD_BYTES)])
            continue
        with pytest.raises(ProtocolError, match=f"{frame_type.name}: its tag is not that of its content"):
            feed(server, data)
        assert server.state is ServerState.CLOSED


@pytest.mark.parametrize("state", [WorkerState.STREAMING, WorkerState.ENDED])
def test_a_frame_that_is_repeated_is_refused(state: WorkerState) -> None:
    worker, system = worker_in(state)
    data = next_frame(FrameType.PING, state, FLAG_PONG, system)
    worker.receive_data(data)
    with pytest.raises(ProtocolError, match="PING: its tag is not that of its content"):
        worker.receive_data(data)


@pytest.mark.parametrize(
    "failure", [Failure(code, "x") for code in ErrorCode if not Failure(code, "x").needs_no_proof]
)
def test_a_worker_believes_no_end_of_a_peer_without_proof(failure: Failure) -> None:
    worker, _ = worker_in(WorkerState.AWAIT_CHALLENGE)
    payload = failure.encode()
    with pytest.raises(UnprovedError, match="from a peer that has not proved that it knows the job's token"):
        worker.receive_data(Header(FrameType.ERR, 0, 0, nbytes=len(payload)).encode() + payload)
    assert worker.state is WorkerState.CLOSED


@pytest.mark.parametrize(
    "action",
    [
        lambda server: server.bye(),
        lambda server: server.fail(FAILURE),
        lambda server: server.grant(99),
    ],
    ids=["bye", "fail", "grant"],
)
def test_a_closed_end_stays_silent(action: Callable[[ServerConnection], None]) -> None:
    server, _ = server_in(ServerState.STREAMING)
    server.bye()
    assert len(server.data_to_send()) == HEADER_BYTES
    action(server)
    assert server.data_to_send() == b""


def test_a_closed_worker_stays_silent() -> None:
    worker, system = worker_in(WorkerState.STREAMING)
    worker.receive_data(frame(FrameType.BYE, 3, 0, system))
    worker.ping()
    worker.end_of_input()
    worker.fail(FAILURE)
    assert worker.data_to_send() == b""
    assert worker.credit == 0
