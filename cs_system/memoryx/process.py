"""The MemoryX that a CS system starts itself, where none is given."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import Self

from cs_system.memoryx.place import MemoryxPlace

_END_TIMEOUT_S = 5.0


class OwnMemoryx:
    """A MemoryX process on this machine. It ends with `close`, and with this process, however that ends.

    Args:
        place: Where it keeps state and gradients.
        host: Address to listen on, an IP.

    Attributes:
        address: Where it listens, from the start: connections wait until it is ready.
    """

    def __init__(self, place: MemoryxPlace, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as listener:
            self.address: tuple[str, int] = listener.getsockname()[:2]
            descriptor = listener.fileno()
            command = [
                sys.executable,
                "-m",
                "cs_system",
                "memoryx",
                "serve",
                f"--listen-fd={descriptor}",
                f"--memoryx-dir={place.directory}",
            ]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                pass_fds=[descriptor],
                # Its weights lie in the memory of this machine, whatever the wafer computes on.
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
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
