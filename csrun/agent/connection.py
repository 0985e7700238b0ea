"""A connection that carries the protocol's messages and never blocks."""

from __future__ import annotations

import socket
from contextlib import suppress

from csrun.agent.protocol import MAX_HEAD_BYTES, Decoder, Message, ProtocolError, encode

READ_BYTES = 262_144
DEAD_PEER_S = 15
"""So long a machine may not answer at all: one without power ends no connection."""


class Link:
    """Our end of a connection.

    Args:
        connection: a connected TCP socket; the link owns it.
        max_head_bytes: the largest head of a frame that is taken.

    Attributes:
        fault: why it is not open any more, if the other side has sent what cannot be read.
    """

    def __init__(self, connection: socket.socket, max_head_bytes: int = MAX_HEAD_BYTES) -> None:
        self._socket = connection
        self._decoder = Decoder(max_head_bytes)
        self._unsent = bytearray()
        self._open = True
        self.fault = ""
        connection.setblocking(False)
        with suppress(OSError):  # it may be broken already
            _watch_peer(connection)

    def is_open(self) -> bool:
        """False once the other side has ended it, broken it, or sent what cannot be read."""
        return self._open

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._socket.fileno()

    @property
    def unsent_bytes(self) -> int:
        """What waits until the connection takes it; call `flush` when it is writable."""
        return len(self._unsent)

    def send(self, message: Message) -> None:
        """Sends a message, or as much of it as the connection takes now."""
        if self._open:
            self._unsent += encode(message)
            self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as possible."""
        try:
            while self._unsent and self._open:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._lose()

    def receive(self) -> list[Message]:
        """The messages that have come; may leave some for the next call."""
        messages: list[Message] = []
        if not self._open:
            return messages
        try:
            data = self._socket.recv(READ_BYTES)
            for message in self._decoder.feed(data):
                messages.append(message)
        except BlockingIOError:
            return messages
        except ProtocolError as error:
            self.fault = str(error)
            self._lose()
            return messages
        except OSError:
            self._lose()
            return messages
        if not data:
            self._lose()
        return messages

    def close(self) -> None:
        """Ends the connection."""
        self._open = False
        self._socket.close()

    def _lose(self) -> None:
        self._open = False
        self._unsent.clear()


def _watch_peer(connection: socket.socket) -> None:
    """Has the kernel break the connection when the other machine does not answer any more."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_S // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, DEAD_PEER_S // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
