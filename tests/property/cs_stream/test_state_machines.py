"""Every frame in every state: a legal move, or a ProtocolError that closes the connection."""

from collections.abc import Callable

import pytest

from cs_stream.errors import ProtocolError
from cs_stream.frames import FLAG_CHECKSUM, FLAG_PONG, HEADER_BYTES, FrameType, Header
from cs_stream.messages import ErrorCode, Failure, Hello, Welcome
from cs_stream.protocol import ReadControl, ServerConnection, ServerState, WorkerConnection, WorkerState

HELLO = Hello("job", "secret", 1, 2, [], "", 1, "host", "instance")
WELCOME = Welcome(next_seq=0, limit=4, ended=False, checksum=True, liveness_s=60.0, run_id="run")
FAILURE = Failure(ErrorCode.STOPPED, "run stopped: enough")
PAYLOAD_BYTES = 64

TO_SYSTEM = {
    ServerState.AWAIT_HELLO: {FrameType.HELLO: ServerState.DECIDING},
    ServerState.STREAMING: {
        FrameType.BATCH: ServerState.PAYLOAD,
        FrameType.EOS: ServerState.ENDED,
        FrameType.PING: ServerState.STREAMING,
        FrameType.ERR: ServerState.CLOSED,
    },
    ServerState.ENDED: {FrameType.PING: ServerState.ENDED, FrameType.ERR: ServerState.CLOSED},
}
TO_WORKER = {
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


def frame(frame_type: FrameType, generation: int, flags: int) -> bytes:
    """A frame of the type that is legal in itself."""
    payloads = {
        FrameType.HELLO: HELLO.encode(),
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
    return Header(frame_type, 1, generation, seq, nbytes, flags=flags).encode() + payload


def feed(server: ServerConnection, data: bytes) -> None:
    while data:
        want = server.wants()
        assert isinstance(want, ReadControl)
        server.receive_data(data[: want.size_bytes])
        data = data[want.size_bytes :]


def server_in(state: ServerState) -> ServerConnection:
    server = ServerConnection()
    if state is not ServerState.AWAIT_HELLO:
        feed(server, WorkerConnection(HELLO).data_to_send())
        server.accept(WELCOME, worker=1, generation=3, payload_bytes=PAYLOAD_BYTES)
    if state is ServerState.ENDED:
        feed(server, frame(FrameType.EOS, 3, 0))
    assert server.state is state
    server.data_to_send()
    return server


def worker_in(state: WorkerState) -> WorkerConnection:
    worker = WorkerConnection(HELLO)
    if state is not WorkerState.AWAIT_WELCOME:
        worker.receive_data(frame(FrameType.WELCOME, 3, 0))
    if state is WorkerState.ENDED:
        worker.end_of_input()
    assert worker.state is state
    worker.data_to_send()
    return worker


@pytest.mark.parametrize("frame_type", FrameType)
@pytest.mark.parametrize("state", TO_SYSTEM)
def test_every_frame_in_every_state_of_the_system(state: ServerState, frame_type: FrameType) -> None:
    server = server_in(state)
    expected = TO_SYSTEM[state].get(frame_type)
    data = frame(frame_type, 3, 0)
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
    worker = worker_in(state)
    expected = TO_WORKER[state].get(frame_type)
    data = frame(frame_type, 3, FLAG_PONG)
    if expected is not None:
        worker.receive_data(data)
        assert worker.state is expected
        return
    with pytest.raises(ProtocolError, match=f"got a {frame_type.name} frame in state {state.value}"):
        worker.receive_data(data)
    assert worker.state is WorkerState.CLOSED
    assert worker.data_to_send()[5] == FrameType.ERR


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
    server = server_in(ServerState.STREAMING)
    server.bye()
    assert len(server.data_to_send()) == HEADER_BYTES
    action(server)
    assert server.data_to_send() == b""


def test_a_closed_worker_stays_silent() -> None:
    worker = worker_in(WorkerState.STREAMING)
    worker.receive_data(frame(FrameType.BYE, 3, 0))
    worker.ping()
    worker.end_of_input()
    worker.fail(FAILURE)
    assert worker.data_to_send() == b""
    assert worker.credit == 0
