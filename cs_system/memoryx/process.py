"""The MemoryX that a CS system starts itself, where none is given."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from cs_system.memoryx.place import MemoryxPlace
from cs_toolkit.schedule import Schedule
from cs_toolkit.shards import shards

_END_TIMEOUT_S = 5.0


def started_memoryx(
    place: MemoryxPlace, schedule: Schedule
) -> tuple[tuple[tuple[str, int], ...], list[OwnMemoryx]]:
    """Where the model lies, and the processes that were started for it: none where some run already."""
    if place.addresses:
        return place.addresses, []
    own = [OwnMemoryx(place.directory) for _ in shards(schedule, place.servers)]
    return tuple(memoryx.address for memoryx in own), own


class OwnMemoryx:
    """A MemoryX process on this machine. It ends with `close`, and with this process, however that ends.

    Attributes:
        address: Where it listens, from the start: connections wait until it is ready.
    """

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address: tuple[str, int] = listener.getsockname()
            descriptor = listener.fileno()
            command = [
                sys.executable,
                "-m",
                "cs_system",
                "memoryx",
                "serve",
                f"--listen-fd={descriptor}",
                f"--memoryx-dir={directory}",
            ]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                pass_fds=[descriptor],
                # Ctrl-C is for the CS system, which ends this process.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
