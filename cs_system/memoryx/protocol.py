"""The protocol between a wafer and MemoryX: frames with a header of 56 bytes, little-endian, and a payload.

    offset  0  magic 'CSMX'
            4  u8  version, 2
            5  u8  type
            6  u16 zero
            8  u32 index: of a call in its step, or of a function
           12  u32 zero
           16  u64 nbytes of the payload
           24  16 bytes, the keyed digest of the payload (zeros without one, and in HELLO)
           40  16 bytes, the keyed digest of the bytes before it (zeros in HELLO)

    type      from     index     payload
    HELLO     wafer    -         a nonce
    CHALLENGE MemoryX  -         a nonce
    PROOF     wafer    -         -
    OPEN      wafer    -         JSON: schedule, state, functions
    FUNCTION  wafer    function  its executable
    PUT       wafer    value     a state tensor
    BEGIN     wafer    -         the batch tensors that MemoryX needs
    RESULTS   wafer    call      the results of a call that go to MemoryX
    SNAPSHOT  wafer    count     numbers of the state (u32) to be kept as it is after the steps begun so far
    SHARED    wafer    round     contributions of the other processes' gradients to a round of the update
    JOIN      wafer    -         the name of a model, whose weights the wafer wants to receive too
    READ      reader   -         the name of the model whose snapshots it reads, on a separate connection
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

The key of the digests is derived from a secret and both nonces: those of CHALLENGE prove that MemoryX knows
the secret, and those of PROOF that the wafer does. That of tensors does not cover their padding. A header is
checked before its payload is received, so that nobody waits for bytes of a length that was changed on the
way. CS system and wafers of a group use the same frames.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cs_system.engine.base import Executables
from cs_system.errors import RESUME_ADVICE, CsSystemError, MemoryxError, from_wire
from cs_system.messages import dtype_named
from cs_toolkit.errors import ToolkitError
from cs_toolkit.layered_step import Schedule, schedule_from_json
from cs_toolkit.log_lines import escape_controls
from cs_toolkit.network.connection import Buffer, Connection, PeerGoneError
from cs_toolkit.network.frames import Fields, FrameError, HeaderFormat, decode_object, encode_json
from cs_toolkit.security.proofs import derive_key, new_nonce
from cs_toolkit.security.sealing import TAG_BYTES, FrameKey
from cs_toolkit.security.tls_connection import TlsError
from cs_toolkit.step import StepInterface, TensorSpec, device_bytes, device_dtype

# Arrays at multiples of this address, in bytes, are used by XLA without a copy.
ALIGNMENT = 64

# Limit of a JSON payload.
MAX_TEXT_BYTES = 64 << 20

MAX_EXECUTABLE_BYTES = 2 << 30
MAX_NAME_BYTES = 256
MAX_NONCE_BYTES = 256
MAX_REFUSAL_BYTES = 4096
_PADDING = bytes(ALIGNMENT)
HEARTBEAT_INTERVAL_S = 1.0

# A process that has been silent for this long is reported.
UNRESPONSIVE_S = 5.0


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
    HELLO = 22
    CHALLENGE = 23
    PROOF = 24


_FORMAT = HeaderFormat(b"CSMX", 2, FrameType, "HIIQ16s16s")
NO_TAG = bytes(TAG_BYTES)


@dataclass(frozen=True)
class Header:
    """The header of a frame; the fields are those of the module's table."""

    type: FrameType
    index: int
    nbytes: int
    payload_tag: bytes = NO_TAG
    tag: bytes = NO_TAG

    def encode(self) -> bytes:
        """Return the bytes on the wire."""
        return _FORMAT.pack(self.type, 0, self.index, 0, self.nbytes, self.payload_tag, self.tag)

    def tagged_bytes(self) -> bytes:
        """Return the bytes before the tag."""
        return self.encode()[:-TAG_BYTES]


def padded_size(nbytes: int) -> int:
    """Return the size of a tensor with its padding."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


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
        name: Random name by which other wafers, which get the same weights, and readers of the state find it.
        listeners: Number of other wafers.
        shard: Index of the part of the model that this process stores.
        shards: Number of parts.
    """

    schedule: Schedule
    functions: dict[int, StepInterface]
    name: str
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
        fields |= {"name": self.name, "listeners": self.listeners}
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
            return cls(schedule, functions, str(fields["name"]), *numbers)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, ToolkitError) as error:
            raise MemoryxError(f"the wafer's description of the model is malformed: {error!r}") from error


def _to_json(specs: tuple[TensorSpec, ...]) -> list[list[Any]]:
    return [[spec.name, spec.dtype, list(spec.shape)] for spec in specs]


def _from_json(specs: list[list[Any]]) -> tuple[TensorSpec, ...]:
    found = tuple(TensorSpec(name, dtype, tuple(map(int, shape))) for name, dtype, shape in specs)
    device_bytes(found)  # raises for an unknown dtype
    return found


class FrameChannel:
    """A connection whose sides have proved that they know a secret; from `greet` or `admit`.

    Several threads may send; only one may receive.

    Args:
        connection: The connection, which `close` closes.
        key: Key of the tags.
        is_server: This side has accepted the connection.

    Attributes:
        connection: The connection.
    """

    def __init__(self, connection: Connection, key: FrameKey, is_server: bool) -> None:
        self.connection = connection
        self._key = key
        # Streams of the key: headers, and payloads one further; and the numbers of the next frames in them.
        self._own, self._peer = (2, 0) if is_server else (0, 2)
        self._sent = self._received = 0
        self._sending = threading.Lock()

    def send(self, kind: FrameType, index: int, payload: bytes = b"") -> None:
        """Send a frame whose payload is not tensors.

        Raises:
            ConnectionError: the peer is gone, or does not receive.
        """
        with self._sending:
            self._send(kind, index, [memoryview(payload)] if payload else [], len(payload))

    def send_arrays(self, kind: FrameType, index: int, arrays: Sequence[np.ndarray]) -> None:
        """Send tensors of device dtypes, without a copy if they are contiguous.

        Raises:
            ConnectionError: the peer is gone, or does not receive.
        """
        total = sum(padded_size(array.nbytes) for array in arrays)
        parts = [raw_bytes(np.ascontiguousarray(array)) for array in arrays if array.nbytes]
        with self._sending:
            self._send(kind, index, parts, total)

    def _send(self, kind: FrameType, index: int, parts: Sequence[memoryview], nbytes: int) -> None:
        payload_tag = self._key.tag(self._own + 1, self._sent, b"", parts) if parts else NO_TAG
        head = Header(kind, index, nbytes, payload_tag).tagged_bytes()
        buffers: list[Buffer] = [head + self._key.tag(self._own, self._sent, head)]
        self._sent += 1
        for part in parts:
            buffers.append(part)
            if len(parts) > 1 or nbytes > part.nbytes:
                buffers.append(_PADDING[: padded_size(part.nbytes) - part.nbytes])
        self.connection.send([buffer for buffer in buffers if len(buffer)])

    def receive_header(self, deadline_s: float | None = None) -> Header:
        """Receive the next frame's header; one of the other methods has to receive its payload.

        Raises:
            ConnectionError: the peer is gone.
            MemoryxError: it was changed in transit.
        """
        try:
            header = _receive_header(self.connection, deadline_s)
        except FrameError as error:
            raise _damage_error(f"the header of a frame ({error})") from None
        self.check_header(header)
        return header

    def check_header(self, header: Header) -> None:
        """Check the next received header.

        Raises:
            MemoryxError: it was changed in transit, or the peer does not know the secret.
        """
        if not self._key.is_tag(header.tag, self._peer, self._received, header.tagged_bytes()):
            raise _damage_error(f"the header of {header.type.name}")
        self._received += 1

    def receive_payload(self, header: Header, limit: int, deadline_s: float | None = None) -> bytes:
        """Receive the payload of a frame as bytes.

        Raises:
            ConnectionError: the peer is gone.
            MemoryxError: it is larger than `limit`, or was changed in transit.
        """
        data = _receive_payload(self.connection, header, limit, deadline_s)
        if data:
            self._check_payload(header, [data])
        return data

    def receive_tensors(self, header: Header, arrays: Sequence[np.ndarray]) -> None:
        """Receive the tensors of a frame into contiguous arrays.

        Raises:
            ConnectionError: the peer is gone.
            MemoryxError: the frame has another size, or was changed in transit; the arrays must not be used.
        """
        total = sum(padded_size(array.nbytes) for array in arrays)
        if header.nbytes != total:
            raise MemoryxError(f"got {header.nbytes:,} bytes of {header.type.name}, expected {total:,}")
        parts = [raw_bytes(array) for array in arrays if array.nbytes]
        buffers = []
        for part in parts:
            buffers.append(part)
            buffers.append(memoryview(bytearray(padded_size(part.nbytes) - part.nbytes)))
        self.connection.receive([buffer for buffer in buffers if len(buffer)])
        if parts:
            self._check_payload(header, parts)

    def receive_arrays(self, header: Header, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
        """Receive the tensors of a frame into new arrays; raises the errors of `receive_tensors`."""
        arrays = split_views(aligned_empty(padded_bytes(specs)), specs)
        self.receive_tensors(header, arrays)
        return arrays

    def send_numbers(self, kind: FrameType, numbers: Sequence[int]) -> None:
        """Send numbers of values; the index of the frame is their count.

        Raises:
            ConnectionError: the peer is gone, or does not receive.
        """
        self.send_arrays(kind, len(numbers), [np.array(numbers, np.uint32)])

    def receive_numbers(self, header: Header, limit: int) -> list[int]:
        """Receive numbers of values; raises the errors of `receive_tensors`, also for more than `limit`."""
        numbers = np.empty(min(header.index, limit), np.uint32)
        self.receive_tensors(header, [numbers])
        return [int(number) for number in numbers]

    def _check_payload(self, header: Header, parts: Sequence[Buffer]) -> None:
        # The header has been counted already.
        if not self._key.is_tag(header.payload_tag, self._peer + 1, self._received - 1, b"", parts):
            raise _damage_error(f"the content of {header.type.name}")

    def send_failure(self, error: CsSystemError) -> None:
        """Send the error that ends a connection.

        Raises:
            ConnectionError: the peer is gone, or does not receive.
        """
        self.send(FrameType.FAILED, 0, encode_json({"code": error.code, "message": str(error)}))

    def receive_failure(self, header: Header) -> CsSystemError:
        """Receive the payload of a FAILED frame; return the peer's error.

        Raises:
            ConnectionError: the peer is gone.
            MemoryxError: another payload.
        """
        payload = self.receive_payload(header, MAX_TEXT_BYTES)
        try:
            fields = Fields(header.type.name, decode_object(payload), MAX_TEXT_BYTES)
            return from_wire(fields.text("code"), fields.text("message"), {})
        except FrameError as error:
            raise MemoryxError(str(error)) from None

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
                        self._send(FrameType.ALIVE, 0, [], 0)
                    finally:
                        self._sending.release()


def send_model(channel: FrameChannel, model: ModelDescription, executables: Executables) -> None:
    """Send a model and its functions; `receive_model` is the other side.

    Raises:
        ConnectionError: the peer is gone, or does not receive.
    """
    channel.send(FrameType.OPEN, 0, model.to_json())
    for number, (data, _) in executables.items():
        channel.send(FrameType.FUNCTION, number, data)


def receive_model(channel: FrameChannel, header: Header) -> tuple[ModelDescription, Executables]:
    """Receive a model after its first header.

    Raises:
        ConnectionError: the peer is gone.
        MemoryxError: it sends something else.
    """
    model = ModelDescription.from_json(channel.receive_payload(header, MAX_TEXT_BYTES))
    executables = {}
    for number, interface in model.functions.items():
        data = channel.receive_payload(channel.receive_header(), MAX_EXECUTABLE_BYTES)
        executables[number] = data, interface
    return model, executables


def greet(connection: Connection, secret: str, limit_s: float, name: str = "the peer") -> FrameChannel:
    """Exchange proofs of a secret with the peer that this side has connected to.

    Args:
        connection: The connection; without a time limit afterwards.
        secret: The common secret.
        limit_s: How long the peer may take.
        name: Name of the peer in messages.

    Raises:
        ConnectionError: the peer is gone, or silent.
        MemoryxError: it refuses this side, does not know the secret, or speaks another protocol.
    """
    deadline_s = time.monotonic() + limit_s
    nonce = new_nonce()
    # A peer that refuses the certificate of this side sends the reason, and closes without waiting for HELLO.
    with contextlib.suppress(PeerGoneError):
        connection.send([Header(FrameType.HELLO, 0, len(nonce)).encode(), nonce.encode()])
    try:
        header = _receive_header(connection, deadline_s)
        if header.type is FrameType.FAILED:
            refusal = decode_object(_receive_payload(connection, header, MAX_REFUSAL_BYTES, deadline_s))
            # Without a proof: the text is shown, and nothing else depends on it.
            reason = escape_controls(Fields("FAILED", refusal).text("message"))
            raise MemoryxError(f"{name} refuses the connection: {reason}")
        _expect(header, FrameType.CHALLENGE)
    except TlsError as error:
        raise MemoryxError(f"{name}: {error}") from None
    except FrameError as error:
        raise MemoryxError(
            f"{error}: {name} is no part of a CS system, or one of another version of the toolkit"
        ) from None
    answer = _receive_payload(connection, header, MAX_NONCE_BYTES, deadline_s)
    channel = FrameChannel(connection, _derive_key(secret, nonce.encode(), answer), is_server=False)
    try:
        channel.check_header(header)
    except MemoryxError:
        raise MemoryxError(
            f"{name} does not know the secret of this CS system: give `cs_system serve` and `cs_system "
            "memoryx serve` the same --memoryx-secret-file"
        ) from None
    channel.send(FrameType.PROOF, 0)
    connection.limit_receive(None)
    return channel


def admit(connection: Connection, secret: str, limit_s: float) -> FrameChannel:
    """Exchange proofs of a secret with a peer that has connected to this side; arguments as of `greet`.

    Raises:
        ConnectionError: the peer is gone, or silent.
        FrameError: it speaks another protocol.
        MemoryxError: it does not know the secret.
    """
    deadline_s = time.monotonic() + limit_s
    header = _receive_header(connection, deadline_s)
    _expect(header, FrameType.HELLO)
    theirs = _receive_payload(connection, header, MAX_NONCE_BYTES, deadline_s)
    nonce = new_nonce().encode()
    channel = FrameChannel(connection, _derive_key(secret, theirs, nonce), is_server=True)
    channel.send(FrameType.CHALLENGE, 0, nonce)
    header = _receive_header(connection, deadline_s)
    _expect(header, FrameType.PROOF)
    try:
        channel.check_header(header)
    except MemoryxError:
        raise MemoryxError("it does not know the secret") from None
    connection.limit_receive(None)
    return channel


def refuse(connection: Connection, error: Exception) -> None:
    """Send the reason to a peer that is not admitted, which may be one of another version."""
    payload = encode_json({"code": MemoryxError.code, "message": str(error)})
    connection.send_now(Header(FrameType.FAILED, 0, len(payload)).encode() + payload)


def _derive_key(secret: str, client_nonce: bytes, server_nonce: bytes) -> FrameKey:
    return FrameKey(derive_key(secret, "MemoryX", client_nonce.hex(), server_nonce.hex()))


def _expect(header: Header, kind: FrameType) -> None:
    if header.type is not kind:
        raise FrameError(f"got {header.type.name}, expected {kind.name}")


def _receive_header(connection: Connection, deadline_s: float | None) -> Header:
    data = bytearray(_FORMAT.size)
    view = memoryview(data)
    if deadline_s is not None:
        # In a handshake: a peer that speaks something else may send less than a header.
        connection.receive([view[:4]], deadline_s)
        _FORMAT.check_magic(data[:4])
        view = view[4:]
    connection.receive([view], deadline_s)
    kind, zero, index, also_zero, nbytes, payload_tag, tag = _FORMAT.unpack(data)
    if zero or also_zero:
        raise FrameError(f"{kind.name}: got {zero:#x} and {also_zero:#x}, expected zeros")
    return Header(kind, index, nbytes, payload_tag, tag)


def _receive_payload(
    connection: Connection, header: Header, limit: int, deadline_s: float | None = None
) -> bytes:
    if header.nbytes > limit:
        raise MemoryxError(f"got {header.nbytes:,} bytes of {header.type.name}, expected at most {limit:,}")
    data = bytearray(header.nbytes)
    if data:
        connection.receive([memoryview(data)], deadline_s)
    return bytes(data)


def _damage_error(frame: str) -> MemoryxError:
    return MemoryxError(
        f"{frame} was changed in transit between the wafer and MemoryX, or the CS system; check the network "
        f"between them, and {RESUME_ADVICE}"
    )
