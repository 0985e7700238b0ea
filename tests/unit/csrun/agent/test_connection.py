"""The launcher's end of a connection whose agent has ended: its last messages must still arrive."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cs_toolkit.security.certificates import create_pinned_context
from cs_toolkit.security.tls_connection import connect_pinned
from csrun.agent.connection import Connection
from csrun.agent.protocol import Credit, Ended, Gone, Message, Output
from tests.processes import wait_until

LAST = [Output(b"x" * 20_000), Ended(3, would_repeat=False), Gone()]
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@contextmanager
def ended_agent(*, encrypted: bool, garbage: bytes = b"") -> Iterator[Connection]:
    """Return the launcher's end; the agent has sent its last messages, and then broken the connection.

    Closing with unread bytes, a last Credit for example, breaks it in the same way. `garbage` comes before.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        if encrypted:
            context, digest = create_pinned_context("job")
            with ThreadPoolExecutor(1) as pool:
                connecting = pool.submit(connect_pinned, address, 10.0, digest)
                accepted: socket.socket = context.wrap_socket(server.accept()[0], server_side=True)
                sock = connecting.result().detach()
        else:
            sock = socket.create_connection(address)
            accepted = server.accept()[0]
    launcher, agent = Connection(accepted), Connection(sock)
    for message in LAST:
        agent.send(message)
    wait_until(lambda: not agent.unsent_bytes)
    os.write(sock.fileno(), garbage)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    agent.close()
    yield launcher
    launcher.close()


def receive_all(connection: Connection) -> list[Message]:
    messages: list[Message] = []
    wait_until(lambda: messages.extend(connection.receive()) or not connection.is_open())
    return messages


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_last_messages_arrive_before_the_reset(encrypted: bool) -> None:
    with ended_agent(encrypted=encrypted) as launcher:
        assert receive_all(launcher) == LAST


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_send_that_fails_loses_no_message_that_has_come(encrypted: bool) -> None:
    with ended_agent(encrypted=encrypted) as launcher:
        launcher.send(Credit(1))
        launcher.send(Credit(2))
        assert launcher.is_open()
        assert receive_all(launcher) == LAST
        launcher.send(Credit(3))
        assert not launcher.unsent_bytes


def test_the_messages_before_damaged_bytes_count() -> None:
    with ended_agent(encrypted=True, garbage=bytes(100)) as launcher:
        assert receive_all(launcher) == LAST
