"""Looks after the CS system by connecting to it every few seconds, from a thread of its own."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

PORT = 9000
CONNECT_INTERVAL_S = 2.0
CONNECT_LIMIT_S = 2.0
FAILURES = 3
"""With the times above, a system that is gone is noticed within 10 s, even one that does not refuse."""
PATIENCE_S = 5.0
"""So long the chief may take for its own words about it."""


def system_address(command: Sequence[str], default: str = "") -> tuple[str, int] | None:
    """Host and port of the CS system that a command names with --cs_ip, else of `default`; None for neither.

    The last --cs_ip counts, as it does for the program.
    """
    named = named_system(command)
    text = default if named is None else named
    host, colon, port = text.strip().rpartition(":")
    if not colon or "]" in port or (text.count(":") > 1 and not text.startswith("[")):  # IPv6 without a port
        host, port = text.strip(), str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        return None
    return host, int(port)


def named_system(command: Sequence[str]) -> str | None:
    """What a command says of its CS system with --cs_ip; None where it says nothing."""
    text = None
    for number, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == "__cs_ip":
            text = value if equals else "".join(command[number + 1 : number + 2])
    return text


class Presence:
    """Decides from attempts to connect whether a system is gone: seen once, then missed often. Pure."""

    def __init__(self) -> None:
        self._seen_at_s: float | None = None
        self._missed = 0
        self.reason = ""

    def connected(self, now_s: float) -> None:
        """An attempt has succeeded."""
        self._seen_at_s = now_s
        self._missed = 0

    def failed(self, reason: str) -> None:
        """An attempt has failed."""
        if self._seen_at_s is not None:
            self._missed += 1
            self.reason = reason

    @property
    def gone(self) -> bool:
        """Whether it was there and is not any more."""
        return self._missed >= FAILURES

    def missing_s(self, now_s: float) -> float:
        """Since when it has not answered."""
        return 0.0 if self._seen_at_s is None else now_s - self._seen_at_s


class SystemWatch:
    """Watches one address until the system behind it is gone. Only a system that was there can be.

    `fileno()` becomes readable when it is gone. Start it after all forks.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._presence = Presence()
        self._missing_s = 0.0
        self._ended = threading.Event()
        self._read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="system watch", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._read_end

    @property
    def gone(self) -> bool:
        """Whether the system was there and is not any more."""
        return self._presence.gone

    @property
    def text(self) -> str:
        """What to tell the user when it is gone."""
        host, port = self._address
        return (
            f"the CS system at {host}:{port} is gone: no connection for {self._missing_s:.0f} s "
            f"({self._presence.reason}); the job cannot go on without it"
        )

    def close(self) -> None:
        """Ends the watch."""
        self._ended.set()
        self._thread.join(2 * CONNECT_LIMIT_S)
        if not self._thread.is_alive():  # a name server may hold it longer
            os.close(self._read_end)
            os.close(self._write_end)

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                socket.create_connection(self._address, CONNECT_LIMIT_S).close()
                self._presence.connected(time.monotonic())
            except OSError as error:
                self._presence.failed(error.strerror or str(error))
            if self._presence.gone:
                self._missing_s = self._presence.missing_s(time.monotonic())
                with suppress(OSError):
                    os.write(self._write_end, b".")
                return
            self._ended.wait(CONNECT_INTERVAL_S)
