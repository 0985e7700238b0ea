"""The MemoryX that a CS system starts itself, where none is given."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Self

from cs_system.memoryx.place import MemoryxPlace
from cs_system.processes import OwnProcess
from cs_toolkit.schedule import Schedule
from cs_toolkit.shards import shards


def started_memoryx(
    place: MemoryxPlace, schedule: Schedule, listen: str = "127.0.0.1", reached_by: str = "127.0.0.1"
) -> tuple[tuple[tuple[str, int], ...], list[OwnMemoryx]]:
    """Where the model lies, and the processes that were started for it: none where some run already.

    Args:
        place: What is said of it.
        schedule: Of the step.
        listen: Address of this machine that new ones listen on.
        reached_by: The one under which all wafers reach them.
    """
    if place.addresses:
        return place.addresses, []
    own = [OwnMemoryx(place.directory, listen) for _ in shards(schedule, place.servers)]
    return tuple((reached_by, memoryx.address[1]) for memoryx in own), own


class OwnMemoryx(OwnProcess):
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
    from cs_system.memoryx.serve import serve_own

    return serve_own(socket.socket(fileno=descriptor), Path(directory))
