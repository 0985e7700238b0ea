"""The hosts on which the wafers of a run are started: this machine, or those of the members of a group."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cs_system.processes import ChildProcess

_LOOPBACK = "127.0.0.1"


class Wafer(Protocol):
    """A wafer that has been started."""

    @property
    def host(self) -> str:
        """Name of its machine in messages; empty: this one."""
        ...

    @property
    def has_ended(self) -> bool:
        """True if it has ended, or its machine is gone."""
        ...

    @property
    def exit_code(self) -> int | None:
        """Exit code of a wafer that has ended, -N for signal N; None if it is not known."""
        ...

    def end(self) -> None:
        """End it, and wait until it has ended."""
        ...

    def kill(self) -> None:
        """Kill it without waiting."""
        ...


class Member(Protocol):
    """A host of the group."""

    def start(self, port: int, run: str, rank: int) -> Wafer:
        """Start a wafer there, which connects to `port` of the leader and derives the secret of the run."""
        ...


@dataclass(frozen=True)
class RunHosts:
    """The hosts of a run.

    Attributes:
        listen: Address of this machine to listen on.
        address: The address under which all hosts reach it.
        members: The other hosts, with a wafer each; none: all wafers are on this machine.
        encrypted: Wafers connect with TLS.
        run: Name of the run, from which members derive its secret.
        token: The secret of the run.
    """

    listen: str = _LOOPBACK
    address: str = _LOOPBACK
    members: Sequence[Member] = ()
    encrypted: bool = False
    run: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def start(self, port: int, count: int) -> Iterator[Wafer]:
        """Start `count` wafers, in the order of their ranks; they connect to `port`."""
        leader = self.address, port
        yield WaferProcess(leader, self.token, 0, self.encrypted)
        for rank in range(1, count):
            if self.members:
                yield self.members[rank - 1].start(port, self.run, rank)
            else:
                yield WaferProcess(leader, self.token, rank, self.encrypted)


class HostPool(Protocol):
    """The hosts that a CS system has for its wafers."""

    def gather(self, count: int) -> RunHosts:
        """Return the hosts for a run with this number of wafers.

        Raises:
            GroupError: some are missing.
        """
        ...


class LocalHost:
    """The host pool of a system without a group: all wafers are processes on this machine."""

    def gather(self, count: int) -> RunHosts:
        """Return this machine."""
        return RunHosts()


class WaferProcess(ChildProcess):
    """A wafer of a group on this machine; it ends with the connection to its system, and with this process.

    Args:
        leader: Host and port where the CS system waits for its wafers.
        token: Secret of the run.
        rank: Rank of the wafer in its group.
        encrypted: It connects with TLS.

    Attributes:
        host: Empty: it is on this machine.
    """

    host = ""

    def __init__(self, leader: tuple[str, int], token: str, rank: int, encrypted: bool = False) -> None:
        super().__init__(f"cs_wafer_{rank}", run_wafer, [*leader, token, rank, encrypted])


def run_wafer(host: str, port: int, token: str, rank: int, encrypted: bool) -> int:
    """Run a wafer in the process of a `WaferProcess`; return its exit code."""
    from cs_system.engine.machine import limit_threads
    from cs_system.security import client_credentials
    from cs_system.swarmx.member import serve

    limit_threads(None)
    return serve((host, port), token, rank, client_credentials() if encrypted else None)
