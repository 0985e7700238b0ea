"""Frames of limited size, of which all protocols of the toolkit are built.

Those of data plane, MemoryX and wafers have binary headers; a group of CS systems and the input analyzer
exchange JSON objects, one a line; the agents of a job send a JSON head with a payload. Only the standard
library is imported, because an agent has nothing else.
"""

from __future__ import annotations

import json
import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from cs_toolkit.errors import ToolkitError
from cs_toolkit.network.connection import Buffer, Connection


class FrameError(ToolkitError):
    """The bytes are not a frame of the protocol, or exceed its limits."""


class ForeignBytesError(FrameError):
    """The bytes do not start like a frame of the protocol: the peer speaks something else."""


class VersionError(FrameError):
    """A frame of another version of the protocol."""


# -- binary headers --------------------------------------------------------------------------------------


class HeaderFormat:
    """The header of the frames of a protocol: magic, version and type, then the protocol's own fields.

    Args:
        magic: The first four bytes of every frame.
        version: The version of the protocol.
        types: The types of frames.
        fields: Format of the fields after the type, for `struct`, little-endian.

    Attributes:
        size: Size of a header in bytes.
    """

    def __init__(self, magic: bytes, version: int, types: type[IntEnum], fields: str) -> None:
        self._magic, self._version = magic, version
        self._types: dict[int, IntEnum] = {each.value: each for each in types}
        self._struct = struct.Struct(f"<4sBB{fields}")
        self.size = self._struct.size

    def pack(self, kind: int, *fields: int | bytes) -> bytes:
        """Return the bytes of a header."""
        return self._struct.pack(self._magic, self._version, kind, *fields)

    def unpack(self, data: Buffer) -> tuple[Any, ...]:
        """Return the type of a frame and its fields.

        Raises:
            ForeignBytesError: wrong magic.
            VersionError: another version of the protocol.
            FrameError: an unknown type.
        """
        self.check_magic(data)
        _, version, kind, *fields = self._struct.unpack(data)
        if version != self._version:
            raise VersionError(f"protocol version: got {version}, expected {self._version}")
        if kind not in self._types:
            raise FrameError(f"frame type: got {kind}, expected 1 to {max(self._types)}")
        return self._types[kind], *fields

    def check_magic(self, start: Buffer) -> None:
        """Refuse foreign peers by the first bytes, however few have arrived.

        Raises:
            ForeignBytesError: they cannot be the start of a frame.
        """
        if not self._magic.startswith(bytes(start[: len(self._magic)])):
            raise ForeignBytesError(
                f"not a {self._magic.decode()} stream: got {bytes(start[:16])!r}, expected {self._magic!r}"
            )


# -- JSON ------------------------------------------------------------------------------------------------


def encode_json(value: object) -> bytes:
    """Encode a JSON value; it contains no newline."""
    # ASCII keeps the lone surrogates that undecodable file names have.
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def decode_object(data: Buffer) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        FrameError: the bytes are something else.
    """
    try:
        value = json.loads(bytes(data))
    # RecursionError: a payload of '[' characters exhausts the parser's stack.
    except (ValueError, RecursionError) as error:
        raise FrameError(f"got no JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise FrameError(f"got a JSON {type(value).__name__}, expected an object")
    return value


class Fields:
    """Typed access to a JSON object from a peer, with errors that name the message and the key.

    Args:
        message: Name of the message.
        values: The object.
        max_chars: Maximum length of a text.
    """

    def __init__(self, message: str, values: Mapping[str, Any], max_chars: int = 1_000) -> None:
        self._message, self._values, self._max_chars = message, values, max_chars

    def _error(self, key: str, expected: str) -> FrameError:
        # Without the value, which may be a secret in the wrong place.
        got = type(self._values[key]).__name__ if key in self._values else "nothing"
        return FrameError(f"{self._message}: {key}: got {got}, expected {expected}")

    def anything(self, key: str) -> object:
        """Return any value."""
        if key not in self._values:
            raise self._error(key, "a value")
        return self._values[key]

    def text(self, key: str) -> str:
        """Return a text of limited length."""
        value = self._values.get(key)
        if not isinstance(value, str) or len(value) > self._max_chars:
            raise self._error(key, f"a text of at most {self._max_chars} characters")
        return value

    def integer(self, key: str) -> int:
        """Return an integer from 0."""
        value = self._values.get(key)
        if type(value) is not int or not 0 <= value < 1 << 63:  # not isinstance: True is not a number here
            raise self._error(key, "an integer from 0")
        return value

    def boolean(self, key: str) -> bool:
        """Return True or False."""
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise self._error(key, "true or false")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return an object."""
        value = self._values.get(key)
        if not isinstance(value, dict):
            raise self._error(key, "an object")
        return value

    def seconds(self, key: str) -> float:
        """Return a number of seconds above 0."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise self._error(key, "a number of seconds above 0")
        return float(value)

    def pair(self, key: str) -> tuple[int, int]:
        """Return two integers."""
        value = self._values.get(key)
        if not isinstance(value, list) or len(value) != 2 or any(type(item) is not int for item in value):
            raise self._error(key, "two integers [lowest, highest]")
        return value[0], value[1]


class JsonLines:
    """Splits a stream of bytes into JSON objects, one a line.

    Args:
        max_bytes: Maximum length of a line.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    @staticmethod
    def encode(message: Mapping[str, object]) -> bytes:
        """Return the line of a message."""
        return encode_json(message) + b"\n"

    def feed(self, data: Buffer) -> Iterator[dict[str, Any]]:
        """Yield the messages that the next bytes of the stream complete.

        Raises:
            FrameError: a line is too long, or no JSON object; the stream can no longer be used.
        """
        # The part of the line that was searched before contains no newline.
        searched = len(self._rest)
        self._rest += data
        while (end := self._rest.find(b"\n", searched)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            searched = 0
            self._check_length(line)
            try:
                yield decode_object(line)
            except FrameError as error:
                raise FrameError(f"{error}: {line[:40]!r}") from None
        self._check_length(self._rest)

    def _check_length(self, line: Buffer) -> None:
        if len(line) > self._max_bytes:
            raise FrameError(f"got {bytes(line[:40])!r}, expected at most {self._max_bytes:,} bytes a line")


class LineChannel:
    """One end of a connection on which both sides send JSON objects, one a line.

    Args:
        connection: The connection, which the channel closes.
        max_bytes: Maximum length of a line.
    """

    def __init__(self, connection: Connection, max_bytes: int) -> None:
        self._connection = connection
        self._lines = JsonLines(max_bytes)
        self._received: deque[dict[str, Any]] = deque()
        self._buffer = memoryview(bytearray(max_bytes))
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message; callable from any thread.

        Raises:
            ConnectionError: the peer is gone.
        """
        with self._sending:
            self._connection.send([JsonLines.encode(message)])

    def receive(self, deadline_s: float | None = None) -> dict[str, Any]:
        """Receive the next message, by a monotonic time if one is given.

        Raises:
            ConnectionError: the peer is gone, or is silent.
            FrameError: it speaks another protocol.
        """
        while not self._received:
            if deadline_s is None:
                self._connection.limit_receive(None)
            count = self._connection.receive_some(self._buffer, deadline_s)
            self._received += self._lines.feed(self._buffer[:count])
        return self._received.popleft()

    def close(self) -> None:
        """Close the connection; a waiting `receive` raises."""
        self._connection.shut_down()
        self._connection.close()


class HeadedFrames:
    """Splits a stream of bytes into frames of a head and a payload.

    A frame begins with the lengths of both, 4 bytes each, big-endian.

    Args:
        max_head_bytes: Maximum length of a head.
        max_payload_bytes: Maximum length of a payload.
    """

    LENGTHS = struct.Struct(">II")

    def __init__(self, max_head_bytes: int, max_payload_bytes: int) -> None:
        self._max_head_bytes, self._max_payload_bytes = max_head_bytes, max_payload_bytes
        self._rest = bytearray()

    @classmethod
    def encode(cls, head: bytes, payload: bytes = b"") -> bytes:
        """Return the bytes of a frame."""
        return cls.LENGTHS.pack(len(head), len(payload)) + head + payload

    def feed(self, data: Buffer) -> Iterator[tuple[bytes, bytes]]:
        """Yield head and payload of the frames that the next bytes of the stream complete.

        Raises:
            FrameError: a frame is too long; the stream can no longer be used.
        """
        self._rest += data
        start = self.LENGTHS.size
        while len(self._rest) >= start:
            head_bytes, payload_bytes = self.LENGTHS.unpack_from(self._rest)
            if head_bytes > self._max_head_bytes or payload_bytes > self._max_payload_bytes:
                raise FrameError(
                    f"got a frame of {head_bytes} + {payload_bytes} bytes, expected at most "
                    f"{self._max_head_bytes} + {self._max_payload_bytes}"
                )
            end = start + head_bytes + payload_bytes
            if len(self._rest) < end:
                return
            head = bytes(self._rest[start : start + head_bytes])
            payload = bytes(self._rest[start + head_bytes : end])
            del self._rest[:end]
            yield head, payload
