"""Whether a MemoryX still answers: one that has been stopped keeps its connections, and says nothing."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

from cs_system.patience import LATE_S, PATIENCE_S

log = logging.getLogger("cs_system.server")

_LOOK_S = 0.5

_LAST_DATA_RECEIVED = struct.Struct("@52xI")
"""Of Linux's `tcp_info`: milliseconds since anything came."""


class Silence:
    """Watches a connection to MemoryX, on which something comes every second while it answers.

    Nothing is missed while nobody reads, as when there is no room for weights.

    Args:
        name: Of the address.
        sock: Connected.
        overdue: Called when the silence has lasted too long.
        patience_s: Silence that is too long.
    """

    def __init__(
        self, name: str, sock: socket.socket, overdue: Callable[[float], None], patience_s: float = PATIENCE_S
    ) -> None:
        self._name, self._sock, self._overdue = name, sock, overdue
        self._patience_s = patience_s
        self._reads_since_s: float | None = None
        self._has_ended = threading.Event()

    def watch(self) -> None:
        """Names MemoryX in the log when it is silent, and says when it is overdue; returns after `end`."""
        is_late = False
        while not self._has_ended.wait(_LOOK_S):
            silent_s = self.seconds()
            if silent_s >= self._patience_s:
                self._overdue(silent_s)
                return
            if silent_s >= LATE_S and not is_late:
                log.warning("%s", self._text(silent_s))
            elif is_late and silent_s < LATE_S:
                log.info("MemoryX at %s answers again", self._name)
            is_late = silent_s >= LATE_S

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._has_ended.set()

    def reads(self) -> None:
        """This side waits for the next frame."""
        self._reads_since_s = time.monotonic()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """This side does not read in the body."""
        self._reads_since_s = None
        try:
            yield
        finally:
            self.reads()

    def seconds(self) -> float:
        """How long nothing has come although this side reads."""
        since_s = self._reads_since_s
        if since_s is None or self._has_ended.is_set():
            return 0.0
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
        except OSError:
            return 0.0  # closed, which is told elsewhere
        silent_s: float = _LAST_DATA_RECEIVED.unpack(info)[0] / 1000
        return min(time.monotonic() - since_s, silent_s)

    def late(self) -> str | None:
        """What is to be told of it; None while it answers."""
        silent_s = self.seconds()
        return None if silent_s < LATE_S else self._text(silent_s)

    def _text(self, silent_s: float) -> str:
        return (
            f"MemoryX at {self._name} has not answered for {silent_s:.0f} s; "
            f"the run ends after {self._patience_s:g} s"
        )
