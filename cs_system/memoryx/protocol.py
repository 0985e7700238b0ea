"""The frames between the wafer and MemoryX: a header of 24 bytes, little-endian, and a payload.

    offset  0  magic 'CSMX'
            4  u8  version, 1
            5  u8  type
            6  u16 zero
            8  u32 index: of a call in its step, or of a function
           12  u32 zero
           16  u64 nbytes of the payload

    type      from     index     payload
    OPEN      wafer    -         JSON: schedule, state, functions
    FUNCTION  wafer    function  its executable
    PUT       wafer    value     the tensor of a state
    BEGIN     wafer    -         tensors of the batch that MemoryX needs
    RESULTS   wafer    call      what goes to MemoryX after a call
    SNAPSHOT  wafer    count     numbers of the state (u32) to be read as it is after the steps begun so far
    SHARED    wafer    round     what the gradients of the other processes contribute
    JOIN      wafer    -         the token of a group whose weights it gets, too
    READ      reader   -         the token of the model whose snapshots it reads, on a connection of its own
    GET       reader   value     -
    END       reader   -         -               the snapshot is not read any further
    ALIVE     both     -         -               every second; of a wafer to its CS system with JSON: its work
    MAPPED    wafer    0 or 1    -               whether it has mapped the files of MemoryX: weights and
                                                 results are at their places then, and do not come in frames
    DONE      MemoryX  -         -               a snapshot is kept, or has ended
    OPENED    MemoryX  -         JSON: its files  OPEN is understood
    UPDATED   MemoryX  step      -               to a wafer that has mapped the files: results of a step,
                                                 counted from 1, have been read
    WEIGHTS   MemoryX  call      what comes to the wafer before a call
    ANSWERS   MemoryX  -         what the step puts out of its update
    STATE     MemoryX  value     the tensor of a state, to the reader
    PARTIAL   MemoryX  round     what its gradients contribute to a round of the update
    FAILED    MemoryX  -         JSON: code and message of the error that ends the connection

Tensors follow one another in the order of `cs_toolkit.layered_step`, each padded to 64 bytes, so that a
device reads them where they were received.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cs_stream.sockets import receive_scattered, send_gathered
from cs_system.errors import MemoryxError
from cs_system.messages import dtype_named
from cs_toolkit.errors import ToolkitError
from cs_toolkit.layered_step import Schedule, schedule_from_json
from cs_toolkit.step import StepInterface, TensorSpec, device_dtype

ALIGNMENT = 64
"""Bytes: arrays at such addresses are taken by XLA without a copy."""

MAX_TEXT_BYTES = 64 << 20
"""Of a JSON payload."""

MAX_TOKEN_BYTES = 256

_MAGIC = b"CSMX"
_VERSION = 1
_FORMAT = struct.Struct("<4sBBHIIQ")
_PADDING = bytes(ALIGNMENT)

HEARTBEAT_INTERVAL_S = 1.0

UNRESPONSIVE_S = 5.0
"""A part that is silent for so long is named."""

HEARTBEAT_TIMEOUT_S = 60.0
"""One that is silent for so long is ended. Less than the 100 s after which JAX ends a whole group."""


class FrameType(IntEnum):
    """The type byte of a frame."""

    OPEN = 1
    FUNCTION = 2
    PUT = 3
    BEGIN = 4
    RESULTS = 5
    GET = 6
    DONE = 7
    WEIGHTS = 8
    ANSWERS = 9
    STATE = 10
    FAILED = 11
    JOIN = 12
    SNAPSHOT = 13
    READ = 14
    END = 15
    PARTIAL = 16
    SHARED = 17
    ALIVE = 18
    MAPPED = 19
    OPENED = 20
    UPDATED = 21


@dataclass(frozen=True)
class Header:
    """One frame's header; the fields are those of the module's table."""

    type: FrameType
    index: int
    nbytes: int


def padded(nbytes: int) -> int:
    """Bytes with what follows them until the next tensor."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def send_frame(sock: socket.socket, kind: FrameType, index: int, payload: bytes | memoryview = b"") -> None:
    """Sends a frame whose payload is no tensor.

    Raises:
        ConnectionError: the peer has gone, or takes nothing.
    """
    head = _FORMAT.pack(_MAGIC, _VERSION, kind, 0, index, 0, memoryview(payload).nbytes)
    send_gathered(sock, [head, payload] if payload else [head])


def send_tensors(sock: socket.socket, kind: FrameType, index: int, arrays: Sequence[np.ndarray]) -> None:
    """Sends tensors of device dtypes, without a copy where they are contiguous.

    Raises:
        ConnectionError: the peer has gone, or takes nothing.
    """
    total = sum(padded(array.nbytes) for array in arrays)
    parts: list[bytes | memoryview] = [_FORMAT.pack(_MAGIC, _VERSION, kind, 0, index, 0, total)]
    for array in arrays:
        if array.nbytes:
            parts.append(raw_bytes(np.ascontiguousarray(array)))
            parts.append(_PADDING[: padded(array.nbytes) - array.nbytes])
    send_gathered(sock, [part for part in parts if len(part)])


def receive_header(sock: socket.socket) -> Header:
    """The next frame's header; its payload is still to be received.

    Raises:
        ConnectionError: the peer has gone.
        MemoryxError: the peer speaks something else.
    """
    data = bytearray(_FORMAT.size)
    receive_scattered(sock, [memoryview(data)])
    magic, version, kind, _, index, _, nbytes = _FORMAT.unpack(data)
    if magic != _MAGIC or version != _VERSION or kind not in FrameType.__members__.values():
        raise MemoryxError(
            f"got the bytes {bytes(data[:6])!r}, expected a frame of {_MAGIC.decode()}/{_VERSION}: the peer "
            "is no part of a CS system, or one of another version of the toolkit"
        )
    return Header(FrameType(kind), index, nbytes)


def receive_payload(sock: socket.socket, header: Header, limit: int) -> bytearray:
    """The payload of a frame as bytes of their own.

    Raises:
        ConnectionError: the peer has gone.
        MemoryxError: it is larger than `limit`.
    """
    if header.nbytes > limit:
        raise MemoryxError(f"got {header.nbytes:,} bytes of {header.type.name}, expected at most {limit:,}")
    data = bytearray(header.nbytes)
    if data:
        receive_scattered(sock, [memoryview(data)])
    return data


def receive_tensors(sock: socket.socket, header: Header, arrays: Sequence[np.ndarray]) -> None:
    """Receives the tensors of a frame into arrays that are contiguous.

    Raises:
        ConnectionError: the peer has gone.
        MemoryxError: the frame has another size.
    """
    total = sum(padded(array.nbytes) for array in arrays)
    if header.nbytes != total:
        raise MemoryxError(f"got {header.nbytes:,} bytes of {header.type.name}, expected {total:,}")
    buffers = []
    for array in arrays:
        if array.nbytes:
            buffers.append(raw_bytes(array))
            buffers.append(memoryview(bytearray(padded(array.nbytes) - array.nbytes)))
    receive_scattered(sock, [buffer for buffer in buffers if len(buffer)])


def receive_fresh(sock: socket.socket, header: Header, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Receives the tensors of a frame into memory of their own; raises as `receive_tensors`."""
    arrays = views(aligned_empty(padded_bytes(specs)), specs)
    receive_tensors(sock, header, arrays)
    return arrays


def raw_bytes(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array, which may have no elements' type that Python knows."""
    return array.reshape(-1).view(np.uint8).data


def views(memory: np.ndarray, specs: Iterable[TensorSpec]) -> list[np.ndarray]:
    """Arrays one after the other, each padded, in bytes that are aligned."""
    found, offset = [], 0
    for spec in specs:
        dtype = dtype_named(device_dtype(spec.dtype))
        size = math.prod(spec.shape) * dtype.itemsize
        found.append(memory[offset : offset + size].view(dtype).reshape(spec.shape))
        offset += padded(size)
    return found


def padded_bytes(specs: Iterable[TensorSpec]) -> int:
    """The bytes that `views` of some tensors take."""
    return sum(
        padded(math.prod(spec.shape) * dtype_named(device_dtype(spec.dtype)).itemsize) for spec in specs
    )


def aligned_empty(nbytes: int) -> np.ndarray:
    """Bytes at an address that is a multiple of 64."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


@dataclass(frozen=True)
class Opening:
    """A model.

    Attributes:
        schedule: of its step.
        functions: of those that MemoryX computes, by number, what goes in and out; their bytes follow in
            this order.
        token: by which other wafers join, that get the same weights, and readers of the state.
        listeners: how many other wafers.
        shard: which part of the model this process has.
        shards: how many parts there are.
    """

    schedule: Schedule
    functions: dict[int, StepInterface]
    token: str
    listeners: int = 0
    shard: int = 0
    shards: int = 1

    def to_json(self) -> bytes:
        """As text."""
        functions = {
            number: [_to_json(interface.state), _to_json(interface.inputs), _to_json(interface.outputs)]
            for number, interface in self.functions.items()
        }
        fields: dict[str, Any] = {"schedule": self.schedule.to_json(), "functions": functions}
        fields |= {"token": self.token, "listeners": self.listeners}
        return json.dumps({**fields, "shard": self.shard, "shards": self.shards}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Opening:
        """The inverse of `to_json`.

        Raises:
            MemoryxError: the text is none of these.
        """
        try:
            fields = json.loads(text)
            functions = {
                int(number): StepInterface(_from_json(inputs), _from_json(state), _from_json(outputs), ())
                for number, (state, inputs, outputs) in fields["functions"].items()
            }
            schedule = schedule_from_json(fields["schedule"])
            numbers = (int(fields[name]) for name in ("listeners", "shard", "shards"))
            return cls(schedule, functions, str(fields["token"]), *numbers)
        except (ValueError, TypeError, KeyError, ToolkitError) as error:
            raise MemoryxError(f"the wafer told no model that MemoryX understands: {error!r}") from error


def _to_json(specs: tuple[TensorSpec, ...]) -> list[list[Any]]:
    return [[spec.name, spec.dtype, list(spec.shape)] for spec in specs]


def _from_json(specs: list[list[Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in specs)


class FrameSender:
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
            while not has_ended.wait(HEARTBEAT_INTERVAL_S):
                # A frame under way says so, too.
                if self._sending.acquire(blocking=False):
                    try:
                        send_frame(self.sock, FrameType.ALIVE, 0)
                    finally:
                        self._sending.release()
