"""Admission of connections to MemoryX, and its limits."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from cs_system.errors import MemoryxError
from cs_system.memoryx.protocol import FrameChannel, admit, refuse
from cs_system.security import check_system_peer
from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.network.connection import Connection
from cs_toolkit.network.frames import FrameError
from cs_toolkit.security.acceptor import MAX_UNPROVED, Acceptor
from cs_toolkit.security.tls import Credentials
from cs_toolkit.security.tls_connection import TlsError

log = logging.getLogger("cs_system.memoryx")

# Above the number of wafers and readers of any group, and low enough for file descriptors and threads.
MAX_CONNECTIONS = 256

_HANDSHAKE_S = 10.0


class Admission:
    """Accepts connections, and serves those whose peers know the secret, each in a thread.

    Args:
        listener: The listening socket.
        secret: The secret.
        serve: Called with the channel of an admitted peer; it returns when the connection has ended.
        credentials: For TLS with the peers, which must be parts of a CS system; None: without TLS.
        handshake_s: How long a peer may take to prove that it knows the secret.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: str,
        serve: Callable[[FrameChannel], None],
        credentials: Credentials | None = None,
        handshake_s: float = _HANDSHAKE_S,
    ) -> None:
        self._secret, self._serve, self._handshake_s = secret, serve, handshake_s
        self._lock = threading.Lock()
        self._admitted = 0
        self._refusals = LineLimiter(log)
        self._acceptor = Acceptor(listener, credentials, self._admit, self._refusals, MAX_UNPROVED)

    def run(self) -> None:
        """Accept connections until the listener is shut down or closed."""
        self._acceptor.run()

    def _admit(self, connection: Connection, peer: str) -> None:
        with connection:
            try:
                connection.handshake(self._handshake_s)
                check_system_peer(connection)
                channel = admit(connection, self._secret, self._handshake_s)
            except (ConnectionError, FrameError, MemoryxError) as error:
                if self._acceptor.prove(connection):
                    self._refusals.log(logging.WARNING, "dropping %s: %s", peer, error)
                if not isinstance(error, TlsError):  # which has no channel to say more
                    refuse(connection, error)
                return
            self._acceptor.prove(connection)
            with self._lock:
                self._admitted += 1
                is_full = self._admitted > MAX_CONNECTIONS
            try:
                if is_full:
                    raise MemoryxError(f"MemoryX has {MAX_CONNECTIONS} connections, and takes no more")
                log.info("wafer connected from %s", peer)
                self._serve(channel)
                log.info("the wafer from %s has disconnected", peer)
            except MemoryxError as error:
                self._refusals.log(logging.WARNING, "dropping %s: %s", peer, error)
                with contextlib.suppress(ConnectionError):
                    channel.send_failure(error)
            finally:
                with self._lock:
                    self._admitted -= 1
