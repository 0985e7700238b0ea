"""Connections of peers that prove who they are, and of those that do not."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress

import pytest

from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.network.connection import Connection, PeerGoneError
from cs_toolkit.security.acceptor import Acceptor

LINES = LineLimiter(logging.getLogger("test"))


def test_only_peers_that_have_proved_nothing_are_dropped() -> None:
    leave = threading.Event()

    def serve(connection: Connection, peer: str) -> None:
        buffer = memoryview(bytearray(1))
        with connection, suppress(PeerGoneError):
            if connection.receive_some(buffer) and buffer == b"p":
                assert accepting.prove(connection)
                connection.send([b"!"])
                leave.wait(30)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = Acceptor(listener, None, serve, LINES, max_unproved=2)
        threading.Thread(target=accepting.run, daemon=True).start()
        address = listener.getsockname()
        with socket.create_connection(address, timeout=10) as first:
            first.sendall(b"p")
            assert first.recv(1) == b"!"
            idle = [socket.create_connection(address, timeout=10) for _ in range(6)]
            assert [sock.recv(1) for sock in idle[:4]] == [b""] * 4
            with socket.create_connection(address, timeout=10) as last:
                last.sendall(b"p")
                assert last.recv(1) == b"!"
            for sock in (first, idle[5]):
                sock.setblocking(False)
                with pytest.raises(BlockingIOError):
                    sock.recv(1)
            for sock in idle:
                sock.close()
        leave.set()
        listener.shutdown(socket.SHUT_RDWR)
