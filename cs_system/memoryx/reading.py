"""Reading the state after a step from MemoryX, on a connection of its own: steps go on meanwhile."""

from __future__ import annotations

import socket
import threading

import numpy as np

from cs_stream.sockets import shut_down
from cs_system.memoryx.frames import FrameType, Header, receive_fresh, receive_header, send_frame
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
        try:
            send_frame(self._sock, FrameType.READ, 0, token.encode())
        except ConnectionError as error:
            raise gone(self._name, error) from error

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """A tensor of the snapshot, in the device's dtype; each may be read once.

        Raises:
            CsSystemError: MemoryX has gone or failed, or the snapshot has ended.
        """
        with self._lock:
            try:
                header = self._answer(FrameType.GET, number, FrameType.STATE)
                (array,) = receive_fresh(self._sock, header, [spec])
            except ConnectionError as error:
                raise gone(self._name, error) from error
        return array

    def end(self) -> None:
        """The rest is not read: MemoryX keeps nothing for it any more when this returns.

        It would end the next snapshot otherwise, which comes on another connection.

        Raises:
            MemoryxError: MemoryX has gone.
        """
        with self._lock:
            try:
                self._answer(FrameType.END, 0, FrameType.DONE)
            except ConnectionError as error:
                raise gone(self._name, error) from error

    def close(self) -> None:
        """Hangs up."""
        self.shut_down()
        self._sock.close()

    def shut_down(self) -> None:
        """Ends the connection; whoever reads is told that MemoryX has gone."""
        shut_down(self._sock)

    def _answer(self, kind: FrameType, index: int, expected: FrameType) -> Header:
        send_frame(self._sock, kind, index)
        header = receive_header(self._sock)
        if header.type is not expected:
            raise refusal(self._sock, header, self._name)
        return header
