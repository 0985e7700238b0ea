"""The protocol between the analyzer and the processes that it starts: JSON values, one per line."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cs_toolkit.network.frames import JsonLines

# Commands of the analyzer to a copy.
RUN, PAUSE, END = "run", "pause", "end"

_CHUNK = 1 << 16
_MAX_MESSAGE_BYTES = 64 << 20


class Order(BaseModel):
    """The task of a process of the user's program, instead of training.

    Attributes:
        purpose: "examine": look at the input function and time its stages; "copy": read batches on command;
            "compare": measure the gains of changes.
        socket: path of the analyzer's socket.
        copy_index: number of this copy; 0 for an examination.
        copies: number of copies that are started together, which is the number of shards of the data.
        stacks: file for the stacks of all threads, written on SIGUSR1.
        compile: continue with a compile that the program asked for.
        source_only: only findings are needed, to change the source; also for an input that no run can use.
        stage_seconds: time for timing the stages, or for each of the comparisons.
        cpus_per_task: CPUs of a worker, from which gains are derived; 0: those of the process.
        memory_bytes: memory of a task; 0: all that is free.
        findings: findings whose changes are compared, with the numbers that they recommend.
        source_forms: the changed sources of "map-before-batch" by form and file, in order of preference.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: Literal["examine", "copy", "compare"]
    socket: str
    copy_index: int = 0
    copies: int = 1
    stacks: str = ""
    compile: bool = False
    source_only: bool = False
    stage_seconds: float = 20.0
    cpus_per_task: int = 0
    memory_bytes: int = 0
    findings: dict[str, int | None] = {}
    source_forms: dict[str, dict[str, str]] = {}


def read_order(path: Path) -> Order:
    """Read an order from a file of the analyzer."""
    return Order.model_validate_json(path.read_bytes())


@contextmanager
def short_name(path: str) -> Iterator[str]:
    """Provide a short alias for a socket path, as the kernel limits paths to 107 bytes."""
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class Link:
    """One end of a connection; messages are JSON objects."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = JsonLines(_MAX_MESSAGE_BYTES)

    @classmethod
    def connect(cls, path: str) -> Link:
        """Connect to the analyzer."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_name(path) as name:
            connection.connect(name)
        return cls(connection)

    def fileno(self) -> int:
        """Support `select`."""
        return self._connection.fileno()

    def send(self, **message: Any) -> None:
        """Send one message."""
        self._connection.sendall(JsonLines.encode(message))

    def receive(self, timeout_s: float | None = 0.0) -> list[dict[str, Any]]:
        """Return the messages that have arrived, in order; wait for the first one (None: without a limit).

        Raises:
            ConnectionError: the other end has closed the connection.
        """
        messages: list[dict[str, Any]] = []
        while not messages and select.select([self._connection], [], [], timeout_s)[0]:
            chunk = self._connection.recv(_CHUNK)
            if not chunk:
                raise ConnectionResetError("the other end has closed the connection")
            messages += self._lines.feed(chunk)
        return messages

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
