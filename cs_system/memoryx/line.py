"""A connection of MemoryX on which several threads send, and which says that MemoryX is there."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from cs_system.memoryx.frames import FrameType, send_frame, send_tensors

ALIVE_EVERY_S = 1.0


class Line:
    """The sending side of a connection.

    Args:
        sock: Connected.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._sending = threading.Lock()

    def frame(self, kind: FrameType, index: int, payload: bytes = b"") -> None:
        """Sends a frame whose payload is no tensor; raises as `send_frame`."""
        with self._sending:
            send_frame(self.sock, kind, index, payload)

    def tensors(self, kind: FrameType, index: int, arrays: Sequence[np.ndarray]) -> None:
        """Sends tensors; raises as `send_tensors`."""
        with self._sending:
            send_tensors(self.sock, kind, index, arrays)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Says every second of the body that MemoryX is there."""
        has_ended = threading.Event()
        thread = threading.Thread(target=self._stay_alive, args=(has_ended,), name="alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()

    def _stay_alive(self, has_ended: threading.Event) -> None:
        with contextlib.suppress(ConnectionError):
            while not has_ended.wait(ALIVE_EVERY_S):
                # A frame under way says so, too.
                if self._sending.acquire(blocking=False):
                    try:
                        send_frame(self.sock, FrameType.ALIVE, 0)
                    finally:
                        self._sending.release()
