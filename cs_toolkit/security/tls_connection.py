"""Connections with or without TLS: `connect` and `accept`, and the connection that encrypts.

with connect(address, timeout_s=5.0, credentials=credentials) as connection: ...     # None: plain

sock, peer = listener.accept()
connection = accept(sock, credentials)      # sends and receives nothing yet
connection.handshake(10.0)                  # in the thread that serves the peer
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from cs_toolkit.network.connection import Buffer, Connection, PeerGoneError, PeerSilentError
from cs_toolkit.network.connection import connect as connect_plain
from cs_toolkit.network.frames import ForeignBytesError
from cs_toolkit.security.identity import Identity
from cs_toolkit.security.tls import Credentials, digest, explain, pinned_context

# One write encrypts at most this many bytes, so that a reading thread waits for the lock no longer than that.
_WRITE_BYTES = 1 << 18
# Buffers up to this size are joined, as long as copying them costs less than a write, which makes a separate
# record and packet.
_JOINED_BYTES = 1 << 17

_HANDSHAKE_S = 10.0


class TlsError(ForeignBytesError):
    """No TLS connection with the peer is possible: certificates, or a peer that uses no TLS."""


def connect(
    address: tuple[str, int], timeout_s: float | None = None, credentials: Credentials | None = None
) -> Connection:
    """Connect to an address, with TLS if there are credentials.

    Raises:
        OSError: it cannot be reached, or has broken the connection.
        TlsError: the peer uses no TLS, or its certificate is not accepted.
    """
    connection = connect_plain(address, timeout_s)
    if credentials is None:
        return connection
    encrypted = TlsConnection(connection.detach(), credentials.client_context, address[0])
    try:
        encrypted.handshake(timeout_s or _HANDSHAKE_S)
    except BaseException:
        encrypted.close()
        raise
    return encrypted


def connect_pinned(address: tuple[str, int], timeout_s: float, certificate: str) -> Connection:
    """Connect with TLS to a server whose certificate has this digest.

    Raises:
        OSError: it cannot be reached, or has broken the connection.
        TlsError: the peer uses no TLS, or another certificate.
    """
    sock = connect_plain(address, timeout_s).detach()
    connection = TlsConnection(sock, pinned_context(), address[0])
    try:
        connection.handshake(timeout_s)
        if digest(connection.peer_certificate) != certificate:
            raise TlsError("TLS: another process listens there: its certificate is not the expected one")
    except BaseException:
        connection.close()
        raise
    return connection


def accept(sock: socket.socket, credentials: Credentials | None) -> Connection:
    """Return the connection of an accepted socket; with credentials its `handshake` must come first.

    Raises:
        OSError: the peer has disconnected already.
    """
    return Connection(sock) if credentials is None else TlsConnection(sock, credentials.server_context)


class TlsConnection(Connection):
    """A connection with TLS. One thread may receive while another one sends.

    Args:
        sock: A connected socket, which this object owns.
        context: Settings of this side.
        host: The host to which this process has connected; None on the accepting side.

    Raises:
        OSError: the peer has disconnected already.
    """

    # Python 3.11 does not lock an SSL object, and OpenSSL must not read and write one in two threads at the
    # same time. So the socket does not block, the lock is held for single calls of OpenSSL, and `poll` waits
    # outside of it. A memory BIO would need the same lock, and would copy every batch once more.

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str | None = None) -> None:
        super().__init__(sock)
        self._host = host or ""
        sock.setblocking(False)
        self._tls = context.wrap_socket(
            sock, server_side=host is None, do_handshake_on_connect=False, server_hostname=host
        )
        self._sock = self._tls
        self._lock = threading.Lock()
        self._receive_s: float | None = None
        self._send_s: float | None = None

    def handshake(self, limit_s: float) -> None:
        """Exchange certificates with the peer.

        Raises:
            TlsError: the peer uses no TLS, or its certificate is not accepted.
            PeerGoneError: it disconnected.
            PeerSilentError: it did not finish in time.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            try:
                with self._lock:
                    self._tls.do_handshake()
                return
            except OSError as error:
                limit_s = deadline_s - time.monotonic()
                if limit_s <= 0:
                    raise PeerSilentError("the peer did not finish the TLS handshake in time") from None
                self._wait_or_raise(error, limit_s, "did not finish the TLS handshake in time")

    @property
    def peer(self) -> Identity:
        """The peer's identity, which its certificate proves."""
        return Identity.of_peer(self._tls.getpeercert() or {})

    @property
    def peer_certificate(self) -> bytes:
        """The peer's certificate in binary form (DER), verified or not."""
        return self._tls.getpeercert(binary_form=True) or b""

    def limit_receive(self, seconds: float | None) -> None:
        """Limit how long a later call waits for bytes; None: no limit."""
        self._receive_s = seconds

    def limit_send(self, seconds: float | None) -> None:
        """Limit how long a later call waits for the peer to take bytes; None: no limit."""
        self._send_s = seconds

    def receive_some(self, buffer: memoryview, deadline_s: float | None = None) -> int:
        """Receive available bytes, as `Connection.receive_some`.

        Raises:
            PeerGoneError: end of the stream, or a broken connection.
            PeerSilentError: nothing came within the time limit.
            TlsError: the peer refuses our certificate.
        """
        while True:
            limit_s = self._receive_s if deadline_s is None else deadline_s - time.monotonic()
            if limit_s is not None and limit_s <= 0:
                raise PeerSilentError("the peer was not heard within the time limit")
            try:
                with self._lock:
                    count = self._tls.recv_into(buffer)
            except OSError as error:
                self._wait_or_raise(error, limit_s, "was not heard within the time limit")
                continue
            if count == 0:
                raise PeerGoneError("the connection was closed")
            return count

    def receive(self, buffers: Sequence[memoryview], deadline_s: float | None = None) -> None:
        """Fill all buffers in order, as `Connection.receive`.

        Raises:
            PeerGoneError: end of the stream, or a broken connection.
            PeerSilentError: nothing came within the time limit, or not all by the deadline.
            TlsError: the peer refuses our certificate.
        """
        for buffer in buffers:
            rest = buffer.cast("B") if buffer.nbytes else buffer
            while rest.nbytes:
                rest = rest[self.receive_some(rest, deadline_s) :]

    def receive_ahead(self, buffers: Sequence[memoryview], ahead: memoryview) -> int:
        """Fill all buffers in order, and `ahead` with decrypted bytes, as `Connection.receive_ahead`.

        Raises:
            PeerGoneError: end of the stream, or a broken connection.
            PeerSilentError: nothing came within the time limit.
            TlsError: the peer refuses our certificate.
        """
        self.receive(buffers)
        with self._lock:
            is_decrypted = self._tls.pending() > 0
        return self.receive_some(ahead) if is_decrypted else 0

    def has_received(self, size_bytes: int) -> bool:
        """Return True if the next bytes, that many, are decrypted."""
        with self._lock:
            return self._tls.pending() >= size_bytes

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all buffers in order.

        Raises:
            PeerGoneError: a broken connection.
            PeerSilentError: the peer took nothing within the time limit.
        """
        for part in _parts(buffers):
            rest = memoryview(part)
            while rest:
                rest = rest[self._write(rest) :]

    def _write(self, part: memoryview) -> int:
        """Write bytes; return the number of those that are written, and need not be written again."""
        try:
            with self._lock:
                return self._tls.send(part)
        except OSError as error:
            self._wait_or_raise(error, self._send_s, "took nothing within the time limit")
            return 0

    def send_now(self, data: Buffer) -> bool:
        """Send bytes without waiting; return False if the peer does not take them all."""
        with self._lock, suppress(OSError):
            return self._tls.send(data) == len(data)
        return False

    def shut_down(self, how: int = socket.SHUT_RDWR) -> None:
        """Shut the connection down, and wake threads that are blocked on it; no effect if it has ended."""
        # `SSLSocket.shutdown` also removes the encryption: other threads would receive ciphertext as data.
        with suppress(OSError):  # no longer connected, as intended
            socket.socket.shutdown(self._tls, how)

    def close(self) -> None:
        """Close the socket, after the TLS message that ends our stream."""
        # `shut_down` does not send this `close_notify`: after it, Python can no longer receive.
        with self._lock:
            with suppress(OSError, ValueError):
                self._tls.unwrap()
            super().close()

    def _wait_or_raise(self, error: OSError, limit_s: float | None, silence: str) -> None:
        """Wait for the socket if OpenSSL needs it, at most for `limit_s`; otherwise raise our error."""
        if isinstance(error, ssl.SSLWantReadError):
            events = select.POLLIN
        elif isinstance(error, ssl.SSLWantWriteError):
            events = select.POLLOUT
        elif isinstance(error, ssl.SSLError):
            problem = explain(error, self._host)
            if problem is not None:
                raise TlsError(f"TLS: {problem}") from None
            reason = (error.reason or error.strerror or "unknown").lower().replace("_", " ")
            raise PeerGoneError(f"the connection broke ({reason})") from None
        else:
            raise PeerGoneError(f"the connection broke ({error.strerror or error})") from None
        poller = select.poll()
        try:
            poller.register(self._tls, events)
        except ValueError:  # another thread has closed it
            raise PeerGoneError("the connection was closed") from None
        if not poller.poll(None if limit_s is None else max(0.0, limit_s) * 1000):
            self._time_out(silence)


def _parts(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the bytes of buffers in parts for single writes: small ones joined, large ones divided."""
    joined = bytearray()
    for buffer in buffers:
        view = memoryview(buffer)
        if not view.nbytes:
            continue
        if len(joined) + view.nbytes <= _JOINED_BYTES:
            joined += view.cast("B")
            continue
        if joined:
            yield joined
            joined = bytearray()
        view = view.cast("B")
        for start in range(0, view.nbytes, _WRITE_BYTES):
            yield view[start : start + _WRITE_BYTES]
    if joined:
        yield joined
