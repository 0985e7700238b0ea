"""Where the wafers of a run are started: on this machine, or on the hosts of the members of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from cs_system.processes import ChildProcess

_LOOPBACK = "127.0.0.1"


class Wafer(Protocol):
    """One that has been started."""

    @property
    def host(self) -> str:
        """What messages call its machine; empty: this one."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether it has, or its machine has gone."""
        ...

    @property
    def exit_code(self) -> int | None:
        """Of one that has ended, that of a signal negative; None where nobody knows it."""
        ...

    def end(self) -> None:
        """Ends it, and waits until it has ended."""
        ...

    def kill(self) -> None:
        """Ends it, whatever it does, and does not wait."""
        ...


class Member(Protocol):
    """A host of the group."""

    def start(self, port: int, token: str, rank: int) -> Wafer:
        """Starts a wafer there; see `WaferProcess`."""
        ...


@dataclass(frozen=True)
class RunHosts:
    """The machines of one run.

    Attributes:
        listen: Address of this one to listen on.
        address: The one under which all reach it.
        members: The others, a wafer each; none: all wafers are here.
    """

    listen: str = _LOOPBACK
    address: str = _LOOPBACK
    members: Sequence[Member] = ()

    def start(self, port: int, token: str, count: int) -> Iterator[Wafer]:
        """Starts so many wafers, in the order of their ranks; they come to `port`."""
        leader = self.address, port
        yield WaferProcess(leader, token, 0)
        for rank in range(1, count):
            if self.members:
                yield self.members[rank - 1].start(port, token, rank)
            else:
                yield WaferProcess(leader, token, rank)


class HostPool(Protocol):
    """The machines that a CS system has for its wafers."""

    def gather(self, count: int) -> RunHosts:
        """Those for a run of so many wafers.

        Raises:
            GroupError: some are missing.
        """
        ...


class LocalHost:
    """See `HostPool`: all wafers are processes of this one."""

    def gather(self, count: int) -> RunHosts:
        """See `HostPool`."""
        return RunHosts()


class WaferProcess(ChildProcess):
    """A wafer of a group. It ends with `end`, when the CS system hangs up, and with this process.

    Args:
        leader: Host and port where the CS system waits for its wafers.
        token: Its secret.
        rank: Of the wafer in its group.

    Attributes:
        host: Empty: it is on the machine of whoever asks.
    """

    host = ""

    def __init__(self, leader: tuple[str, int], token: str, rank: int) -> None:
        super().__init__(f"cs_wafer_{rank}", _compute, [*leader, token, rank])


def _compute(host: str, port: int, token: str, rank: int) -> int:
    from cs_system.engine.device import limit_threads
    from cs_system.swarmx.member import serve

    limit_threads(None)
    return serve((host, port), token, rank)
