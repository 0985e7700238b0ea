"""Accepts connections, and limits those whose peers have not proved who they are."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.network.connection import Connection, accept_all, name_of
from cs_toolkit.security.tls import Credentials
from cs_toolkit.security.tls_connection import accept

# Connections whose peers have not proved who they are. When one more comes, the oldest is dropped: our own
# parts prove it within milliseconds, so that idle peers cannot keep them out.
MAX_UNPROVED = 64


class Acceptor:
    """Accepts connections, and serves each in a thread.

    Args:
        listener: The listening socket.
        credentials: For TLS with the peers; None: without TLS.
        serve: Called with a connection, before the handshake of TLS, and the address of its peer. It calls
            `prove` when the peer has proved who it is, and closes the connection.
        lines: For the lines about peers, which anybody can cause.
        max_unproved: Limit of connections whose peers have not proved who they are.
    """

    def __init__(
        self,
        listener: socket.socket,
        credentials: Credentials | None,
        serve: Callable[[Connection, str], None],
        lines: LineLimiter,
        max_unproved: int = MAX_UNPROVED,
    ) -> None:
        self._listener, self._credentials, self._serve = listener, credentials, serve
        self._lines, self._max_unproved = lines, max_unproved
        # Without descriptors, every attempt fails until some are free.
        self._error_lines = LineLimiter(lines.logger, per_minute=1)
        self._lock = threading.Lock()
        # In the order of their arrival.
        self._unproved: dict[Connection, str] = {}

    def run(self) -> None:
        """Accept connections until the listener is shut down or closed."""
        for sock, address in accept_all(self._listener, self._log_error):
            try:
                self._start(accept(sock, self._credentials), name_of(address))
            except OSError:  # the peer has disconnected already
                sock.close()

    def _log_error(self, error: OSError) -> None:
        self._error_lines.log(logging.WARNING, "cannot accept a connection: %s", error)

    def prove(self, connection: Connection) -> bool:
        """Count a connection no longer among the unproved ones; return False if it was dropped."""
        with self._lock:
            return self._unproved.pop(connection, None) is not None

    def _start(self, connection: Connection, peer: str) -> None:
        with self._lock:
            self._unproved[connection] = peer
            oldest = next(iter(self._unproved)) if len(self._unproved) > self._max_unproved else None
            name = "" if oldest is None else self._unproved.pop(oldest)
        if oldest is not None:
            self._lines.log(
                logging.WARNING,
                "dropping %s, more than %d connections prove nothing",
                name,
                self._max_unproved,
            )
            oldest.shut_down()  # its thread closes it
        try:
            threading.Thread(target=self._run, args=(connection, peer), daemon=True).start()
        except RuntimeError as error:
            self._lines.log(logging.WARNING, "dropping %s: %s", peer, error)
            self.prove(connection)
            connection.close()

    def _run(self, connection: Connection, peer: str) -> None:
        try:
            self._serve(connection, peer)
        finally:
            self.prove(connection)
