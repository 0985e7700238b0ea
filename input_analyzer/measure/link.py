"""What the analyzer and the processes that it starts say to each other: JSON values, one a line."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

RUN, PAUSE, END = "run", "pause", "end"
"""What the analyzer says to a copy."""

_CHUNK = 1 << 16


class Order(BaseModel):
    """What a process of the user's program is to do instead of training.

    Attributes:
        purpose: "examine": look at the input function and time its stages; "copy": read batches as told;
            "compare": measure what changes give.
        socket: path of the analyzer's socket.
        copy_index: number of this copy; 0 for an examination.
        copies: number of copies that are started together: the shards of the data.
        stacks: file for the stacks of all threads, written on SIGUSR1.
        compile: go on to a compilation that the program asked for.
        source_only: only findings are wanted, as for a change of the source: also of an input that no run can
            use as it is.
        stage_seconds: time that the examination may take for the stages, or each of the comparisons.
        cpus_per_task: CPUs that a worker may have, for what is expected of them; 0: those of the process.
        memory_bytes: that a task may use; 0: all that is free.
        findings: whose changes are compared, with the numbers that they recommend.
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


def read_order(path: Path) -> Order:
    """The order in a file that the analyzer has written."""
    return Order.model_validate_json(path.read_bytes())


@contextmanager
def short_name(path: str) -> Iterator[str]:
    """A name for a socket that is short enough for the kernel, which takes 107 bytes, in any folder."""
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class Link:
    """One end of the connection; messages are JSON objects."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""

    @classmethod
    def connect(cls, path: str) -> Link:
        """To the analyzer."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_name(path) as name:
            connection.connect(name)
        return cls(connection)

    def fileno(self) -> int:
        """For `select`."""
        return self._connection.fileno()

    def send(self, **message: Any) -> None:
        """Sends one message."""
        self._connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def received(self, timeout_s: float | None = 0.0) -> list[dict[str, Any]]:
        """What has come in, in order; waits so long for the first message, None: without limit.

        Raises:
            ConnectionError: the other end has gone.
        """
        while not self._complete() and select.select([self._connection], [], [], timeout_s)[0]:
            chunk = self._connection.recv(_CHUNK)
            if not chunk:
                raise ConnectionResetError("the other end has closed the connection")
            self._received += chunk
        whole, newline, self._received = self._received.rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()] if newline else []

    def _complete(self) -> bool:
        return b"\n" in self._received

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()
