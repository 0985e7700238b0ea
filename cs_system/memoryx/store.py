"""State in a file that is mapped into memory: it may be larger than the memory of the machine.

The file has its blocks from the start, so a full disk shows before the first step. It has no name any more
once it is mapped: nothing is left of it when the processes that have it end, however they end.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cs_system.errors import MemoryxError, StorageFullError
from cs_system.memoryx.frames import raw_bytes, views
from cs_system.memoryx.layout import Layout

_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python has no name for."""

_madvise: Any = ctypes.CDLL(None).madvise

Pages = Sequence[tuple[int, int]]
"""First byte and end of pieces of a file, both multiples of a page."""


class MappedTensors:
    """Tensors by number, in device dtypes.

    Args:
        descriptor: Of the file, which is closed with `close`.
        layout: Of the tensors in it.
    """

    def __init__(self, descriptor: int, layout: Layout) -> None:
        self.descriptor = descriptor
        self._layout = layout
        self._map = mmap.mmap(descriptor, max(layout.nbytes, 1))
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._arrays = {
            number: views(self._bytes[layout.span(number)], [spec])[0]
            for number, spec in layout.specs.items()
        }

    @classmethod
    def in_directory(cls, directory: Path, layout: Layout) -> MappedTensors:
        """In a new file.

        Raises:
            StorageFullError: the file system has no room.
            MemoryxError: the directory cannot be written.
        """
        return cls(_new_file(directory, max(layout.nbytes, 1)), layout)

    @property
    def nbytes(self) -> int:
        """Of the file."""
        return self._layout.nbytes

    def __getitem__(self, number: int) -> np.ndarray:
        """The memory of a tensor itself."""
        return self._arrays[number]

    def column(self, numbers: Sequence[int]) -> np.ndarray:
        """The memory of tensors that lie one behind the other, with what is between them; one dimension."""
        return self._bytes[self._layout.column(numbers)].view(self._arrays[numbers[0]].dtype)

    def __iter__(self) -> Iterator[int]:
        return iter(self._arrays)

    def __contains__(self, number: object) -> bool:
        return number in self._arrays

    def write(self, number: int, array: np.ndarray) -> None:
        """Replaces a tensor in the file: cheaper than through memory that this process does not have yet."""
        data, offset = raw_bytes(np.ascontiguousarray(array)), self._layout.offsets[number]
        while data.nbytes:
            count = os.pwrite(self.descriptor, data, offset)
            data, offset = data[count:], offset + count

    def pages(self, numbers: Iterable[int]) -> Pages:
        """The pages on which tensors lie; those that lie one behind the other in one piece."""
        found: list[tuple[int, int]] = []
        for span in sorted((self._layout.span(number) for number in numbers), key=lambda span: span.start):
            start, stop = span.start & -mmap.PAGESIZE, -(-span.stop // mmap.PAGESIZE) * mmap.PAGESIZE
            if found and start <= found[-1][1]:
                start = found.pop()[0]
            found.append((start, stop))
        return found

    def have(self, pages: Pages) -> None:
        """Has pages in the memory of this process: whoever computes with them waits for no disk."""
        for start, stop in pages:
            if not _advised(self._bytes[start:stop], _POPULATE_READ):
                self._bytes[start : stop : mmap.PAGESIZE].sum()

    def leave(self, pages: Pages) -> None:
        """Takes pages out of the memory of this process; what is there is in the file."""
        for start, stop in pages:
            _advised(self._bytes[start:stop], mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Closes the file; its memory goes with the last array of it."""
        os.close(self.descriptor)


def _advised(memory: np.ndarray, advice: int) -> bool:
    """Whether the kernel has taken an advice; not by `mmap.madvise`, which would keep all threads waiting."""
    address, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)
    return bool(_madvise(address, size, ctypes.c_int(advice)) == 0)


def _new_file(directory: Path, nbytes: int) -> int:
    try:
        with tempfile.TemporaryFile(dir=directory, prefix="memoryx-") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            return os.dup(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFullError.of(directory, nbytes, _free_bytes(directory)) from error
        raise MemoryxError(
            f"MemoryX cannot keep {nbytes:,} bytes in {directory}: {error.strerror}; name another directory "
            "with --memoryx-dir"
        ) from error


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
