"""The frames of CSBS/1: a header of 64 bytes, little-endian, and a payload of `nbytes` bytes.

    offset  0  magic 'CSBS'
            4  u8  version, 1
            5  u8  type
            6  u16 flags
            8  u32 worker
           12  u32 generation of the connection (0 before WELCOME)
           16  u64 seq
           24  u64 nbytes of the payload
           32  u64 xxh3_64 of the payload's fields (BATCH with FLAG_CHECKSUM; else 0)
           40  24 zero bytes

    type     from    seq                            payload
    HELLO    worker  0                              JSON, `messages.Hello`
    WELCOME  system  first seq to send              JSON, `messages.Welcome`
    BATCH    worker  number of the batch            fields in layout order, each padded to 64 bytes
    CREDIT   system  every seq below may be sent    -
    EOS      worker  number of batches in all       -
    BYE      system  0                              -                   the normal end of the run
    ERR      both    0                              JSON, `messages.Failure`; the connection ends
    PING     both    0                              -                   FLAG_PONG marks the answer

The digest is over the fields' own bytes, in layout order: padding is neither checked nor kept.
"""

from dataclasses import dataclass
from enum import IntEnum

from cs_stream.errors import ProtocolError
from cs_toolkit.wire import HeaderFormat

MAGIC = b"CSBS"
VERSION = 1
HEADER_BYTES = 64
MAX_HELLO_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 16

FLAG_CHECKSUM = 1
FLAG_PONG = 1

_RESERVED = bytes(24)


class FrameType(IntEnum):
    """The type byte of a frame."""

    HELLO = 1
    WELCOME = 2
    BATCH = 3
    CREDIT = 4
    EOS = 5
    BYE = 6
    ERR = 7
    PING = 8


_FORMAT = HeaderFormat(MAGIC, VERSION, FrameType, "HIIQQQ24s")

# A BATCH is bounded by the layout, which the state machine knows.
_MAX_PAYLOAD_BYTES = {
    FrameType.HELLO: MAX_HELLO_BYTES,
    FrameType.WELCOME: MAX_TEXT_BYTES,
    FrameType.ERR: MAX_TEXT_BYTES,
    FrameType.BATCH: (1 << 64) - 1,
}
_ALLOWED_FLAGS = {FrameType.BATCH: FLAG_CHECKSUM, FrameType.PING: FLAG_PONG}


@dataclass(frozen=True, slots=True)
class Header:
    """One frame's header; the fields are those of the module's table."""

    type: FrameType
    worker: int
    generation: int
    seq: int = 0
    nbytes: int = 0
    checksum: int = 0
    flags: int = 0

    def encode(self) -> bytes:
        """Return the 64 bytes on the wire."""
        return _FORMAT.pack(
            self.type,
            self.flags,
            self.worker,
            self.generation,
            self.seq,
            self.nbytes,
            self.checksum,
            _RESERVED,
        )


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """Decode a header of 64 bytes.

    Raises:
        FrameError: not a header of this version of the protocol.
        ProtocolError: flags that the type does not have, or a payload that it must not have.
    """
    frame_type, flags, worker, generation, seq, nbytes, checksum, reserved = _FORMAT.unpack(data)
    if flags & ~_ALLOWED_FLAGS.get(frame_type, 0):
        raise ProtocolError(f"{frame_type.name} flags: got {flags:#x}, which this type does not have")
    limit = _MAX_PAYLOAD_BYTES.get(frame_type, 0)
    if nbytes > limit:
        raise ProtocolError(f"{frame_type.name} nbytes: got {nbytes}, expected at most {limit}")
    if reserved != _RESERVED:
        raise ProtocolError(f"{frame_type.name} reserved bytes: got {reserved.hex()}, expected zeros")
    if checksum and not (frame_type is FrameType.BATCH and flags & FLAG_CHECKSUM):
        raise ProtocolError(f"{frame_type.name} checksum: got {checksum:#x}, expected 0 without its flag")
    return Header(frame_type, worker, generation, seq, nbytes, checksum, flags)


@dataclass(frozen=True, slots=True)
class Frame:
    """A header with its payload, except that the payload of a BATCH frame is never stored here."""

    header: Header
    payload: bytes = b""


class FrameBuffer:
    """Assembles frames from arbitrary pieces of a byte stream.

    The payload of a BATCH is not collected: its frame is complete with the header, and the caller receives
    the following bytes itself. So a caller must never feed more than `wanted` bytes.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._header: Header | None = None

    @property
    def wanted(self) -> int:
        """Bytes missing from the current header or control payload; at least 1."""
        if self._header is None:
            return HEADER_BYTES - len(self._data)
        return self._header.nbytes - len(self._data)

    def feed(self, data: bytes | bytearray | memoryview) -> Frame | None:
        """Add up to `wanted` bytes; return the frame that they complete, or None.

        Raises:
            FrameError: the bytes are not a legal header.
            ValueError: more bytes than wanted (a bug of the caller).
        """
        if len(data) > self.wanted:
            raise ValueError(f"got {len(data)} bytes, expected at most {self.wanted}")
        # The common case, a whole header, needs no copy.
        if len(data) == HEADER_BYTES and not self._data and self._header is None:
            return self._take_header(decode_header(data))
        self._data += data
        if self._header is None:
            _FORMAT.check_magic(self._data)
            if len(self._data) < HEADER_BYTES:
                return None
            header = decode_header(self._data)
            self._data.clear()
            return self._take_header(header)
        if len(self._data) < self._header.nbytes:
            return None
        frame = Frame(self._header, bytes(self._data))
        self._data.clear()
        self._header = None
        return frame

    def _take_header(self, header: Header) -> Frame | None:
        if header.type is FrameType.BATCH or header.nbytes == 0:
            return Frame(header)
        self._header = header
        return None
