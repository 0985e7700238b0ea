"""Framed protocols over sockets: connections with time limits, and frames of limited size.

All protocols of the toolkit are built from these parts: those of data plane, MemoryX and wafers have binary
headers; a group of CS systems and the input analyzer exchange JSON objects, one a line; the agents of a job
send a JSON head with a payload. Only the standard library is imported, because an agent has nothing else.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Self

from cs_toolkit.errors import ToolkitError

# Linux takes at most 1024 buffers in one call (IOV_MAX).
_MAX_BUFFERS = 512

# While more than this is missing of a buffer, the kernel wakes the reader only for this much at a time. With
# batches of 2 to 64 MiB that saves 15 to 40 % of the CPU time of a reader, and 0 to 20 % with less or more.
_WAKE_BYTES = 1 << 20

# Field of Linux's `tcp_info`: milliseconds since data was last received.
_LAST_DATA_RECEIVED = struct.Struct("@52xI")

_INT = struct.Struct("@i")

Buffer = bytes | bytearray | memoryview


class PeerGoneError(ConnectionError):
    """The peer closed the connection, or the connection broke."""


class PeerSilentError(ConnectionError):
    """The peer neither sent nor took a byte within the time limit."""


class FrameError(ToolkitError):
    """The bytes are not a frame of the protocol, or exceed its limits."""


class ForeignBytesError(FrameError):
    """The bytes do not start like a frame of the protocol: the peer speaks something else."""


class VersionError(FrameError):
    """A frame of another version of the protocol."""


# -- connections -----------------------------------------------------------------------------------------


class Connection:
    """A connected socket whose calls block: scatter and gather without copies, and time limits.

    Args:
        sock: The socket, which this object owns.

    Attributes:
        on_timeout: Called when a time limit has passed, instead of raising PeerSilentError; the call then
            waits for as long again unless this function raises.

    Raises:
        OSError: the peer has disconnected already.
    """

    # Time limits are SO_RCVTIMEO and SO_SNDTIMEO: with Python's own `settimeout` a socket is non-blocking
    # inside, so that each call costs a poll more and MSG_WAITALL does not wait.

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.on_timeout: Callable[[], None] | None = None
        sock.setblocking(True)
        if sock.family != socket.AF_UNIX:
            set_tcp_options(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._sock.fileno()

    @property
    def own_host(self) -> str:
        """The address of this machine that the peer is connected to."""
        return str(self._sock.getsockname()[0])

    @property
    def is_local(self) -> bool:
        """True if the peer is on this machine: it is connected from the address that it is connected to."""
        try:
            return bool(self._sock.getpeername()[0] == self._sock.getsockname()[0])
        except OSError:
            return False

    def handshake(self, limit_s: float) -> None:
        """Do nothing: only a connection with TLS has a handshake (`cs_toolkit.security.tls_connection`)."""

    def detach(self) -> socket.socket:
        """Return the socket, which this object no longer owns; it must not be used any more."""
        return self._sock

    def limit_receive(self, seconds: float | None) -> None:
        """Limit how long a later call waits for bytes; None: no limit.

        Raises:
            PeerGoneError: a broken connection.
        """
        self._limit(socket.SO_RCVTIMEO, seconds)

    def limit_send(self, seconds: float | None) -> None:
        """Limit how long a later call waits for the peer to take bytes; None: no limit.

        Raises:
            PeerGoneError: a broken connection.
        """
        self._limit(socket.SO_SNDTIMEO, seconds)

    def receive_some(self, buffer: memoryview, deadline_s: float | None = None) -> int:
        """Receive available bytes into `buffer`, after waiting for some; return their number, at least 1.

        Args:
            buffer: Memory for the bytes.
            deadline_s: Monotonic time at which the wait ends; it replaces the limit that is set.

        Raises:
            PeerGoneError: end of the stream, or a broken connection.
            PeerSilentError: nothing came within the time limit.
        """
        while True:
            if deadline_s is not None:
                self._limit_until(deadline_s)
            try:
                count = self._sock.recv_into(buffer)
            except BlockingIOError:  # EAGAIN: SO_RCVTIMEO has passed
                self._time_out("was not heard within the time limit")
                continue
            except OSError as error:
                raise PeerGoneError(f"the connection broke ({error.strerror})") from None
            if count == 0:
                raise PeerGoneError("the connection was closed")
            return count

    def receive(self, buffers: Sequence[memoryview], deadline_s: float | None = None) -> None:
        """Fill all buffers in order.

        Args:
            buffers: Memory for the bytes, views of bytes.
            deadline_s: Monotonic time by which all are filled; it replaces the limit that is set.

        Raises:
            PeerGoneError: end of the stream, or a broken connection.
            PeerSilentError: nothing came within the time limit, or not all by the deadline.
        """
        rest = list(buffers)
        while rest:
            if deadline_s is not None:
                self._limit_until(deadline_s)
            try:
                if rest[0].nbytes > 2 * _WAKE_BYTES:
                    # The last part comes without it: the next bytes may be far away.
                    count = self._receive_large(rest[0][:-_WAKE_BYTES])
                else:
                    count = self._sock.recvmsg_into(rest[:_MAX_BUFFERS], 0, socket.MSG_WAITALL)[0]
            except BlockingIOError:
                self._time_out("was not heard within the time limit")
                continue
            except OSError as error:
                raise PeerGoneError(f"the connection broke ({error.strerror})") from None
            if count == 0:
                raise PeerGoneError("the connection was closed in the middle of a frame")
            rest = _skip(rest, count)

    def _receive_large(self, buffer: memoryview) -> int:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _WAKE_BYTES)
        try:
            return self._sock.recv_into(buffer, 0, socket.MSG_WAITALL)
        finally:
            with suppress(OSError):  # the connection broke
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def receive_ahead(self, buffers: Sequence[memoryview], ahead: memoryview) -> int:
        """Fill all buffers in order, and `ahead` with bytes that have come after them.

        Returns:
            The number of bytes in `ahead`, which are not waited for.

        Raises:
            PeerGoneError: end of the stream, or a broken connection.
            PeerSilentError: nothing came within the time limit.
        """
        missing = sum(buffer.nbytes for buffer in buffers)
        if missing > _WAKE_BYTES or len(buffers) >= _MAX_BUFFERS:
            self.receive(buffers)
            return 0
        rest = [*buffers, ahead]
        while True:
            try:
                count = self._sock.recvmsg_into(rest)[0]
            except BlockingIOError:
                self._time_out("was not heard within the time limit")
                continue
            except OSError as error:
                raise PeerGoneError(f"the connection broke ({error.strerror})") from None
            if count == 0:
                raise PeerGoneError("the connection was closed in the middle of a frame")
            missing -= count
            if missing <= 0:
                return -missing
            rest = _skip(rest, count)

    def has_received(self, size_bytes: int) -> bool:
        """Return True if the next bytes, that many, can be received without waiting."""
        try:
            queued = fcntl.ioctl(self._sock, termios.FIONREAD, bytes(_INT.size))
        except OSError:
            return False
        return bool(_INT.unpack(queued)[0] >= size_bytes)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all buffers in order.

        Raises:
            PeerGoneError: a broken connection.
            PeerSilentError: the peer took nothing within the time limit.
        """
        rest = [memoryview(buffer) for buffer in buffers]
        while rest:
            try:
                count = self._sock.sendmsg(rest[:_MAX_BUFFERS], [], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._time_out("took nothing within the time limit")
                continue
            except OSError as error:
                raise PeerGoneError(f"the connection broke ({error.strerror})") from None
            rest = _skip(rest, count)

    def send_now(self, data: Buffer) -> bool:
        """Send bytes without waiting; return False if the peer does not take them all."""
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(data)
        except OSError:
            return False

    def silence_s(self) -> float:
        """Return for how many seconds no byte has arrived; 0 for a closed connection."""
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
        except OSError:
            return 0.0
        milliseconds: int = _LAST_DATA_RECEIVED.unpack(info)[0]
        return milliseconds / 1000

    def break_when_lost(self, seconds: int) -> None:
        """Let the kernel break the connection when the other machine has not answered for this long."""
        break_when_lost(self._sock, seconds)

    def shut_down(self, how: int = socket.SHUT_RDWR) -> None:
        """Shut the connection down, and wake threads that are blocked on it; no effect if it has ended."""
        shut_down(self._sock, how)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _time_out(self, silence: str) -> None:
        if self.on_timeout is None:
            raise PeerSilentError(f"the peer {silence}") from None
        self.on_timeout()

    def _limit_until(self, deadline_s: float) -> None:
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise PeerSilentError("the peer was not heard within the time limit")
        self._limit(socket.SO_RCVTIMEO, remaining_s)

    def _limit(self, option: int, seconds: float | None) -> None:
        # At least a millisecond, since 0 means no limit.
        micros = 0 if seconds is None else max(1000, int(seconds * 1e6))
        value = struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, option, value)
        except OSError as error:
            raise PeerGoneError(f"the connection broke ({error.strerror})") from None


def connect(address: tuple[str, int], timeout_s: float | None = None) -> Connection:
    """Connect to an address.

    Raises:
        OSError: it cannot be reached.
    """
    sock = socket.create_connection(address, timeout=timeout_s)
    try:
        if sock.getsockname() == sock.getpeername():
            # Nobody is listening, and the kernel has connected the socket to itself (TCP simultaneous open).
            raise ConnectionRefusedError("Connection refused")
        return Connection(sock)
    except OSError:
        sock.close()
        raise


def listen(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Listen on an address of this machine; port 0 takes a free one.

    Raises:
        OSError: it cannot be listened on.
    """
    # IPv4 for a name that has addresses of both kinds, such as localhost: users write 127.0.0.1 elsewhere.
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    families = {address[0] for address in found}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return socket.create_server((host, port), family=family, backlog=backlog)


def set_tcp_options(sock: socket.socket) -> None:
    """Send small frames without delay, and detect lost peers."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def break_when_lost(sock: socket.socket, seconds: int) -> None:
    """Let the kernel break a connection when the other machine has not answered for this long.

    A machine that has lost its power or its network does not close its connections.
    """
    idle_s, interval_s = seconds // 3, max(1, seconds // 6)
    for option, value in (
        (socket.TCP_KEEPIDLE, idle_s),
        (socket.TCP_KEEPINTVL, interval_s),
        (socket.TCP_KEEPCNT, (seconds - idle_s) // interval_s),
        (socket.TCP_USER_TIMEOUT, seconds * 1000),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def shut_down(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shut a socket down, and wake threads that are blocked on it; no effect if it is not connected."""
    try:
        sock.shutdown(how)
    except OSError:
        # No longer connected, as intended.
        return


def name_of(address: object) -> str:
    """Format a socket address as `host:port`, with brackets around IPv6."""
    if not isinstance(address, tuple) or len(address) < 2:
        return str(address)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _skip(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return `buffers` without their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []


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
