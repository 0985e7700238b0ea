"""A group of CS systems on several hosts: its file, the leader, which starts wafers, and the members."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from cs_system.address import is_loopback
from cs_system.errors import BadOptionError, GroupError, PortInUseError
from cs_system.security import check_system_peer, client_credentials, internal_credentials
from cs_system.swarmx.hosts import RunHosts, WaferProcess
from cs_system.swarmx.protocol import HANDSHAKE_S, Channel, admit_member, join_leader, run_token
from cs_toolkit.files import parse_json, replace_file
from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.network.connection import Connection, listen, shut_down
from cs_toolkit.security.acceptor import Acceptor
from cs_toolkit.security.identity import CERTS_VARIABLE
from cs_toolkit.security.proofs import new_nonce
from cs_toolkit.security.tls import Credentials, CredentialsError
from cs_toolkit.security.tls_connection import TlsError, connect

log = logging.getLogger("cs_system.server")

_BACKLOG = 64

# How long a run waits for a lost member to come back.
_REJOIN_TIMEOUT_S = 5.0

# More than the 5 s that a member may take to end a wafer.
_END_TIMEOUT_S = 7.0

JOIN_TIMEOUT_S = 120.0
_POLL_S = 0.1


@dataclass(frozen=True)
class GroupConfig:
    """A group whose systems are on several hosts.

    Attributes:
        count: Number of systems, including the leader.
        number: Number of the process in its Slurm step; 0 leads.
        file: Written by the leader, read by the others.
        step_nodes: Number of nodes of the Slurm step; 0 if there is none.
    """

    count: int
    number: int
    file: Path
    step_nodes: int = 0


@dataclass(frozen=True)
class GroupFile:
    """The content of the group's file.

    Attributes:
        host, port: Where the leader waits for the others.
        token: Secret of the group: a process that knows it may join, and is obeyed.
        encrypted: The leader uses TLS.
    """

    host: str
    port: int
    token: str
    encrypted: bool = False

    def write(self, file: Path) -> None:
        """Write the file, readable by the user only.

        Raises:
            BadOptionError: the file cannot be written.
        """
        try:
            replace_file(file, json.dumps(asdict(self)) + "\n", 0o600)
        except OSError as error:
            raise BadOptionError(
                f"--group-file={file}: cannot be written: {error.strerror}; name a file in a directory that "
                "all hosts of the group share"
            ) from error

    @classmethod
    def read(cls, file: Path) -> GroupFile:
        """Read the file.

        Raises:
            OSError: the file cannot be read; the leader may not have written it yet.
            GroupError: it has another content.
        """
        text = file.read_bytes()
        try:
            fields = parse_json(text)
            host, port, token = str(fields["host"]), int(fields["port"]), str(fields["token"])
            return cls(host, port, token, fields["encrypted"] is True)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise GroupError(f"{file}: this is not the file of a group of CS systems") from error


def find_group(wafers: int, file: Path | None, environment: Mapping[str, str]) -> GroupConfig | None:
    """Return the group that `cs_system serve` belongs to; None if all its systems are on this machine.

    Args:
        wafers: Number of systems in the group, each with one wafer.
        file: The group's file, if the user names one.
        environment: Environment, with Slurm's variables in a task of a step.

    Raises:
        BadOptionError: the numbers of systems and tasks differ, or a single system was given a file.
    """
    if wafers == 1:
        if file is not None:
            raise BadOptionError(f"--group-file={file}: expected --num-csx=2 or more with it, got 1")
        return None
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks == 1:
        return None if file is None else GroupConfig(wafers, 0, file)
    if tasks != wafers:
        raise BadOptionError(
            f"--num-csx={wafers} in a Slurm step of {tasks} tasks: each task is a CS system of the group; "
            f"give --num-csx={tasks}, or srun --ntasks={wafers} (--ntasks=1: all on one machine)"
        )
    name = f"cs_group-{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}.json"
    nodes = int(environment["SLURM_STEP_NUM_NODES"])
    return GroupConfig(wafers, int(environment["SLURM_PROCID"]), file or Path(name), nodes)


class GroupLeader:
    """The leader's host pool: a run has its first wafer on this machine, the others on the members' hosts.

    Args:
        config: The group, whose file is written.
        host: Address to listen on, on any free port.
        name: The host that the others use to connect.

    Raises:
        PortInUseError: it cannot be listened on.
        BadOptionError: the file cannot be written.
    """

    def __init__(self, config: GroupConfig, host: str, name: str) -> None:
        self._config, self._host = config, host
        self._token = secrets.token_hex(32)
        self._credentials = internal_credentials(host)
        self._refusals = LineLimiter(log)
        self._changed = threading.Condition()
        self._members: list[_RemoteMember] = []
        try:
            self._listener = listen(host, 0, _BACKLOG)
        except OSError as error:
            raise PortInUseError.at(host, 0, "--host", error.strerror or str(error)) from error
        try:
            port, encrypted = self._listener.getsockname()[1], self._credentials is not None
            GroupFile(name, port, self._token, encrypted).write(config.file)
        except BaseException:
            self._listener.close()
            raise
        self._acceptor = Acceptor(self._listener, self._credentials, self._serve_member, self._refusals)
        threading.Thread(target=self._acceptor.run, daemon=True).start()
        if not is_loopback(host):
            # JAX has no option for it: gloo and the coordination service use plain TCP.
            log.warning(
                "the sums over the systems of the group are not encrypted%s: use a private network for them",
                "" if self._credentials is None else ", unlike all other connections",
            )
        log.info("waiting for %d more CS systems of the group: %s", config.count - 1, config.file)

    @property
    def is_complete(self) -> bool:
        """True if all systems of the group have joined."""
        return len(self._members) >= self._config.count - 1

    def missing(self, count: int) -> GroupError:
        """Return the error for systems that have not joined."""
        joined = ["this one", *(member.host for member in self._members)]
        return GroupError(
            f"{len(joined)} of {count} CS systems of the group have joined ({', '.join(joined)}); look at "
            "the logs of the others, and start them again (`cs_system member --group-file=FILE`, or the "
            "Slurm step)"
        )

    def gather(self, count: int) -> RunHosts:
        """Return the hosts for a run with this number of wafers; wait a moment for lost members."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._members) >= count - 1, _REJOIN_TIMEOUT_S):
                raise self.missing(count)
            members = sorted(self._members, key=lambda member: member.number)[: count - 1]
        # This machine may have several addresses: take the one that a member has used.
        own_host, encrypted = members[0].channel.own_host, self._credentials is not None
        run = new_nonce()
        return RunHosts(self._host, own_host, members, encrypted, run, run_token(self._token, run))

    def close(self) -> None:
        """Dismiss the members, and remove the file."""
        _remove(self._config.file)
        shut_down(self._listener)
        self._listener.close()
        with self._changed:
            members, self._members = self._members, []
        for member in members:
            with contextlib.suppress(ConnectionError):
                member.channel.send("bye")
            member.channel.close()

    # Threads

    def _serve_member(self, connection: Connection, address: str) -> None:
        try:
            connection.handshake(HANDSHAKE_S)
            check_system_peer(connection)
            channel = Channel(connection)
            host, number = admit_member(channel, self._token)
        except (OSError, TlsError) as error:
            if self._acceptor.prove(connection):
                self._refusals.log(logging.WARNING, "%s is not a member of the group: %s", address, error)
            connection.close()
            return
        self._acceptor.prove(connection)
        member = _RemoteMember(channel, host, number)
        with self._changed:
            self._members.append(member)
            self._changed.notify_all()
            log.info("CS system %d of %d: %s", len(self._members) + 1, self._config.count, member.host)
            if self.is_complete and self._config.step_nodes:
                _remove(self._config.file)  # tasks of a Slurm step do not rejoin
        try:
            while True:
                member.handle(channel.receive())
        except ConnectionError as error:
            member.mark_lost()
            with self._changed:
                if member in self._members:
                    self._members.remove(member)
                    log.error("the CS system on %s has gone: %s", member.host, error)
        channel.close()


class _RemoteMember:
    """A member, and the wafer on its host, of which there is one at a time."""

    exit_code = None

    def __init__(self, channel: Channel, host: str, number: int) -> None:
        self.channel, self.host, self.number = channel, host, number
        self._run = ""
        self._ended, self._is_lost = threading.Event(), False

    def handle(self, message: dict[str, Any]) -> None:
        """Handle a message of the member."""
        if message["kind"] == "ended" and message.get("run") == self._run:
            self._ended.set()

    def mark_lost(self) -> None:
        """Record that the host is gone, and the wafer with it."""
        self._run, self._is_lost = "", True
        self._ended.set()

    def start(self, port: int, run: str, rank: int) -> _RemoteMember:
        """Start a wafer on the host.

        Raises:
            GroupError: the host is gone.
        """
        self._run = run
        self._ended.clear()
        with contextlib.suppress(ConnectionError):
            self.channel.send("start", port=port, run=run, rank=rank)
            # A connection that the member has just closed still takes a message.
            if not self._is_lost:
                return self
        raise GroupError(f"the CS system on {self.host} has gone; start the job again")

    @property
    def has_ended(self) -> bool:
        """True if the wafer has ended, or its host is gone."""
        return self._ended.is_set()

    def kill(self) -> None:
        """End the wafer without waiting."""
        with contextlib.suppress(ConnectionError):
            self.channel.send("end")

    def end(self) -> None:
        """End the wafer, and wait until it has ended."""
        with contextlib.suppress(ConnectionError):
            self.channel.send("end")
            self._ended.wait(_END_TIMEOUT_S)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()


class _SignalError(Exception):
    """Raised by the handler of SIGTERM and SIGINT."""

    def __init__(self, number: int) -> None:
        self.code = 130 if number == signal.SIGINT else 0


def run_member(file: Path, number: int = 1, timeout_s: float = JOIN_TIMEOUT_S) -> int:
    """Be a member of a group until its leader ends, or SIGTERM or SIGINT arrives.

    Args:
        file: The group's file.
        number: Number that determines the order of the members.
        timeout_s: How long to wait for the leader.

    Returns:
        The exit code: 0 at the leader's end and after SIGTERM, 130 after SIGINT.

    Raises:
        GroupError: there is no leader, it refuses this host, or its connection broke.
    """

    def stop(number: int, _: object) -> NoReturn:
        raise _SignalError(number)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    wafer = _CurrentWafer()
    try:
        channel, group = join_group(file, number, timeout_s)
        leader = group.host
        log.info("a member of the group of CS systems that %s leads", leader)
        try:
            _follow(channel, group, wafer)
        except ConnectionError as error:
            raise GroupError(
                f"the CS system at {leader}, which leads the group, has gone: {error}; start it again, and "
                "its members"
            ) from error
        log.info("the group has ended")
    except _SignalError as signaled:
        return signaled.code
    finally:
        # A further signal must not interrupt the end of the wafer.
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        wafer.end(0.0)
    return 0


def join_group(file: Path, number: int, timeout_s: float) -> tuple[Channel, GroupFile]:
    """Connect to the leader; return the channel and the content of the group's file.

    Raises:
        GroupError: there is no leader in time, it refuses this host, or a certificate is not accepted.
    """
    # The file is read in every attempt, because a requeued job may have left an old one with the same name.
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            group = GroupFile.read(file)
            credentials = _member_credentials(group)
            channel = Channel(connect((group.host, group.port), HANDSHAKE_S, credentials))
            try:
                join_leader(channel, group.token, socket.gethostname(), number)
            except BaseException:
                channel.close()
                raise
            return channel, group
        except TlsError as error:
            raise GroupError(f"the leader of the group, {group.host}: {error}") from None
        except OSError as error:
            problem = f"{file}: {error.strerror or error}"
        if time.monotonic() > deadline:
            raise GroupError(
                f"no group of CS systems to join within {timeout_s:g} s: {problem}; look at the log of its "
                "leader (`cs_system serve --num-csx=N`); --group-file must be a file that all hosts share"
            )
        time.sleep(_POLL_S)


def _member_credentials(group: GroupFile) -> Credentials | None:
    """Return the credentials of a member; None if the leader uses no TLS.

    Raises:
        GroupError: there are none, or they are those of a user.
    """
    if not group.encrypted:
        return None
    try:
        credentials = client_credentials()
    except CredentialsError as error:
        raise GroupError(str(error)) from None
    if credentials is None:
        raise GroupError(
            f"the CS system at {group.host}, which leads the group, uses TLS: expected the certificate of "
            f"this system (--certs=DIR or {CERTS_VARIABLE})"
        )
    from cs_toolkit.security.certificates import CertificateError, read_certificate  # X.509, for TLS only

    try:
        identity = read_certificate(credentials.certificate).identity
    except CertificateError as error:
        raise GroupError(str(error)) from None
    if identity.role != "system":  # the leader only closes the connection
        raise GroupError(
            f"{credentials.certificate}: got the certificate of {identity}, expected that of a CS system "
            "(`cs_system certs issue --system=HOST`)"
        )
    return credentials


def _follow(channel: Channel, group: GroupFile, wafer: _CurrentWafer) -> None:
    """Follow the leader's messages until it ends; raises ConnectionError if it is lost."""
    while True:
        message = channel.receive()
        if message["kind"] == "start":
            run = message["run"]
            leader, token = (group.host, message["port"]), run_token(group.token, run)
            process = wafer.start(leader, token, message["rank"], group.encrypted)
            threading.Thread(target=_report, args=(process, channel, run), daemon=True).start()
        elif message["kind"] == "end":
            wafer.end()
        elif message["kind"] == "bye":
            return


def _report(process: WaferProcess, channel: Channel, run: str) -> None:
    """Report to the leader when a wafer has ended."""
    process.wait()
    with contextlib.suppress(ConnectionError):
        channel.send("ended", run=run)


class _CurrentWafer:
    """The wafer of the current run."""

    def __init__(self) -> None:
        self._process: WaferProcess | None = None

    def start(self, leader: tuple[str, int], token: str, rank: int, encrypted: bool) -> WaferProcess:
        self.end(0.0)
        self._process = WaferProcess(leader, token, rank, encrypted)
        return self._process

    def end(self, timeout_s: float = 5.0) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(timeout_s)
