"""Frames that are wrong, and proofs that must fail."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cs_toolkit.network.frames import HeadedFrames
from cs_toolkit.security.proofs import is_proof
from csrun.agent.protocol import (
    MAX_PAYLOAD_BYTES,
    Credit,
    Decoder,
    Heartbeat,
    Hello,
    ProtocolError,
    Start,
    agent_proof,
    encode,
    launcher_proof,
)

HELLO = Hello(1, "node1", 42, "7", "0", (0, 1), 4, "agent's number", "")
START = Start(("sh", "-c", "true"), "/home", {"A": "b"}, ("C",), (0,), "/l", False, "/e", 10.0, 60.0, "")


def frame(head: object, payload: bytes = b"") -> bytes:
    data = head if isinstance(head, bytes) else json.dumps(head).encode()
    return HeadedFrames.LENGTHS.pack(len(data), len(payload)) + data + payload


@pytest.mark.parametrize(
    "data",
    [
        frame(b"no json"),
        frame(["a list"]),
        frame({"kind": "unheard of"}),
        frame({"count": 1}),
        frame({"kind": "credit"}),
        frame({"kind": "credit", "count": "1"}),
        frame({"kind": "credit", "count": True}),
        frame({"kind": "credit", "count": 1, "more": 2}),
        frame({"kind": "beat"}, b"payload"),
        frame(json.loads(encode(HELLO)[8:]) | {"cpus": [0, "1"]}),
        HeadedFrames.LENGTHS.pack(2**31, 0),
        HeadedFrames.LENGTHS.pack(2, MAX_PAYLOAD_BYTES + 1),
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_foreign_frames_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder().feed(data))


def test_frames_before_a_bad_one_are_used() -> None:
    messages = Decoder().feed(encode(Heartbeat()) + encode(Credit(3)) + frame(b"no json"))
    assert next(messages) == Heartbeat()
    assert next(messages) == Credit(3)
    with pytest.raises(ProtocolError):
        next(messages)


def test_a_head_may_be_limited_more() -> None:
    assert len(encode(HELLO)) > 100
    with pytest.raises(ProtocolError):
        list(Decoder(max_head_bytes=100).feed(encode(HELLO)))


def test_a_proof_holds_for_one_token_one_challenge_and_one_content() -> None:
    good = agent_proof("token", "launcher's number", HELLO)
    assert is_proof(good, agent_proof("token", "launcher's number", replace(HELLO, proof="anything")))
    assert not is_proof(good, agent_proof("tokem", "launcher's number", HELLO))
    assert not is_proof(good, agent_proof("token", "another number", HELLO))
    assert not is_proof(good, agent_proof("token", "launcher's number", replace(HELLO, rank=2)))
    assert not is_proof("", good)
    assert not is_proof("\udcffö", good)


def test_nobody_else_can_have_a_command_run() -> None:
    good = launcher_proof("token", "a", "b", START)
    assert not is_proof(good, launcher_proof("token", "a", "b", replace(START, command=("rm",))))
    assert not is_proof(good, launcher_proof("token", "a", "b", replace(START, values={"A": "c"})))
    assert not is_proof(good, launcher_proof("token", "a", "c", START))
    assert not is_proof(good, launcher_proof("", "a", "b", START))
