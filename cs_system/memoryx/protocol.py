"""The protocol between a wafer and MemoryX: frames with a header of 24 bytes, little-endian, and a payload.

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
    PUT       wafer    value     a state tensor
    BEGIN     wafer    -         the batch tensors that MemoryX needs
    RESULTS   wafer    call      the results of a call that go to MemoryX
    SNAPSHOT  wafer    count     numbers of the state (u32) to be kept as it is after the steps begun so far
    SHARED    wafer    round     contributions of the other processes' gradients to a round of the update
    JOIN      wafer    -         the token of a group, whose weights the wafer wants to receive too
    READ      reader   -         the token of the model whose snapshots it reads, on a separate connection
    GET       reader   value     -
    END       reader   -         -               the rest of the snapshot is not read
    ALIVE     both     -         -               heartbeat, every second; from a wafer to its CS system it has
                                                 a JSON payload: a report of its work
    MAPPED    wafer    0 or 1    -               whether the wafer has mapped the files of MemoryX: if so,
                                                 weights and results are in the files and not in frames
    DONE      MemoryX  -         -               a snapshot is kept, or has ended
    OPENED    MemoryX  -         JSON: its files  OPEN is understood
    UPDATED   MemoryX  step      -               to a wafer that has mapped the files: the results of a step,
                                                 counted from 1, have been read
    WEIGHTS   MemoryX  call      the weights of a call
    ANSWERS   MemoryX  -         the step outputs that the update computes
    STATE     MemoryX  value     a state tensor, to the reader
    PARTIAL   MemoryX  round     the contribution of its gradients to a round of the update
    FAILED    MemoryX  -         JSON: code and message of the error that ends the connection

Tensors are in the order of `layered_step.traffic`, each padded to 64 bytes, so that a device
can read them where they were received.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cs_system.errors import CsSystemError, MemoryxError, from_wire
from cs_system.messages import dtype_named
from cs_toolkit.errors import ToolkitError
from cs_toolkit.layered_step import Schedule, schedule_from_json
from cs_toolkit.step import StepInterface, TensorSpec, device_dtype
from cs_toolkit.wire import Connection, Fields, FrameError, HeaderFormat, decode_object, encode_json

# Arrays at multiples of this address, in bytes, are used by XLA without a copy.
ALIGNMENT = 64

# Limit of a JSON payload.
MAX_TEXT_BYTES = 64 << 20

MAX_TOKEN_BYTES = 256
_PADDING = bytes(ALIGNMENT)
HEARTBEAT_INTERVAL_S = 1.0

# A process that has been silent for this long is reported.
UNRESPONSIVE_S = 5.0

# A process that has been silent for this long is ended. Less than the 100 s after which JAX aborts a group.
HEARTBEAT_TIMEOUT_S = 60.0


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


_FORMAT = HeaderFormat(b"CSMX", 1, FrameType, "HIIQ")


@dataclass(frozen=True)
class Header:
    """The header of a frame; the fields are those of the module's table."""

    type: FrameType
    index: int
    nbytes: int


def padded_size(nbytes: int) -> int:
    """Return the size of a tensor with its padding."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def send_frame(
    connection: Connection, kind: FrameType, index: int, payload: bytes | memoryview = b""
) -> None:
    """Send a frame whose payload is not tensors.

    Raises:
        ConnectionError: the peer is gone, or does not receive.
    """
    head = _FORMAT.pack(kind, 0, index, 0, memoryview(payload).nbytes)
    connection.send([head, payload] if payload else [head])


def send_tensors(connection: Connection, kind: FrameType, index: int, arrays: Sequence[np.ndarray]) -> None:
    """Send tensors of device dtypes, without a copy if they are contiguous.

    Raises:
        ConnectionError: the peer is gone, or does not receive.
    """
    total = sum(padded_size(array.nbytes) for array in arrays)
    parts: list[bytes | memoryview] = [_FORMAT.pack(kind, 0, index, 0, total)]
    for array in arrays:
        if array.nbytes:
            parts.append(raw_bytes(np.ascontiguousarray(array)))
            parts.append(_PADDING[: padded_size(array.nbytes) - array.nbytes])
    connection.send([part for part in parts if len(part)])


def receive_header(connection: Connection, deadline_s: float | None = None) -> Header:
    """Receive the next frame's header; its payload follows.

    Raises:
        ConnectionError: the peer is gone.
        MemoryxError: the peer speaks another protocol.
    """
    data = bytearray(_FORMAT.size)
    connection.receive([memoryview(data)], deadline_s)
    try:
        kind, _, index, _, nbytes = _FORMAT.unpack(data)
    except FrameError as error:
        raise MemoryxError(
            f"{error}: the peer is no part of a CS system, or one of another version of the toolkit"
        ) from None
    return Header(kind, index, nbytes)


def receive_payload(
    connection: Connection, header: Header, limit: int, deadline_s: float | None = None
) -> bytearray:
    """Receive the payload of a frame as bytes.

    Raises:
        ConnectionError: the peer is gone.
        MemoryxError: it is larger than `limit`.
    """
    if header.nbytes > limit:
        raise MemoryxError(f"got {header.nbytes:,} bytes of {header.type.name}, expected at most {limit:,}")
    data = bytearray(header.nbytes)
    if data:
        connection.receive([memoryview(data)], deadline_s)
    return data


def receive_tensors(connection: Connection, header: Header, arrays: Sequence[np.ndarray]) -> None:
    """Receive the tensors of a frame into contiguous arrays.

    Raises:
        ConnectionError: the peer is gone.
        MemoryxError: the frame has another size.
    """
    total = sum(padded_size(array.nbytes) for array in arrays)
    if header.nbytes != total:
        raise MemoryxError(f"got {header.nbytes:,} bytes of {header.type.name}, expected {total:,}")
    buffers = []
    for array in arrays:
        if array.nbytes:
            buffers.append(raw_bytes(array))
            buffers.append(memoryview(bytearray(padded_size(array.nbytes) - array.nbytes)))
    connection.receive([buffer for buffer in buffers if len(buffer)])


def receive_arrays(connection: Connection, header: Header, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Receive the tensors of a frame into new arrays; raises the errors of `receive_tensors`."""
    arrays = split_views(aligned_empty(padded_bytes(specs)), specs)
    receive_tensors(connection, header, arrays)
    return arrays


def send_failure(sender: FrameSender, error: CsSystemError) -> None:
    """Send the error that ends a connection.

    Raises:
        ConnectionError: the peer is gone, or does not receive.
    """
    sender.send(FrameType.FAILED, 0, encode_json({"code": error.code, "message": str(error)}))


def receive_failure(connection: Connection, header: Header) -> CsSystemError:
    """Receive the payload of a FAILED frame; return the peer's error.

    Raises:
        ConnectionError: the peer is gone.
        MemoryxError: another payload.
    """
    payload = receive_payload(connection, header, MAX_TEXT_BYTES)
    try:
        fields = Fields(header.type.name, decode_object(payload), MAX_TEXT_BYTES)
        return from_wire(fields.text("code"), fields.text("message"), {})
    except FrameError as error:
        raise MemoryxError(str(error)) from None


def raw_bytes(array: np.ndarray) -> memoryview:
    """Return the memory of a contiguous array, even if the buffer protocol does not know its dtype."""
    return array.reshape(-1).view(np.uint8).data


def split_views(memory: np.ndarray, specs: Iterable[TensorSpec]) -> list[np.ndarray]:
    """Return views of contiguous padded arrays in aligned memory."""
    found, offset = [], 0
    for spec in specs:
        dtype = dtype_named(device_dtype(spec.dtype))
        size = math.prod(spec.shape) * dtype.itemsize
        found.append(memory[offset : offset + size].view(dtype).reshape(spec.shape))
        offset += padded_size(size)
    return found


def padded_bytes(specs: Iterable[TensorSpec]) -> int:
    """Return the size in bytes that `split_views` needs for some tensors."""
    return sum(
        padded_size(math.prod(spec.shape) * dtype_named(device_dtype(spec.dtype)).itemsize) for spec in specs
    )


def aligned_empty(nbytes: int) -> np.ndarray:
    """Allocate bytes at an address that is a multiple of 64."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


@dataclass(frozen=True)
class ModelDescription:
    """The description of a model that a wafer sends before the state.

    Attributes:
        schedule: Schedule of its step.
        functions: By number, the interfaces of the functions that MemoryX computes; their bytes follow in
            this order.
        token: Secret with which other wafers join, which get the same weights, and readers of the state.
        listeners: Number of other wafers.
        shard: Index of the part of the model that this process stores.
        shards: Number of parts.
    """

    schedule: Schedule
    functions: dict[int, StepInterface]
    token: str
    listeners: int = 0
    shard: int = 0
    shards: int = 1

    def to_json(self) -> bytes:
        """Encode the description."""
        functions = {
            number: [_to_json(interface.state), _to_json(interface.inputs), _to_json(interface.outputs)]
            for number, interface in self.functions.items()
        }
        fields: dict[str, Any] = {"schedule": self.schedule.to_json(), "functions": functions}
        fields |= {"token": self.token, "listeners": self.listeners}
        return encode_json({**fields, "shard": self.shard, "shards": self.shards})

    @classmethod
    def from_json(cls, text: bytes) -> ModelDescription:
        """Decode a description.

        Raises:
            MemoryxError: the text is not a description.
        """
        try:
            fields = decode_object(text)
            functions = {
                int(number): StepInterface(_from_json(inputs), _from_json(state), _from_json(outputs), ())
                for number, (state, inputs, outputs) in fields["functions"].items()
            }
            schedule = schedule_from_json(fields["schedule"])
            numbers = (int(fields[name]) for name in ("listeners", "shard", "shards"))
            return cls(schedule, functions, str(fields["token"]), *numbers)
        except (ValueError, TypeError, KeyError, ToolkitError) as error:
            raise MemoryxError(f"the wafer's description of the model is malformed: {error!r}") from error


def _to_json(specs: tuple[TensorSpec, ...]) -> list[list[Any]]:
    return [[spec.name, spec.dtype, list(spec.shape)] for spec in specs]


def _from_json(specs: list[list[Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in specs)


class FrameSender:
    """The sending side of a connection, shared by several threads.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._sending = threading.Lock()

    def send(self, kind: FrameType, index: int, payload: bytes = b"") -> None:
        """Send a frame whose payload is not tensors; raises the errors of `send_frame`."""
        with self._sending:
            send_frame(self.connection, kind, index, payload)

    def send_arrays(self, kind: FrameType, index: int, arrays: Sequence[np.ndarray]) -> None:
        """Send tensors; raises the errors of `send_tensors`."""
        with self._sending:
            send_tensors(self.connection, kind, index, arrays)

    @contextlib.contextmanager
    def heartbeats(self) -> Iterator[None]:
        """Send a heartbeat every second of the body."""
        has_ended = threading.Event()
        thread = threading.Thread(target=self._send_heartbeats, args=(has_ended,), name="alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()

    def _send_heartbeats(self, has_ended: threading.Event) -> None:
        with contextlib.suppress(ConnectionError):
            while not has_ended.wait(HEARTBEAT_INTERVAL_S):
                # A frame that is being sent serves as a heartbeat.
                if self._sending.acquire(blocking=False):
                    try:
                        send_frame(self.connection, FrameType.ALIVE, 0)
                    finally:
                        self._sending.release()
