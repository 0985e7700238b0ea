"""Where a CS system finds MemoryX."""

from __future__ import annotations

import socket
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from cs_system.errors import BadOptionError
from cs_system.processes import ChildProcess
from cs_toolkit.layered_step import Schedule, shards


@dataclass(frozen=True)
class MemoryxConfig:
    """Where a CS system finds MemoryX.

    Attributes:
        addresses: Of processes that run, which share out the layers; none: the system starts its own.
        directory: Where those keep state and gradients.
        servers: How many of its own it starts.
        maps_files: Whether a wafer on the machine of a MemoryX reads weights in its file, and writes results
            there; else they come and go on the connection, as between machines.
    """

    addresses: tuple[tuple[str, int], ...] = ()
    directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    servers: int = 1
    maps_files: bool = True

    def limit_servers(self, servers: int | None) -> MemoryxConfig:
        """The same with so many processes at most; None: no limit."""
        return replace(
            self, addresses=self.addresses[:servers], servers=min(self.servers, servers or self.servers)
        )


def parse_memoryx_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """The addresses that `--memoryx` names, with commas between them.

    Raises:
        BadOptionError: one has not the form of an address, or is there twice.
    """
    found = tuple(parse_memoryx_address(one) for one in text.split(","))
    twice = [f"{host}:{port}" for host, port in found if found.count((host, port)) > 1]
    if twice:
        raise BadOptionError(
            f"--memoryx={text}: {twice[0]} is there twice, expected another process for each part of a model"
        )
    return found


def parse_memoryx_address(text: str) -> tuple[str, int]:
    """The address that `--memoryx` names.

    Raises:
        BadOptionError: it has not the form of one.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadOptionError(
            f"--memoryx={text}: expected HOST:PORT, as `cs_system memoryx serve` prints it "
            "(examples: 10.0.0.5:9002, [::1]:9002)"
        )
    return host.strip("[]"), int(port)


def start_memoryx(
    place: MemoryxConfig, schedule: Schedule, listen: str = "127.0.0.1", reached_by: str = "127.0.0.1"
) -> tuple[tuple[tuple[str, int], ...], list[MemoryxProcess]]:
    """Where the model lies, and the processes that were started for it: none where some run already.

    Args:
        place: What is said of it.
        schedule: Of the step.
        listen: Address of this machine that new ones listen on.
        reached_by: The one under which all wafers reach them.
    """
    if place.addresses:
        return place.addresses, []
    own = [MemoryxProcess(place.directory, listen) for _ in shards(schedule, place.servers)]
    return tuple((reached_by, memoryx.address[1]) for memoryx in own), own


class MemoryxProcess(ChildProcess):
    """A MemoryX process on this machine. It ends with `end`, and with this process, however that ends.

    Args:
        directory: Where it keeps state and gradients.
        host: Address to listen on, an IP.

    Attributes:
        address: Where it listens, from the start: connections wait until it is ready.
    """

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as listener:
            self.address: tuple[str, int] = listener.getsockname()[:2]
            super().__init__("cs_memoryx", _serve, [str(directory)], [listener.fileno()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _serve(directory: str, descriptor: int) -> int:
    from cs_system.memoryx.server import serve_own

    return serve_own(socket.socket(fileno=descriptor), Path(directory))
