"""Reading the state after a step from MemoryX, on a connection of its own: steps go on meanwhile."""

from __future__ import annotations

import contextlib
import socket
import threading

import numpy as np

from cs_stream.sockets import shut_down
from cs_system.memoryx.frames import FrameType, receive_fresh, receive_header, send_frame
from cs_system.memoryx.weights import connected, gone, refusal
from cs_toolkit.step import TensorSpec


class StateReader:
    """A connection that reads what a snapshot holds; for one thread at a time.

    Args:
        address: Host and port of MemoryX.
        token: Of the model.

    Raises:
        MemoryxError: nobody answers there.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._name = f"{address[0]}:{address[1]}"
        self._lock = threading.Lock()
        self._sock: socket.socket = connected(address)
        self._send(FrameType.READ, 0, token.encode())

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """A tensor of the snapshot, in the device's dtype; each may be read once.

        Raises:
            CsSystemError: MemoryX has gone or failed, or the snapshot has ended.
        """
        with self._lock:
            self._send(FrameType.GET, number)
            try:
                header = receive_header(self._sock)
                if header.type is not FrameType.STATE:
                    raise refusal(self._sock, header, self._name)
                (array,) = receive_fresh(self._sock, header, [spec])
            except ConnectionError as error:
                raise gone(self._name, error) from error
        return array

    def end(self) -> None:
        """The rest is not read: MemoryX keeps nothing for it any more."""
        with self._lock:
            self._send(FrameType.END, 0)

    def close(self) -> None:
        """Hangs up."""
        with contextlib.suppress(OSError):
            shut_down(self._sock)
        self._sock.close()

    def _send(self, kind: FrameType, index: int, payload: bytes = b"") -> None:
        try:
            send_frame(self._sock, kind, index, payload)
        except ConnectionError as error:
            raise gone(self._name, error) from error
