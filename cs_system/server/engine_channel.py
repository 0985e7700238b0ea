"""The protocol between a CS system and the process of an engine: requests, and answers with the same number.

    type      from    fields                     payload
    LOAD      system  a program                  its description and executables; no answer
    PROGRAM   system  -
    PUT       system  tensors                    their values
    CHUNKS    system  layout and size of a ring, whose memory follows as a descriptor; no answer
    STEPS     system  chunk, offset, count, in the header
    KEEP      system  names, or null for all
    FREE      system  -
    READ      system  names                      on the second connection, as is DROP
    DROP      system  -
    DONE      engine  results of a request
    OUTPUTS   engine  -                          of the steps of a request
    STATE     engine  -                          of the tensors of a request
    FAILED    engine  code, message, fields, missing state
    STATUS    engine  text about a part that does not answer; belongs to no request

A frame is a header, its fields in JSON, and the payload: tensors in the order of the request, each padded to
64 bytes. The system does not trust the process, which runs a program of any user.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cs_system.memoryx.protocol import aligned_empty, padded_size, raw_bytes
from cs_system.messages import dtype_named
from cs_toolkit.network.connection import Buffer, Connection
from cs_toolkit.network.frames import Fields, FrameError, HeaderFormat, decode_object, encode_json
from cs_toolkit.step import TensorSpec

MAX_TEXT_BYTES = 64 << 20
_PADDING = bytes(64)


class FrameType(IntEnum):
    """The type of a frame."""

    LOAD = 1
    PROGRAM = 2
    PUT = 3
    CHUNKS = 4
    STEPS = 5
    KEEP = 6
    FREE = 7
    READ = 8
    DROP = 9
    DONE = 10
    OUTPUTS = 11
    STATE = 12
    FAILED = 13
    STATUS = 14


# Request, sizes of fields and payload, and three numbers: steps need no fields, so that a call costs little.
_FORMAT = HeaderFormat(b"CSEN", 1, FrameType, "HQQQIII")
_NO_NUMBERS = (0, 0, 0)


@dataclass(frozen=True)
class Frame:
    """A frame whose payload has not been received.

    Attributes:
        type: Its type.
        number: Number of its request.
        values: Its fields.
        nbytes: Size of its payload.
        numbers: Numbers of its header.
    """

    type: FrameType
    number: int
    values: Mapping[str, Any]
    nbytes: int
    numbers: tuple[int, ...] = _NO_NUMBERS

    @property
    def fields(self) -> Fields:
        """Typed access to the fields."""
        return Fields(self.type.name, self.values, MAX_TEXT_BYTES)


class EngineChannel:
    """One side of a connection; several threads may send.

    Args:
        sock: The socket, which the channel owns.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._connection = Connection(sock)
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._connection.fileno()

    def send(
        self,
        kind: FrameType,
        number: int,
        values: Mapping[str, object] | None = None,
        parts: Sequence[Buffer] = (),
        numbers: tuple[int, ...] = _NO_NUMBERS,
    ) -> None:
        """Send a frame.

        Raises:
            ConnectionError: the peer is gone.
        """
        text = encode_json(values) if values else b""
        nbytes = sum(memoryview(part).nbytes for part in parts)
        head = _FORMAT.pack(kind, 0, number, len(text), nbytes, *numbers)
        with self._sending:
            self._connection.send([head + text, *(part for part in parts if len(part))])

    def send_tensors(
        self,
        kind: FrameType,
        number: int,
        arrays: Sequence[np.ndarray],
        values: Mapping[str, object] | None = None,
    ) -> None:
        """Send tensors; raises the errors of `send`."""
        parts: list[Buffer] = []
        for array in arrays:
            data = raw_bytes(np.ascontiguousarray(array))
            parts += [data, _PADDING[: padded_size(data.nbytes) - data.nbytes]]
        self.send(kind, number, values, parts)

    def receive(self) -> Frame:
        """Receive the next frame, without its payload.

        Raises:
            ConnectionError: the peer is gone.
            FrameError: it sends something else.
        """
        head = bytearray(_FORMAT.size)
        self._connection.receive([memoryview(head)])
        kind, _, number, text_bytes, nbytes, *numbers = _FORMAT.unpack(head)
        if text_bytes > MAX_TEXT_BYTES:
            raise FrameError(
                f"{kind.name}: got {text_bytes:,} bytes of text, expected at most {MAX_TEXT_BYTES:,}"
            )
        values: Mapping[str, Any] = {}
        if text_bytes:
            text = bytearray(text_bytes)
            self._connection.receive([memoryview(text)])
            values = decode_object(text)
        return Frame(kind, number, values, nbytes, tuple(numbers))

    def receive_tensors(self, frame: Frame, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
        """Receive the payload of a frame: tensors of these names, dtypes and shapes.

        Raises:
            ConnectionError: the peer is gone.
            FrameError: the payload has another size.
        """
        memory = [aligned_empty(padded_size(spec.nbytes)) for spec in specs]
        self._check(frame, sum(part.nbytes for part in memory))
        self._connection.receive([part.data for part in memory if part.nbytes])
        return {
            spec.name: part[: spec.nbytes].view(dtype_named(spec.dtype)).reshape(spec.shape)
            for spec, part in zip(specs, memory, strict=True)
        }

    def receive_bytes(self, frame: Frame, sizes: Sequence[int]) -> list[bytes]:
        """Receive the payload of a frame: parts of these sizes; raises the errors of `receive_tensors`."""
        self._check(frame, sum(sizes))
        parts = [bytearray(size) for size in sizes]
        self._connection.receive([memoryview(part) for part in parts if part])
        return [bytes(part) for part in parts]

    def close(self) -> None:
        """Close the connection; a blocked receiver gets an error."""
        self._connection.shut_down()
        self._connection.close()

    def _check(self, frame: Frame, nbytes: int) -> None:
        if frame.nbytes != nbytes:
            raise FrameError(f"{frame.type.name}: got {frame.nbytes:,} bytes, expected {nbytes:,}")
