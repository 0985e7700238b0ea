"""Connections, frames and proofs, over socket pairs and loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from enum import IntEnum

import pytest

from cs_toolkit.network.connection import Connection, PeerGoneError, PeerSilentError, connect, listen, name_of
from cs_toolkit.network.frames import (
    Fields,
    ForeignBytesError,
    FrameError,
    HeadedFrames,
    HeaderFormat,
    JsonLines,
    VersionError,
    decode_object,
)
from tests.processes import wait_until


class Kind(IntEnum):
    ONE = 1
    THREE = 3


HEADER = HeaderFormat(b"TEST", 2, Kind, "HI")


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    with (
        listen("127.0.0.1", 0) as listener,
        connect(listener.getsockname(), 10.0) as near,
        listener.accept()[0] as far,
    ):
        yield near, far


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def test_the_modules_need_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import cs_toolkit.network.frames; print(*sys.modules)"
    )
    root = sys.modules["cs_toolkit"].__path__[0].rpartition("/")[0]
    command = [sys.executable, "-I", "-S", "-c", program, root]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert {"cs_toolkit.network.connection", "cs_toolkit.network.frames"} <= set(loaded)
    assert not {"logging", "numpy", "asyncio", "ssl"} & set(loaded)


def test_buffers_are_gathered_and_scattered(pair: tuple[Connection, socket.socket]) -> None:
    near, far = pair
    sent = [bytes([index % 256]) * (index % 7) for index in range(3000)]
    threading.Thread(target=near.send, args=(sent,)).start()
    received = [memoryview(bytearray(len(buffer))) for buffer in sent]
    Connection(far).receive([buffer for buffer in received if len(buffer)])
    assert received == sent


@pytest.mark.parametrize("sizes", [(5 << 20, 100), (100, 3 << 20, 7), (1 << 20,)])
def test_large_buffers_arrive_to_their_last_byte(
    pair: tuple[Connection, socket.socket], sizes: tuple[int, ...]
) -> None:
    """After which nothing comes that would wake the reader."""
    near, far = pair
    sent = [os.urandom(size) for size in sizes]
    threading.Thread(target=near.send, args=(sent,)).start()
    far.settimeout(None)
    received = [memoryview(bytearray(size)) for size in sizes]
    reader = Connection(far)
    reader.receive(received, time.monotonic() + 30)
    assert received == sent
    assert far.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


def test_bytes_that_follow_are_received_ahead_without_waiting(
    pair: tuple[Connection, socket.socket],
) -> None:
    near, far = pair
    buffers, ahead = [memoryview(bytearray(3)), memoryview(bytearray(2))], memoryview(bytearray(4))
    far.sendall(b"abcde")
    assert near.receive_ahead(buffers, ahead) == 0
    far.sendall(b"fghijklm")
    wait_until(lambda: near.has_received(8))
    assert near.receive_ahead(buffers, ahead) == 3
    assert (b"".join(buffers), bytes(ahead[:3])) == (b"fghij", b"klm")
    assert not near.has_received(1)
    far.close()
    with pytest.raises(PeerGoneError, match="in the middle of a frame"):
        near.receive_ahead(buffers, ahead)


def test_a_limit_ends_a_wait_and_may_be_lifted(pair: tuple[Connection, socket.socket]) -> None:
    near, far = pair
    buffer = memoryview(bytearray(8))
    near.limit_receive(0.01)
    with pytest.raises(PeerSilentError):
        near.receive_some(buffer)
    near.limit_receive(None)
    threading.Timer(0.1, far.sendall, [b"late"]).start()
    assert near.receive_some(buffer) == 4


def test_a_deadline_holds_for_all_bytes_together(pair: tuple[Connection, socket.socket]) -> None:
    near, far = pair
    has_ended = threading.Event()

    def drip() -> None:
        while not has_ended.wait(0.05):
            far.sendall(b".")

    dripping = threading.Thread(target=drip)
    dripping.start()
    began_s = time.monotonic()
    try:
        with pytest.raises(PeerSilentError):
            near.receive([memoryview(bytearray(1000))], began_s + 0.3)
    finally:
        has_ended.set()
        dripping.join()
    assert time.monotonic() - began_s < 5.0


def test_the_end_of_a_stream_is_reported(pair: tuple[Connection, socket.socket]) -> None:
    near, far = pair
    far.sendall(b"half")
    far.close()
    with pytest.raises(PeerGoneError, match="in the middle of a frame"):
        near.receive([memoryview(bytearray(8))])
    with pytest.raises(PeerGoneError, match="was closed"):
        near.receive_some(memoryview(bytearray(8)))


def test_bytes_that_the_peer_does_not_take_are_not_waited_for(
    pair: tuple[Connection, socket.socket],
) -> None:
    near, _ = pair
    assert near.send_now(b"few")
    while near.send_now(bytes(1 << 20)):
        pass


def test_silence_is_measured(pair: tuple[Connection, socket.socket]) -> None:
    near, far = pair
    far.sendall(b".")
    near.receive_some(memoryview(bytearray(1)))
    time.sleep(0.2)
    assert 0.1 < near.silence_s() < 10.0
    near.close()
    assert near.silence_s() == 0.0


def test_a_name_with_addresses_of_both_kinds_is_listened_on_by_ipv4() -> None:
    with listen("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_names_of_addresses() -> None:
    assert name_of(("10.0.0.5", 9001)) == "10.0.0.5:9001"
    assert name_of(("::1", 9001, 0, 0)) == "[::1]:9001"
    assert name_of("") == ""


def test_headers() -> None:
    data = HEADER.pack(Kind.THREE, 7, 8)
    assert len(data) == HEADER.size == 12
    assert HEADER.unpack(data) == (Kind.THREE, 7, 8)
    with pytest.raises(ForeignBytesError, match=r"not a TEST stream: got b'GET / HTTP/1', expected b'TEST'"):
        HEADER.unpack(b"GET / HTTP/1")
    with pytest.raises(ForeignBytesError):
        HEADER.check_magic(b"TEX")
    HEADER.check_magic(b"TE")
    with pytest.raises(VersionError, match="protocol version: got 9, expected 2"):
        HEADER.unpack(data[:4] + b"\x09" + data[5:])
    with pytest.raises(FrameError, match="frame type: got 2, expected 1 to 3"):
        HEADER.unpack(data[:5] + b"\x02" + data[6:])


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_lines_arrive_in_any_pieces(size: int) -> None:
    messages = [{"text": "a\nb\udcff"}, {}, {"number": 1.5, "list": [None, True]}]
    lines = JsonLines(100)
    data = b"".join(map(JsonLines.encode, messages))
    assert [found for piece in pieces(data, size) for found in lines.feed(piece)] == messages


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n", "got no JSON"),
        (b"[" * 90 + b"\n", "got no JSON"),
        (b"[1]\n", "got a JSON list, expected an object"),
        (b"\xff\n", "got no JSON"),
        (b"{}" + b" " * 99, "expected at most 100 bytes a line"),
        (b"{}" + b" " * 99 + b"\n", "expected at most 100 bytes a line"),
    ],
)
def test_malformed_lines(data: bytes, text: str) -> None:
    received = JsonLines(100).feed(b'{"good": 1}\n' + data)
    assert next(received) == {"good": 1}
    with pytest.raises(FrameError, match=text):
        next(received)


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(FrameError, match=r"got no JSON \(RecursionError\)"):
        decode_object(b"[" * 100_000)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_heads_and_payloads_arrive_in_any_pieces(size: int) -> None:
    sent = [(b"head", b""), (b"", b"payload"), (b"h", bytes(50))]
    frames = HeadedFrames(10, 50)
    data = b"".join(HeadedFrames.encode(*each) for each in sent)
    assert [found for piece in pieces(data, size) for found in frames.feed(piece)] == sent


@pytest.mark.parametrize("lengths", [(11, 0), (0, 51)])
def test_heads_and_payloads_are_limited(lengths: tuple[int, int]) -> None:
    with pytest.raises(FrameError, match=r"expected at most 10 \+ 50"):
        list(HeadedFrames(10, 50).feed(HeadedFrames.LENGTHS.pack(*lengths)))


def test_fields_are_typed() -> None:
    fields = Fields("HELLO", {"text": "x", "flag": True, "pair": [1, 2], "time": 2}, max_chars=3)
    assert fields.text("text") == "x"
    assert fields.boolean("flag")
    assert fields.pair("pair") == (1, 2)
    assert fields.seconds("time") == 2.0
    with pytest.raises(FrameError, match="HELLO: flag: got bool, expected an integer from 0"):
        fields.integer("flag")
    with pytest.raises(FrameError, match="HELLO: other: got nothing, expected a value"):
        fields.anything("other")
