"""The processes of a system: its channel to an engine, which it does not trust, MemoryX, and groups."""

from __future__ import annotations

import json
import socket
from unittest.mock import patch

import numpy as np

from cs_system.errors import CsSystemError, MemoryxError
from cs_system.memoryx import protocol as memoryx
from cs_system.memoryx.config import MemoryxAddress, MemoryxConfig
from cs_system.memoryx.store import OpenFile, SharedFiles
from cs_system.server import engine_channel as engine
from cs_system.server.engine_channel import EngineChannel
from cs_system.server.engine_process import RemoteEngine
from cs_system.swarmx import protocol as group
from cs_system.swarmx.health import WorkReport
from cs_toolkit.network.frames import FrameError, JsonLines
from cs_toolkit.security.proofs import prove
from cs_toolkit.step import TensorSpec
from tests.fuzz.target import Choices, ReplayedConnection, Target, encode_text
from tests.fuzz.targets.control import INTERFACE, STEPS

SECRET, NONCE = "secret", "0123456789abcdef" * 2
PEER_NONCE = "fedcba9876543210" * 2
MAX_BYTES = 60_000  # the capacity of a socket pair without a reader
TYPES = list(memoryx.FrameType)
SPECS = (TensorSpec("a", "float32", (3, 5)), TensorSpec("b", "int64", (2,)))


# -- the channel to an engine ----------------------------------------------------------------------------


class _Process:
    """Stands for the process of an engine that has sent all of its answers, and has died."""

    exit_code = 0
    start_error = ""
    memory = None

    def __init__(self, answers: bytes, read: bytes) -> None:
        self._ends = []
        channels = []
        for data in (answers, read):
            ours, theirs = socket.socketpair()
            theirs.sendall(data[:MAX_BYTES])
            theirs.shutdown(socket.SHUT_WR)
            self._ends.append(theirs)
            channels.append(EngineChannel(ours))
        self.channel, self.reader = channels

    def kill(self) -> None:
        return

    def wait(self, timeout_s: float) -> None:
        return

    def send_descriptor(self, descriptor: int) -> None:
        return

    def close(self) -> None:
        for each in (*self._ends, self.channel, self.reader):
            each.close()


def parse_engine(data: bytes) -> None:
    """The first two bytes are the length of the answers to requests; the rest is read from the snapshot."""
    choices = Choices(data)
    process = _Process(choices.text(), choices.text())
    try:
        remote = RemoteEngine(process, STEPS[0], {"step": b"12345678"}, 8, MemoryxConfig())  # type: ignore[arg-type]
        remote.program()
        remote.put_state({"state.global_step": np.array(7)})
        assert set(remote.missing_state) <= {spec.name for spec in INTERFACE.state}
        chunk = [np.zeros((8, 2, 3), np.float32)]
        remote._chunks = {id(chunk): (0, chunk)}
        steps = remote.dispatch(chunk, 0, 2)
        assert steps.wait()["output_loss"].shape == (2,)
        snapshot = remote.snapshot()
        assert snapshot.read(["state.global_step"])["state.global_step"].dtype == np.int64
        snapshot.end()
        remote.free()
    finally:
        process.close()


def sent_by_engine(kind: engine.FrameType, number: int, values: object = None, payload: bytes = b"") -> bytes:
    text = b"" if values is None else json.dumps(values).encode()
    return engine._FORMAT.pack(kind, 0, number, len(text), len(payload), 0, 0, 0) + text + payload


def engine_seeds() -> list[bytes]:
    kinds = engine.FrameType
    done = {"missing": []}
    answers = [
        sent_by_engine(kinds.STATUS, 0, {"text": "late"}),
        sent_by_engine(kinds.DONE, 2, done),
        sent_by_engine(kinds.DONE, 3, {"missing": [0]}),
        sent_by_engine(kinds.OUTPUTS, 4, None, bytes(64)),
        sent_by_engine(kinds.DONE, 5, done),
        sent_by_engine(kinds.DONE, 6, done),
    ]
    read = sent_by_engine(kinds.STATE, 0, None, bytes(64)) + sent_by_engine(kinds.DONE, 0)
    failure = {"code": "execution", "message": "no", "fields": {"step": "7"}, "missing": [1]}
    return [
        encode_text(b"".join(answers)) + encode_text(read),
        encode_text(b"".join(answers[:3]) + sent_by_engine(kinds.FAILED, 4, failure)) + encode_text(b""),
    ]


# -- MemoryX ---------------------------------------------------------------------------------------------


def parse_admission(data: bytes) -> None:
    with patch.object(memoryx, "new_nonce", lambda: NONCE):
        memoryx.admit(ReplayedConnection(data), SECRET, 10.0)


def parse_greeting(data: bytes) -> None:
    with patch.object(memoryx, "new_nonce", lambda: NONCE):
        memoryx.greet(ReplayedConnection(data), SECRET, 10.0)


def parse_memoryx(data: bytes) -> None:
    """The frames of a peer that knows the secret."""
    key, choices, sent = memoryx._derive_key(SECRET, b"1", b"2"), Choices(data), bytearray()
    for number in range(20):
        if choices.is_empty:
            break
        kind, index, claimed, payload = (
            TYPES[choices.number() % len(TYPES)],
            choices.number(),
            choices.number(4),
            choices.text(),
        )
        parts = [payload[:60], payload[64:72]] if index % 4 == 1 else [payload]
        head = memoryx.Header(kind, index, claimed, key.tag(1, number, b"", parts)).tagged_bytes()
        sent += head + key.tag(0, number, head) + payload
    connection = ReplayedConnection(bytes(sent))
    channel = memoryx.FrameChannel(connection, key, is_server=True)
    while connection.data:
        header = channel.receive_header()
        match header.index % 4:
            case 0:
                channel.receive_payload(header, 256)
            case 1:
                assert [array.shape for array in channel.receive_arrays(header, SPECS)] == [(3, 5), (2,)]
            case 2:
                channel.receive_failure(header)
            case 3:
                WorkReport.from_json(channel.receive_payload(header, 4096))


def admission_seeds() -> list[bytes]:
    connection = ReplayedConnection(b"")
    key = memoryx._derive_key(SECRET, PEER_NONCE.encode(), NONCE.encode())
    memoryx.FrameChannel(connection, key, is_server=False).send(memoryx.FrameType.PROOF, 0)
    hello = memoryx.Header(memoryx.FrameType.HELLO, 0, len(PEER_NONCE)).encode()
    return [hello + PEER_NONCE.encode() + bytes(connection.sent)]


def greeting_seeds() -> list[bytes]:
    connection = ReplayedConnection(b"")
    key = memoryx._derive_key(SECRET, NONCE.encode(), PEER_NONCE.encode())
    channel = memoryx.FrameChannel(connection, key, is_server=True)
    channel.send(memoryx.FrameType.CHALLENGE, 0, PEER_NONCE.encode())
    return [bytes(connection.sent)]


def memoryx_seeds() -> list[bytes]:
    def frame(kind: memoryx.FrameType, index: int, payload: bytes) -> bytes:
        head = bytes([TYPES.index(kind), index]) + len(payload).to_bytes(4, "little")
        return head + encode_text(payload)

    report = WorkReport(1.5, 0.5, "late").to_json()
    failure = b'{"code":"memoryx","message":"no room"}'
    return [
        frame(memoryx.FrameType.JOIN, 0, b"name")
        + frame(memoryx.FrameType.PUT, 1, bytes(128))
        + frame(memoryx.FrameType.FAILED, 2, failure)
        + frame(memoryx.FrameType.ALIVE, 3, report)
    ]


# -- groups ----------------------------------------------------------------------------------------------


def parse_member(data: bytes) -> None:
    with patch.object(group, "new_nonce", lambda: NONCE):
        group.admit_member(group.Channel(ReplayedConnection(data)), SECRET)


def parse_leader(data: bytes) -> None:
    with patch.object(group, "new_nonce", lambda: NONCE):
        channel = group.Channel(ReplayedConnection(data))
        group.join_leader(channel, SECRET, "host", 1)
        channel.receive()


def member_seeds() -> list[bytes]:
    hello = {"host": "host", "number": 1, "version": group.TOOLKIT_VERSION, "nonce": PEER_NONCE}
    proof = group._member_proof(SECRET, NONCE, hello)
    return [
        JsonLines.encode({"kind": "hello", **hello}) + JsonLines.encode({"kind": "proof", "proof": proof}),
    ]


def leader_seeds() -> list[bytes]:
    connection = ReplayedConnection(b"")
    leader = group.Channel(connection)
    leader.send("nonce", nonce=PEER_NONCE, proof=prove(SECRET, "leader", NONCE, PEER_NONCE))
    leader.authenticate(group._connection_secret(SECRET, NONCE, PEER_NONCE), "leader", "member")
    leader.send("welcome")
    leader.send("start", port=7, run="1", rank=1)
    return [bytes(connection.sent)]


def assignment_seeds() -> list[bytes]:
    assignment = group.WaferAssignment(1, 2, "127.0.0.1:7", (MemoryxAddress("127.0.0.1", 8),), "00", "model")
    return [assignment.to_bytes(STEPS[1])]


def shared_file_seeds() -> list[bytes]:
    return [SharedFiles("boot", 7, OpenFile(3, 1, 2), OpenFile(4, 1, 3)).to_json()]


TARGETS = [
    Target("engines.engine", parse_engine, (CsSystemError,), engine_seeds),
    Target(
        "engines.memoryx_admission",
        parse_admission,
        (ConnectionError, FrameError, MemoryxError),
        admission_seeds,
    ),
    Target("engines.memoryx_greeting", parse_greeting, (ConnectionError, MemoryxError), greeting_seeds),
    Target("engines.memoryx", parse_memoryx, (ConnectionError, CsSystemError), memoryx_seeds),
    Target("engines.shared_files", SharedFiles.from_json, (MemoryxError,), shared_file_seeds),
    Target("engines.group_member", parse_member, (ConnectionError,), member_seeds),
    Target("engines.group_leader", parse_leader, (ConnectionError, CsSystemError), leader_seeds),
    Target("engines.group_assignment", group.WaferAssignment.from_bytes, (CsSystemError,), assignment_seeds),
]
