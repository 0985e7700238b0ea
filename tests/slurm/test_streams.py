"""The streams of the agents while strangers attack the launcher's port, and tasks write anything."""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cs_toolkit.security.certificates import Authority, create_authority
from cs_toolkit.security.identity import Identity
from cs_toolkit.security.tls import pinned_context
from csrun.agent.connection import Connection
from csrun.agent.protocol import Challenge, Hello, agent_proof
from tests.processes import listening_sockets, wait_until

# All bytes, a line of the length given, then lines with numbers when a file exists.
WRITE = """
import os, sys, time
os.write(1, bytes(range(256)) * 4 + b'\\x1b[2J\\xff\\xc3\\n')
piece = b'x' * 65536
for _ in range(int(sys.argv[1]) // len(piece)):
    os.write(1, piece)
os.write(1, b'\\nhalf\\n')
while not os.path.exists('go'):
    time.sleep(0.02)
os.write(1, b''.join(b'%d of %s\\n' % (n, os.environ['CSRUN_RANK'].encode()) for n in range(20_000)))
"""
LONG_BYTES = 4 << 20


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Strangers:
    """Connections to the port of a job's launcher."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._address, self._stack = ("127.0.0.1", port), stack

    def connect(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self._address, timeout=10))

    def send(self, data: bytes) -> None:
        with suppress(OSError):  # the launcher may have closed it
            self.connect().sendall(data)

    def introduce(
        self, hello: Hello, token: str, nonce: str = "", context: ssl.SSLContext | None = None
    ) -> str:
        """Send an introduction as an agent; return the nonce of the launcher, which closes the connection.

        Args:
            hello: without its proof.
            token: for the proof.
            nonce: of another connection, for which the proof was made; "" for the one of this connection.
            context: with a certificate.
        """
        agent = Connection((context or pinned_context()).wrap_socket(self.connect()))
        self._stack.callback(agent.close)
        received: list[Any] = []
        wait_until(lambda: received.extend(agent.receive()) or received)
        (challenge,) = received
        assert isinstance(challenge, Challenge)
        agent.send(replace(hello, proof=agent_proof(token, nonce or challenge.nonce, hello)))
        wait_until(lambda: received.extend(agent.receive()) or not agent.is_open())
        assert received == [challenge]
        return challenge.nonce


def test_strangers_and_odd_output_change_nothing(cluster: Any, start: Any, tmp_path: Path) -> None:
    job = start(
        cluster,
        *("--total-nodes=2", "--tasks-per-node=1", "--log-dir=logs", "--grace-period=1"),
        *(sys.executable, "-I", "-S", "-c", WRITE, str(LONG_BYTES)),
    )
    job.wait_for("chief | half", "worker 0 | half")
    ((_, port),) = set(listening_sockets(job.process.pid))
    (task, *_) = job.pids("CSRUN_RANK=1")
    environment = Path(f"/proc/{task}/environ").read_bytes().split(b"\0")
    (token,) = [entry[16:].decode() for entry in environment if entry.startswith(b"CSRUN_JOB_TOKEN=")]
    create_authority(tmp_path / "ca", "site")
    Authority(tmp_path / "ca").issue(tmp_path / "user", Identity("mallory", "user"))
    before = resident_bytes(job.process.pid)
    with ExitStack() as stack:
        strangers = Strangers(port, stack)
        hello = Hello(1, "cs-node2", 7, "1", "0", (0,), 1, "nonce", "")
        record, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            pinned_context().wrap_bio(record, outgoing).do_handshake()
        greeting = outgoing.read()
        for data in (
            os.urandom(1 << 20),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0" * 65_536,
            greeting[:50],
            greeting * 9,
        ):
            strangers.send(data)
        for _ in range(100):
            strangers.connect()
        context = pinned_context()
        context.load_cert_chain(tmp_path / "user" / "cert.pem", tmp_path / "user" / "key.pem")
        old = strangers.introduce(hello, "a guess", context=context)
        strangers.introduce(hello, token, old)  # recorded in another connection
        strangers.introduce(hello, token)  # an agent of this task is connected already
        assert resident_bytes(job.process.pid) < before + (8 << 20)
        (tmp_path / "go").touch()
        assert job.end() == 0, job.stderr
    start_of_log = bytes(range(256)) * 4 + b"\x1b[2J\xff\xc3\n" + b"x" * LONG_BYTES + b"\nhalf\n"
    for rank, (label, name) in enumerate([("chief", "chief-0.log"), ("worker 0", "worker-0.log")]):
        numbered = [f"{number} of {rank}" for number in range(20_000)]
        expected = start_of_log + "".join(f"{line}\n" for line in numbered).encode()
        assert (tmp_path / "logs" / name).read_bytes() == expected
        shown = [
            line.partition(" | ")[2] for line in job.stdout.split("\n") if line.startswith(f"{label} | ")
        ]
        assert shown[-20_000:] == numbered
        assert sum(len(line) for line in shown if set(line) == {"x"}) == LONG_BYTES
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]|\x1b(?!\[[0-9;]*m)", job.stdout)
