"""State in a file that is mapped into memory: it may be larger than the memory of the machine.

The file has its blocks from the start, so a full disk shows before the first step. It has no name any more
once it is mapped: nothing is left of it when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from cs_system.errors import MemoryxError, StorageFullError
from cs_system.memoryx.frames import padded, padded_bytes, views
from cs_system.wire import dtype_named
from cs_toolkit.step import TensorSpec, device_dtype


class MappedTensors:
    """Tensors by number, in device dtypes.

    Args:
        directory: Where the file lies.
        specs: Of the tensors.
        columns: Tensors of one dtype that lie one behind the other; others than in `specs` do not count.

    Raises:
        StorageFullError: the file system has no room.
        MemoryxError: the directory cannot be written.
    """

    def __init__(
        self, directory: Path, specs: Mapping[int, TensorSpec], columns: Iterable[tuple[int, ...]] = ()
    ) -> None:
        here = [numbers for numbers in columns if numbers[0] in specs]
        self._offsets, self.nbytes = _layout(specs, here)
        self._bytes = np.frombuffer(_mapped_file(directory, max(self.nbytes, 1)), np.uint8)
        self._specs = specs
        self._arrays = {
            number: views(self._bytes[offset : offset + padded_bytes([specs[number]])], [specs[number]])[0]
            for number, offset in self._offsets.items()
        }

    def __getitem__(self, number: int) -> np.ndarray:
        """The memory of a tensor itself."""
        return self._arrays[number]

    def column(self, numbers: Sequence[int]) -> np.ndarray:
        """The memory of tensors that lie one behind the other, with what is between them; one dimension."""
        first, last = self._arrays[numbers[0]], numbers[-1]
        end = self._offsets[last] + _column_bytes(self._specs[last])
        return self._bytes[self._offsets[numbers[0]] : end].view(first.dtype)

    def __iter__(self) -> Iterator[int]:
        return iter(self._arrays)

    def __contains__(self, number: object) -> bool:
        return number in self._arrays


def _layout(
    specs: Mapping[int, TensorSpec], columns: Iterable[tuple[int, ...]]
) -> tuple[dict[int, int], int]:
    """Where each tensor begins, and the bytes of all."""
    in_columns = [number for numbers in columns for number in numbers]
    sizes = {number: padded_bytes([spec]) for number, spec in specs.items()}
    sizes |= {number: _column_bytes(specs[number]) for number in in_columns}
    offsets, end = {}, 0
    for number in dict.fromkeys((*in_columns, *specs)):
        offsets[number] = end
        end += sizes[number]
    return offsets, end


def _column_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor in a column: as many elements in all columns, whatever their dtypes."""
    return padded(math.prod(spec.shape)) * dtype_named(device_dtype(spec.dtype)).itemsize


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
