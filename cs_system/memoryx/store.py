"""State in a file that is mapped into memory: it may be larger than the memory of the machine.

The file has its blocks from the start, so a full disk shows before the first step. It has no name any more
once it is mapped: nothing is left of it when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cs_system.errors import MemoryxError, StorageFullError
from cs_system.memoryx.frames import padded_bytes, views
from cs_toolkit.step import TensorSpec


class MappedTensors:
    """Tensors by number, in device dtypes.

    Args:
        directory: Where the file lies.
        specs: Of the tensors.

    Raises:
        StorageFullError: the file system has no room.
        MemoryxError: the directory cannot be written.
    """

    def __init__(self, directory: Path, specs: Mapping[int, TensorSpec]) -> None:
        self.nbytes = padded_bytes(specs.values())
        self._memory = _mapped_file(directory, max(self.nbytes, 1))
        arrays = views(np.frombuffer(self._memory, np.uint8), specs.values())
        self._arrays = dict(zip(specs, arrays, strict=True))

    def __getitem__(self, number: int) -> np.ndarray:
        """The memory of a tensor itself."""
        return self._arrays[number]

    def __contains__(self, number: object) -> bool:
        return number in self._arrays


def _mapped_file(directory: Path, nbytes: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile(dir=directory, prefix="memoryx-") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            return mmap.mmap(file.fileno(), nbytes)
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
