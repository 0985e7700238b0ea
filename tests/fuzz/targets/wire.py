"""Framed protocols in general, and the agents of a job."""

from __future__ import annotations

from cs_toolkit.network.frames import FrameError, HeadedFrames, JsonLines
from cs_toolkit.security.proofs import is_proof
from csrun.agent import protocol
from tests.fuzz.target import Target

HELLO = protocol.Hello(1, "node", 7, "12", "0", (0, 1), 4, "a nonce", "a proof")
START = protocol.Start(
    ("python", "run.py"), "/work", {"PATH": "/bin"}, ("X",), (0,), "/log", False, "/exit", 30.0, 60.0, "proof"
)
MESSAGES = [
    protocol.Challenge("a nonce"),
    HELLO,
    START,
    protocol.Restart(1),
    protocol.Started(7),
    protocol.Refused("no such file", 1),
    protocol.Output(b"line\n"),
    protocol.Heartbeat(),
    protocol.Note("text"),
    protocol.Interrupted(15),
    protocol.Orphaned(),
    protocol.Ended(0, False),
    protocol.Gone(),
    protocol.Signal(9),
    protocol.Credit(4096),
]


def pieces(data: bytes) -> list[bytes]:
    """Divide an input; its first byte is the size of the pieces."""
    step = 1 + (data[0] if data else 0)
    return [data[at : at + step] for at in range(1, len(data), step)]


def parse_lines(data: bytes) -> None:
    lines = JsonLines(4096)
    for piece in pieces(data):
        for message in lines.feed(piece):
            is_proof(message.get("proof"), "expected")


def parse_headed_frames(data: bytes) -> None:
    frames = HeadedFrames(4096, 4096)
    for piece in pieces(data):
        for head, payload in frames.feed(piece):
            assert len(head) <= 4096 >= len(payload)


def parse_agent(data: bytes) -> None:
    decoder = protocol.Decoder(protocol.MAX_AGENT_HEAD_BYTES)
    for piece in pieces(data):
        for message in decoder.feed(piece):
            if isinstance(message, protocol.Hello):
                is_proof(message.proof, protocol.agent_proof("token", "nonce", message))
            if isinstance(message, protocol.Start):
                is_proof(message.proof, protocol.launcher_proof("token", "nonce", "nonce", message))
            protocol.encode(message)


def line_seeds() -> list[bytes]:
    return [b"\x07" + JsonLines.encode({"kind": "hello", "number": 1, "proof": "x"}) * 2]


TARGETS = [
    Target("wire.lines", parse_lines, (FrameError,), line_seeds),
    Target(
        "wire.headed_frames",
        parse_headed_frames,
        (FrameError,),
        lambda: [b"\x07" + HeadedFrames.encode(b"head", b"payload") * 2],
    ),
    Target(
        "wire.agent",
        parse_agent,
        (protocol.ProtocolError,),
        lambda: [
            b"\xff" + b"".join(map(protocol.encode, MESSAGES)),
            *(b"\x0f" + protocol.encode(message) for message in MESSAGES),
        ],
    ),
]
