"""Who is admitted at the port of the launcher, without Slurm."""

from __future__ import annotations

import resource
import selectors
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from cs_toolkit.network.frames import HeadedFrames
from cs_toolkit.security.certificates import create_pinned_context
from cs_toolkit.security.tls import pinned_context
from csrun.agent.admission import MAX_UNAUTHENTICATED_PEERS, Admission, AdmittedAgent
from csrun.agent.connection import Connection
from csrun.agent.protocol import Challenge, Heartbeat, Hello, agent_proof

TOKEN, TASKS = "the token", 2
HELLO = Hello(1, "node", 7, "12", "0", (0, 1), 2, "nonce", "")


class Port:
    """The port of a launcher, and connections to it."""

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        listener.setblocking(False)
        context, _ = create_pinned_context("job")
        self._address = listener.getsockname()
        self._selector = selector
        self.lines: list[str] = []
        self.admission = Admission(listener, context, TOKEN, TASKS, 60.0, selector, self.lines.append)
        self.sockets: list[socket.socket] = []

    def connect(self) -> socket.socket:
        self.sockets.append(socket.create_connection(self._address, timeout=10))
        return self.sockets[-1]

    def connect_agent(self) -> Connection:
        encrypted = pinned_context().wrap_socket(self.connect(), do_handshake_on_connect=False)
        encrypted.setblocking(False)
        self.sockets.append(encrypted)
        with pytest.raises(ssl.SSLWantReadError):
            encrypted.do_handshake()
        return Connection(encrypted)

    def poll(self, now_s: float = 0.0, known: tuple[int, ...] = ()) -> list[AdmittedAgent]:
        return list(self.admission.poll(now_s, known))

    def introduce(self, agent: Connection, token: str = TOKEN) -> list[AdmittedAgent]:
        """Answer the challenge, and return who is admitted then."""
        limit_s, found, has_answered = time.monotonic() + 10, list[AdmittedAgent](), False
        while agent.is_open() and not found and time.monotonic() < limit_s:
            for message in agent.receive():
                assert isinstance(message, Challenge)
                agent.send(replace(HELLO, proof=agent_proof(token, message.nonce, HELLO)))
                agent.send(Heartbeat())
                has_answered = True
            found = self.poll()
        assert has_answered
        return found


@pytest.fixture
def port() -> Iterator[Port]:
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        port = Port(listener, selector)
        yield port
        port.admission.close()
        assert [key.fileobj for key in selector.get_map().values()] == [listener]
        for sock in port.sockets:
            sock.close()


def test_an_agent_is_admitted_with_its_later_messages(port: Port) -> None:
    (found,) = port.introduce(port.connect_agent())
    assert found.hello.rank == 1
    messages = [*found.messages]
    while not messages:
        messages += found.connection.receive()
    assert messages == [Heartbeat()]
    port._selector.unregister(found.connection)
    found.connection.close()


def test_idle_peers_do_not_keep_an_agent_out(port: Port) -> None:
    idle = []
    for _ in range(4 * MAX_UNAUTHENTICATED_PEERS):
        idle.append(port.connect())
        port.poll()
    (found,) = port.introduce(port.connect_agent())
    port._selector.unregister(found.connection)
    found.connection.close()
    assert all(sock.recv(1) == b"" for sock in idle[:MAX_UNAUTHENTICATED_PEERS])  # dropped without a word


def test_other_peers_are_dropped(port: Port) -> None:
    assert port.introduce(port.connect_agent(), token="a guess") == []
    late = port.connect()
    port.poll()
    foreign = port.connect()
    foreign.sendall(b"GET / HTTP/1.1\r\n\r\n")
    foreign.setblocking(False)
    limit_s = time.monotonic() + 10
    while time.monotonic() < limit_s:
        port.poll(20.0)
        with suppress(BlockingIOError, ConnectionResetError):
            if not foreign.recv(4096):
                break
    assert len(port._selector.get_map()) == 2
    assert port.poll(31.0) == []
    assert late.recv(1) == b""


def test_without_descriptors_the_launcher_waits_and_accepts_later(port: Port) -> None:
    agent = port.connect_agent()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (agent.fileno(), hard))
    try:
        for now_s in (0.0, 0.1, 0.6):
            assert port.poll(now_s) == []
            assert not port._selector.select(0.0), "it would be tried all the time"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (line,) = port.lines
    assert line.startswith("cannot accept connections of tasks: Too many open files; they are accepted as")
    port.poll(2.0)
    (found,) = port.introduce(agent)
    port._selector.unregister(found.connection)
    found.connection.close()


def test_an_agent_of_another_version_is_reported_once(port: Port) -> None:
    for _ in range(2):
        agent = port.connect_agent()
        limit_s = time.monotonic() + 10
        while not agent.receive() and time.monotonic() < limit_s:
            port.poll()
        agent._socket.sendall(HeadedFrames.encode(b'{"type":"hello","version":9}'))
        while agent.is_open() and time.monotonic() < limit_s:
            port.poll()
            agent.receive()
    (line,) = port.lines
    assert line.startswith(
        "a connection to the port of this job was refused: got a frame that cannot be read"
    )
    assert line.endswith("use the same version on all nodes")
