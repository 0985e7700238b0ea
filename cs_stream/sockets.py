"""Blocking sockets with time limits, scatter and gather, and no copies.

Time limits are SO_RCVTIMEO and SO_SNDTIMEO: with Python's own `settimeout` a socket is non-blocking inside,
so that each call costs a poll more and MSG_WAITALL does not wait.
"""

import socket
import struct
from collections.abc import Sequence

# Linux takes at most 1024 buffers in one call (IOV_MAX).
_MAX_BUFFERS = 512


class PeerGoneError(ConnectionError):
    """The peer closed the connection, or the connection broke."""


class PeerSilentError(ConnectionError):
    """The peer neither sent nor took a byte within the time limit."""


def tune(sock: socket.socket) -> None:
    """Set up a new connection: no delay for small frames, and keep-alive to detect lost peers."""
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def set_time_limit(sock: socket.socket, option: int, seconds: float) -> None:
    """Set SO_RCVTIMEO or SO_SNDTIMEO; at least a millisecond, since 0 means no limit.

    Raises:
        PeerGoneError: a broken connection.
    """
    micros = max(1000, int(seconds * 1e6))
    value = struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)
    try:
        sock.setsockopt(socket.SOL_SOCKET, option, value)
    except OSError as error:
        raise PeerGoneError(f"the connection broke ({error.strerror})") from None


def receive_some(sock: socket.socket, buffer: memoryview) -> int:
    """Receive available bytes into `buffer`, after waiting for some; return their number, at least 1.

    Raises:
        PeerGoneError: end of the stream, or a broken connection.
        PeerSilentError: nothing came within the time limit.
    """
    try:
        count = sock.recv_into(buffer)
    except BlockingIOError:  # EAGAIN: SO_RCVTIMEO has passed
        raise PeerSilentError("nothing was heard within the time limit") from None
    except OSError as error:
        raise PeerGoneError(f"the connection broke ({error.strerror})") from None
    if count == 0:
        raise PeerGoneError("the connection was closed")
    return count


def receive_scattered(sock: socket.socket, buffers: Sequence[memoryview]) -> None:
    """Fill all buffers in order.

    Raises:
        PeerGoneError: end of the stream, or a broken connection.
        PeerSilentError: nothing came within the time limit.
    """
    rest = list(buffers)
    while rest:
        try:
            count = sock.recvmsg_into(rest[:_MAX_BUFFERS], 0, socket.MSG_WAITALL)[0]
        except BlockingIOError:
            raise PeerSilentError("nothing was heard within the time limit") from None
        except OSError as error:
            raise PeerGoneError(f"the connection broke ({error.strerror})") from None
        if count == 0:
            raise PeerGoneError("the connection was closed in the middle of a batch")
        rest = _skip(rest, count)


def send_gathered(sock: socket.socket, buffers: Sequence[bytes | memoryview]) -> None:
    """Send all buffers in order.

    Raises:
        PeerGoneError: a broken connection.
        PeerSilentError: the peer took nothing within the time limit.
    """
    rest = [memoryview(buffer) for buffer in buffers]
    while rest:
        try:
            count = sock.sendmsg(rest[:_MAX_BUFFERS], [], socket.MSG_NOSIGNAL)
        except BlockingIOError:
            raise PeerSilentError("the peer took nothing within the time limit") from None
        except OSError as error:
            raise PeerGoneError(f"the connection broke ({error.strerror})") from None
        rest = _skip(rest, count)


def _skip(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return `buffers` without their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []


def shut_down(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shut the connection down, and wake threads that are blocked on it; no effect if it has ended."""
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
