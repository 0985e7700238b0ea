"""A group whose systems are on several hosts, as processes that know each other only by the group's file."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cs_system.errors import BadOptionError, GroupError, WaferLostError
from cs_system.memoryx.config import MemoryxConfig
from cs_system.swarmx import membership, protocol
from cs_system.swarmx.group import GroupEngine
from cs_system.swarmx.hosts import HostPool
from cs_system.swarmx.membership import (
    GroupConfig,
    GroupFile,
    GroupLeader,
    _RemoteMember,
    find_group,
    join_group,
)
from cs_system.swarmx.protocol import Channel, admit_member, join_leader
from cs_toolkit.network.connection import Connection, PeerGoneError, connect, listen
from tests.certificates import SiteCertificates
from tests.processes import is_running, wait_until
from tests.systems import parts_of

from .streamed_steps import Streamed

LIMIT_S = 60.0
STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "1",
}


@contextmanager
def member(file: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "cs_system", "member", f"--group-file={file}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[GroupLeader]:
    members = GroupLeader(GroupConfig(2, 0, tmp_path / "group.json"), "127.0.0.1", "127.0.0.1")
    yield members
    members.close()


@contextmanager
def group(stack: Streamed, host_pool: HostPool | None, tmp_path: Path) -> Iterator[GroupEngine]:
    place = MemoryxConfig(None, tmp_path)
    engine = GroupEngine(stack.compiled, stack.schedule, stack.data, place, 2, host_pool)
    try:
        engine.put_state(stack.state)
        yield engine
    finally:
        engine.free()


def train(engine: GroupEngine, stack: Streamed, count: int) -> dict[str, bytes]:
    for batch in stack.batches[:count]:
        engine.dispatch([array[None] for array in batch], 0, 1).wait()
    return {name: np.asarray(value).tobytes() for name, value in engine.fetch_state().items()}


def test_a_member_computes_run_after_run_also_when_its_wafer_was_killed(
    stack: Streamed, leader: GroupLeader, tmp_path: Path
) -> None:
    with group(stack, None, tmp_path) as engine:
        expected = train(engine, stack, 3)
    with member(tmp_path / "group.json") as host:
        wait_until(lambda: leader.is_complete)
        with group(stack, leader, tmp_path) as engine:
            assert train(engine, stack, 3) == expected
            (wafer,) = parts_of(host.pid)
            os.kill(wafer, signal.SIGKILL)
            name = socket.gethostname()
            with pytest.raises(WaferLostError, match=rf"CS system 2 of 2 \({name}\) has gone; .* last check"):
                train(engine, stack, 1)
        assert not parts_of(host.pid)
        with group(stack, leader, tmp_path) as engine:
            assert train(engine, stack, 3) == expected
        leader.close()
        assert host.wait(LIMIT_S) == 0


def test_a_lost_host_is_named_and_missing_until_it_joins_again(
    stack: Streamed, leader: GroupLeader, tmp_path: Path
) -> None:
    with member(tmp_path / "group.json") as host:
        wait_until(lambda: leader.is_complete)
        with group(stack, leader, tmp_path) as engine:
            (wafer,) = parts_of(host.pid)
            host.kill()
            with pytest.raises(
                WaferLostError, match=rf"CS system 2 of 2 \({socket.gethostname()}\) has gone"
            ):
                train(engine, stack, len(stack.batches))
    wait_until(lambda: not is_running(wafer))
    with pytest.raises(GroupError, match=r"1 of 2 CS systems of the group have joined \(this one\)"):
        leader.gather(2)
    with member(tmp_path / "group.json") as host:
        wait_until(lambda: leader.is_complete)
        host.terminate()
        assert host.wait(LIMIT_S) == 0


def test_a_host_that_is_lost_while_a_run_starts(stack: Streamed, leader: GroupLeader, tmp_path: Path) -> None:
    with member(tmp_path / "group.json") as host:
        wait_until(lambda: leader.is_complete)
        host.send_signal(signal.SIGSTOP)
        lost = threading.Timer(1.0, host.kill)
        lost.start()
        with pytest.raises(WaferLostError, match="CS system 2 of 2"), group(stack, leader, tmp_path):
            pass
        lost.join()


def test_a_host_that_is_lost_just_before_a_run_is_named() -> None:
    """Its connection takes one more message."""
    with socket.create_server(("127.0.0.1", 0)) as listener, connect(listener.getsockname()) as connection:
        lost = _RemoteMember(Channel(connection), "host7", 1)
        lost.mark_lost()
        with pytest.raises(GroupError, match="the CS system on host7 has gone; start the job again"):
            lost.start(1234, "run", 1)


def test_a_leader_accepts_members_after_a_connection_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Listener(socket.socket):
        """Its first connection is aborted before it is accepted."""

        has_failed = False

        def accept(self) -> tuple[socket.socket, Any]:
            if not self.has_failed:
                self.has_failed = True
                raise OSError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
            return super().accept()

    def listen_badly(host: str, port: int, backlog: int) -> socket.socket:
        return Listener(fileno=listen(host, port, backlog).detach())

    monkeypatch.setattr(membership, "listen", listen_badly)
    leader = GroupLeader(GroupConfig(2, 0, tmp_path / "group.json"), "127.0.0.1", "127.0.0.1")
    channel, _ = join_group(tmp_path / "group.json", 1, LIMIT_S)
    wait_until(lambda: leader.is_complete)
    assert "cannot accept a connection: [Errno 103]" in caplog.text
    leader.close()
    channel.close()


def test_a_peer_without_the_token_is_refused(leader: GroupLeader, tmp_path: Path) -> None:
    file = tmp_path / "group.json"
    assert file.stat().st_mode & 0o777 == 0o600
    meeting = GroupFile.read(file)
    with socket.create_connection((meeting.host, meeting.port)) as stranger:
        stranger.sendall(b'{"kind": "hello"}\n')
        assert b"refused" in stranger.makefile("rb").readline()
    with socket.create_connection((meeting.host, meeting.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(100) == b""
    with socket.create_connection((meeting.host, meeting.port), timeout=10.0) as stranger:
        stranger.sendall(b"[" * 4000 + b"\n")
        assert stranger.recv(100) == b""
    assert not leader.is_complete
    # A file of another group, which an earlier run has left, is read again until it is replaced.
    GroupFile(meeting.host, meeting.port, "0" * 64).write(file)
    with member(file):
        time.sleep(1.0)
        assert not leader.is_complete
        meeting.write(file)
        wait_until(lambda: leader.is_complete)


def test_idle_peers_keep_no_member_out(
    leader: GroupLeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HANDSHAKE_S", 60.0)
    file = tmp_path / "group.json"
    group = GroupFile.read(file)
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((group.host, group.port)))
        channel, _ = join_group(file, 1, timeout_s=20.0)
        wait_until(lambda: leader.is_complete)
        channel.close()


@contextmanager
def joined() -> Iterator[tuple[Channel, Channel, socket.socket, socket.socket]]:
    """Leader and member after their handshake, and the ends of the network between them."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        sockets = []
        for _ in range(2):
            near = stack.enter_context(socket.create_connection(listener.getsockname()))
            sockets += [near, stack.enter_context(listener.accept()[0])]
        near_leader, leader_end, member_end, near_member = sockets
        leader, member = Channel(Connection(leader_end)), Channel(Connection(member_end))
        with ThreadPoolExecutor(2) as pool:
            admitting = pool.submit(admit_member, leader, "token")
            joining = pool.submit(join_leader, member, "token", "host", 1)
            for source, sink in ((near_member, near_leader), (near_leader, near_member)) * 2:
                sink.sendall(source.makefile("rb").readline())
            assert (joining.result(), admitting.result()) == (None, ("host", 1))
        yield leader, member, near_leader, near_member


def test_a_message_that_was_changed_or_repeated_in_transit_is_refused() -> None:
    with joined() as (leader, member, near_leader, near_member):
        leader.send("start", port=7, run="name", rank=1)
        line = near_leader.makefile("rb").readline()
        near_member.sendall(line)
        assert member.receive() == {"kind": "start", "port": 7, "run": "name", "rank": 1}
        near_member.sendall(line)
        with pytest.raises(PeerGoneError, match="changed or repeated in transit"):
            member.receive()
    for at in range(0, len(line) - 1, 7):
        with joined() as (leader, member, near_leader, near_member):
            leader.send("start", port=7, run="name", rank=1)
            changed = bytearray(near_leader.makefile("rb").readline())
            changed[at] ^= 1
            near_member.sendall(changed)
            with pytest.raises(PeerGoneError):
                member.receive()
    with joined() as (leader, member, near_leader, near_member):
        near_member.sendall(b'{"kind":"bye"}\n')
        with pytest.raises(PeerGoneError, match="changed or repeated in transit"):
            member.receive()
        member.send("ended", run="name")
        near_leader.sendall(near_member.makefile("rb").readline().replace(b"name", b"game"))
        with pytest.raises(PeerGoneError, match="changed or repeated in transit"):
            leader.receive()


def test_a_member_reports_a_lost_leader(leader: GroupLeader, tmp_path: Path) -> None:
    with member(tmp_path / "group.json") as host:
        wait_until(lambda: leader.is_complete)
        leader.gather(2).members[0].channel.close()  # type: ignore[attr-defined]
        _, log = host.communicate(timeout=LIMIT_S)
    assert host.returncode == 1
    assert "the CS system at 127.0.0.1, which leads the group, has gone" in log


def test_the_group_of_a_slurm_step() -> None:
    assert find_group(4, None, {}) is None
    assert find_group(1, None, STEP) is None
    assert find_group(4, None, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert find_group(4, None, STEP) == GroupConfig(4, 1, Path("cs_group-12.3.json"), 2)
    assert find_group(4, Path("mine"), {}) == GroupConfig(4, 0, Path("mine"))
    with pytest.raises(
        BadOptionError, match=r"--num-csx=3 in a Slurm step of 4 tasks: .*--num-csx=4, or srun"
    ):
        find_group(3, None, STEP)
    with pytest.raises(BadOptionError, match="--num-csx=2 or more with it, got 1"):
        find_group(1, Path("mine"), {})


@pytest.mark.parametrize(
    ("flags", "environment", "fault"),
    [
        ((), {"SLURM_STEP_NUM_TASKS": "2"}, "--host=127.0.0.1: only this machine reaches it"),
        (
            ("--host=0.0.0.0", "--insecure", "--memoryx=127.0.0.1:9002", "--group-file=group.json"),
            {},
            "--memoryx=127.0.0.1: only this machine reaches it",
        ),
        (("--group-file=/nowhere/group.json",), {}, "--group-file=/nowhere/group.json: cannot be written"),
    ],
)
def test_addresses_that_other_hosts_cannot_reach(
    flags: tuple[str, ...], environment: dict[str, str], fault: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "cs_system", "serve", "--num-csx=2", "--port=0", *flags]
    step = {**STEP, "SLURM_PROCID": "0", **environment} if environment else {}
    done = subprocess.run(
        command, env={**os.environ, **step}, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 2
    assert fault in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_member_with_the_certificate_of_a_user_ends_immediately(tmp_path, monkeypatch):
    user = SiteCertificates(tmp_path / "site").user
    monkeypatch.setenv("CS_CERTS", str(user.directory))
    GroupFile("127.0.0.1", 1, "token", encrypted=True).write(tmp_path / "group.json")
    with pytest.raises(GroupError, match="got the certificate of user alice, expected that of a CS system"):
        join_group(tmp_path / "group.json", 1, timeout_s=5.0)
