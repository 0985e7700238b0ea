"""Memory in which a worker gives its batches to a CS system on the same machine.

Every connection has its own: a worker that was stopped, replaced by another process and continued then writes
into memory that is no longer read. So the system copies each batch into its ring. That is one copy more
than memory of the ring itself would need, and still several times as fast as a socket.

    offset  0  16 bytes token, by which a worker recognizes the memory that WELCOME names
           16  u64 number of the worker's batches that the system has copied
         4096  slots: batch `seq` is in slot `seq` modulo their number, its fields padded to 64 bytes
"""

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from cs_stream.batches import content_digest, padded_size, use_huge_pages
from cs_toolkit.errors import ToolkitError

_SLOTS_AT = 4096
_TOKEN_BYTES = 16
_COPIED = struct.Struct("@Q")
# A digest of a piece that was just copied finds it in the processor's cache.
_PIECE_BYTES = 1 << 18
# Against a peer that shrinks the file: reading beyond its end would be a SIGBUS.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class NotSharedError(ToolkitError):
    """The system's memory cannot be opened: it runs on another machine, or in another container."""


class SharedMemory:
    """The mapped memory of a connection. Copying releases Python's lock.

    Args:
        descriptor: Its file, which this object owns.
        slot_bytes: Size of a slot, a multiple of 64.
    """

    # Not multiprocessing.shared_memory: up to Python 3.12 its resource tracker unlinks the memory when the
    # first of two independent processes ends, and a name in /dev/shm remains after a kill.

    def __init__(self, descriptor: int, slot_bytes: int) -> None:
        self._descriptor = descriptor
        self._slot_bytes = slot_bytes
        self._map = mmap.mmap(descriptor, 0)
        use_huge_pages(self._map)
        self._slots = (len(self._map) - _SLOTS_AT) // slot_bytes

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> Self:
        """Create memory for a connection.

        Raises:
            OSError: the machine does not have it.
        """
        descriptor = os.memfd_create("cs_stream", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, _SLOTS_AT + slots * slot_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            os.pwrite(descriptor, secrets.token_bytes(_TOKEN_BYTES), 0)
            return cls(descriptor, slot_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: str, token: str, slot_bytes: int) -> Self:
        """Open the memory that WELCOME names.

        Raises:
            NotSharedError: it is missing, or the path is that of something else.
        """
        try:
            # O_NONBLOCK: the path of another machine may be anything here, a pipe for example.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise NotSharedError(f"{path}: {error.strerror}") from None
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise NotSharedError(f"{path}: the file can change its size")
            found = os.pread(descriptor, _TOKEN_BYTES, 0)
            if found.hex() != token or os.fstat(descriptor).st_size < _SLOTS_AT + slot_bytes:
                raise NotSharedError(f"{path}: the memory is that of another connection")
            return cls(descriptor, slot_bytes)
        except OSError as error:
            os.close(descriptor)
            raise NotSharedError(f"{path}: {error.strerror}") from None
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def path(self) -> str:
        """Where processes of the same user find it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def token(self) -> str:
        """By which a worker recognizes it."""
        return self._map[:_TOKEN_BYTES].hex()

    def has_room(self, seq: int) -> bool:
        """Return True if the slot of a batch is free: the system has copied its last batch."""
        copied: int = _COPIED.unpack_from(self._map, _TOKEN_BYTES)[0]
        return seq < copied + self._slots

    def write(self, seq: int, fields: Sequence[memoryview]) -> None:
        """Copy a batch into its slot."""
        start = self._start(seq)
        for field in fields:
            place = np.frombuffer(self._map, np.uint8, field.nbytes, start)
            np.copyto(place, np.frombuffer(field, np.uint8))
            start += padded_size(field.nbytes)

    def read(self, seq: int, fields: Sequence[memoryview], has_digest: bool = False) -> bytes:
        """Copy a batch out of its slot; `count` makes the slot free.

        Returns:
            The `content_digest` of the fields if `has_digest`.
        """
        if has_digest:
            return content_digest(self._copy(seq, fields))
        for _ in self._copy(seq, fields):
            pass
        return b""

    def _copy(self, seq: int, fields: Sequence[memoryview]) -> Iterator[memoryview]:
        start = self._start(seq)
        for field in fields:
            for first in range(0, field.nbytes, _PIECE_BYTES):
                piece = field[first : first + _PIECE_BYTES]
                place = np.frombuffer(self._map, np.uint8, piece.nbytes, start + first)
                np.copyto(np.frombuffer(piece, np.uint8), place)
                yield piece
            start += padded_size(field.nbytes)

    def count(self, seq: int) -> None:
        """Count a batch as copied; it may have come another way."""
        _COPIED.pack_into(self._map, _TOKEN_BYTES, seq + 1)

    def close(self) -> None:
        """Return the memory; a second call does nothing."""
        if self._descriptor >= 0:
            self._map.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def _start(self, seq: int) -> int:
        return _SLOTS_AT + seq % self._slots * self._slot_bytes
