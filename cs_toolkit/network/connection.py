"""Connections over sockets: scatter and gather without copies, and time limits.

Only the standard library is imported, because an agent has nothing else.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Self

# Linux takes at most 1024 buffers in one call (IOV_MAX).
_MAX_BUFFERS = 512

# While more than this is missing of a buffer, the kernel wakes the reader only for this much at a time. With
# batches of 2 to 64 MiB that saves 15 to 40 % of the CPU time of a reader, and 0 to 20 % with less or more.
_WAKE_BYTES = 1 << 20

# Field of Linux's `tcp_info`: milliseconds since data was last received.
_LAST_DATA_RECEIVED = struct.Struct("@52xI")

_INT = struct.Struct("@i")

# Pause after a failed accept: without file descriptors, the listener stays ready and every accept fails.
_ACCEPT_PAUSE_S = 0.2

Buffer = bytes | bytearray | memoryview


class PeerGoneError(ConnectionError):
    """The peer closed the connection, or the connection broke."""


class PeerSilentError(ConnectionError):
    """The peer neither sent nor took a byte within the time limit."""


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
            if rest[0].nbytes > 2 * _WAKE_BYTES:
                # The last part comes without it: the next bytes may be far away.
                count = self._receive_large(rest[0][:-_WAKE_BYTES])
            else:
                count = self._receive_once(rest[:_MAX_BUFFERS], socket.MSG_WAITALL)
            rest = _skip(rest, count)

    def _receive_large(self, buffer: memoryview) -> int:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _WAKE_BYTES)
        try:
            return self._receive_once([buffer], socket.MSG_WAITALL)
        finally:
            with suppress(OSError):  # the connection broke
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _receive_once(self, buffers: Sequence[memoryview], flags: int = 0) -> int:
        """Receive bytes into buffers; return their number, 0 when `on_timeout` has permitted more time."""
        try:
            count = self._sock.recvmsg_into(buffers, 0, flags)[0]
        except BlockingIOError:
            self._time_out("was not heard within the time limit")
            return 0
        except OSError as error:
            raise PeerGoneError(f"the connection broke ({error.strerror})") from None
        if count == 0:
            raise PeerGoneError("the connection was closed in the middle of a frame")
        return count

    def receive_ahead(self, buffers: Sequence[memoryview], ahead: memoryview) -> int:
        """Fill all buffers in order, and `ahead` with bytes that have come after them.

        Returns:
            The number of bytes in `ahead`, which are not waited for.

        Raises:
            PeerGoneError: end of the stream, or a broken connection.
            PeerSilentError: nothing came within the time limit.
        """
        missing = sum(map(len, buffers))
        if missing > _WAKE_BYTES or len(buffers) >= _MAX_BUFFERS:
            self.receive(buffers)
            return 0
        rest = [*buffers, ahead]
        while True:
            count = self._receive_once(rest)
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


def accept_all(
    listener: socket.socket, on_error: Callable[[OSError], None]
) -> Iterator[tuple[socket.socket, object]]:
    """Yield connected sockets with the addresses of their peers until the listener is shut down or closed.

    Args:
        listener: The listening socket.
        on_error: Called with the error of a connection that could not be accepted, for the log.
    """
    while listener.fileno() >= 0:
        try:
            yield listener.accept()
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EBADF):
                return
            on_error(error)
            time.sleep(_ACCEPT_PAUSE_S)


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
