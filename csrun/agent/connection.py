"""Non-blocking connection for the messages of the protocol, with or without TLS."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

from cs_toolkit.network.connection import break_when_lost, set_tcp_options
from cs_toolkit.network.liveness import DEFAULT_PEER_TIMEOUT_S
from csrun.agent.protocol import MAX_HEAD_BYTES, Decoder, Message, ProtocolError, encode

READ_BYTES = 262_144

# The socket cannot take or give bytes now; the handshake of TLS takes place in the first calls.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """One end of a connection.

    Args:
        connection: a connected TCP socket, plain or with TLS; this object owns it.
        max_head_bytes: the largest accepted head of a frame.

    Attributes:
        error: of the protocol, if the connection was closed for one; else "".
    """

    def __init__(self, connection: socket.socket, max_head_bytes: int = MAX_HEAD_BYTES) -> None:
        self._socket = connection
        self._decoder = Decoder(max_head_bytes)
        self._unsent = bytearray()
        self._open = True
        self._sends = True
        self.error = ""
        connection.setblocking(False)
        with suppress(OSError):  # the peer may have closed it already
            set_tcp_options(connection)
            break_when_lost(connection, round(DEFAULT_PEER_TIMEOUT_S))

    def limit_silence(self, seconds: float) -> None:
        """Change how long the peer's machine may be silent until the connection breaks; a minute at first."""
        with suppress(OSError):
            break_when_lost(self._socket, round(seconds))

    def is_open(self) -> bool:
        """Return False once all has been received of a peer that has closed or broken the connection.

        Also after a violation of the protocol.
        """
        return self._open

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes to send; call `flush` when the socket is writable."""
        return len(self._unsent)

    def send(self, message: Message) -> None:
        """Send a message; bytes that the socket cannot take now remain for `flush`."""
        if self._open and self._sends:
            self._unsent += encode(message)
            self.flush()

    def flush(self) -> None:
        """Send as many of the remaining bytes as the socket takes."""
        try:
            while self._unsent and self._open:
                del self._unsent[: self._socket.send(self._unsent)]
        except _NOT_NOW:
            pass
        except OSError:
            # The peer may have ended after messages that have not been received: `receive` ends the
            # connection when there are no more.
            self._sends = False
            self._unsent.clear()

    def receive(self) -> list[Message]:
        """Return the messages that have arrived; some may remain for the next call."""
        messages: list[Message] = []
        if not self._open:
            return messages
        try:
            data = self._read()
            for message in self._decoder.feed(data):
                messages.append(message)
        except _NOT_NOW:
            if not self._sends:
                self._lose()
            return messages
        except ProtocolError as error:
            self.error = str(error)
            self._lose()
            return messages
        except OSError:
            self._lose()
            return messages
        if not data:
            self._lose()
        return messages

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(READ_BYTES)
        finally:
            if self._unsent:  # with TLS it may have been waiting for the peer's part of the handshake
                self.flush()
        if isinstance(self._socket, ssl.SSLSocket):
            # Each call returns one record, of at most 16 KiB. An error comes again in the next call.
            with suppress(OSError):
                while data and len(data) < READ_BYTES and (more := self._socket.recv(READ_BYTES)):
                    data += more
        return data

    def close(self) -> None:
        """Close the connection."""
        self._open = False
        self._socket.close()

    def _lose(self) -> None:
        self._open = False
        self._unsent.clear()
