"""The MemoryX of a CS system: addresses of running processes, or processes that the system starts itself."""

from __future__ import annotations

import secrets
import socket
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from cs_system.address import is_loopback
from cs_system.errors import BadOptionError
from cs_system.processes import ChildProcess
from cs_system.security import internal_credentials
from cs_toolkit.layered_step import Schedule, shards
from cs_toolkit.network.connection import listen
from cs_toolkit.network.liveness import DEFAULT_PEER_TIMEOUT_S
from cs_toolkit.security.secret_file import SecretFileError, read_secret, user_secret_file


class MemoryxAddress(NamedTuple):
    """The address of a MemoryX process.

    Attributes:
        host, port: Where it listens.
        encrypted: It uses TLS.
    """

    host: str
    port: int
    encrypted: bool = False


@dataclass(frozen=True)
class MemoryxConfig:
    """The MemoryX of a CS system.

    Attributes:
        addresses: Running processes, which share the layers; none: the system starts its own.
        directory: Where its own processes store state and gradients.
        servers: Number of processes that it starts.
        maps_files: Whether a wafer on the same machine as a MemoryX reads weights in its file and writes
            results there; otherwise they are sent over the connection, as between machines.
        peer_timeout_s: Silence after which a process counts as lost, and a wafer of a group.
        secret_file: File with the secret of the running processes; None: the user's own.
    """

    addresses: tuple[MemoryxAddress, ...] = ()
    directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    servers: int = 1
    maps_files: bool = True
    peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S
    secret_file: Path | None = None

    def limit_servers(self, servers: int | None) -> MemoryxConfig:
        """Return a copy with at most this number of processes; None: no limit."""
        return replace(
            self, addresses=self.addresses[:servers], servers=min(self.servers, servers or self.servers)
        )


def parse_memoryx_addresses(text: str, uses_tls: bool = False) -> tuple[MemoryxAddress, ...]:
    """Parse the comma-separated addresses of `--memoryx`.

    Args:
        text: The addresses.
        uses_tls: Those on other machines use TLS.

    Raises:
        BadOptionError: an address is malformed, or given twice.
    """
    found = tuple(parse_memoryx_address(one, uses_tls) for one in text.split(","))
    repeated = [f"{one.host}:{one.port}" for one in found if found.count(one) > 1]
    if repeated:
        raise BadOptionError(
            f"--memoryx={text}: {repeated[0]} is given twice, expected a different process for each part of "
            "the model"
        )
    return found


def parse_memoryx_address(text: str, uses_tls: bool = False) -> MemoryxAddress:
    """Parse an address of `--memoryx`; `uses_tls` as for `parse_memoryx_addresses`.

    Raises:
        BadOptionError: it is malformed.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadOptionError(
            f"--memoryx={text}: expected HOST:PORT, as `cs_system memoryx serve` prints it "
            "(examples: 10.0.0.5:9002, [::1]:9002)"
        )
    host = host.strip("[]")
    return MemoryxAddress(host, int(port), uses_tls and not is_loopback(host))


def read_memoryx_secret(file: Path | None) -> str:
    """Return the secret that MemoryX processes share with the CS systems that may use them.

    Args:
        file: The file that contains it, made if it is missing; None: the user's own.

    Raises:
        BadOptionError: it cannot be used.
    """
    try:
        return read_secret(file or user_secret_file("memoryx.secret"))
    except SecretFileError as error:
        raise BadOptionError(
            f"--memoryx-secret-file: {error}; `cs_system serve` and `cs_system memoryx serve` need the same "
            "file"
        ) from None


def start_memoryx(
    config: MemoryxConfig, schedule: Schedule, listen: str = "127.0.0.1", reached_by: str = "127.0.0.1"
) -> tuple[tuple[MemoryxAddress, ...], list[MemoryxProcess], str]:
    """Return the addresses of MemoryX, the processes started for them, and the secret of all.

    No process is started if some were configured.

    Args:
        config: The MemoryX of the system.
        schedule: Schedule of the step.
        listen: Address of this machine on which new processes listen.
        reached_by: The address under which all wafers reach them.

    Raises:
        BadOptionError: the secret of configured processes cannot be read.
    """
    if config.addresses:
        return config.addresses, [], read_memoryx_secret(config.secret_file)
    secret = secrets.token_hex(16)
    started = [MemoryxProcess(config.directory, secret, listen) for _ in shards(schedule, config.servers)]
    encrypted = internal_credentials(listen) is not None
    addresses = tuple(MemoryxAddress(reached_by, memoryx.address[1], encrypted) for memoryx in started)
    return addresses, started, secret


class MemoryxProcess(ChildProcess):
    """A MemoryX process on this machine. It ends with `end`, and with this process, however that ends.

    Args:
        directory: Where it stores state and gradients.
        secret: Secret that wafers must know.
        host: IP address to listen on.

    Attributes:
        address: Where it listens, from the start: connections wait until it is ready.
    """

    def __init__(self, directory: Path, secret: str, host: str = "127.0.0.1") -> None:
        with listen(host, 0) as listener:
            self.address: tuple[str, int] = listener.getsockname()[:2]
            # The arguments of a child process are sent to it through a socket, and are in no command line.
            super().__init__("cs_memoryx", run_memoryx, [str(directory), secret, host], [listener.fileno()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def run_memoryx(directory: str, secret: str, host: str, descriptor: int) -> int:
    """Run MemoryX in the process of a `MemoryxProcess`; return its exit code."""
    from cs_system.memoryx.server import serve_system

    credentials = internal_credentials(host)
    return serve_system(socket.socket(fileno=descriptor), Path(directory), secret, credentials)
