"""Checksums of a checkpoint: one for each tensor, and one for the rest of the file.

They are in a trailer after the end of the HDF5 file, which HDF5 ignores, so that other readers of the format
still read the file. They are checked before HDF5 opens it, because its library does not notice all damage to
the structure, and never returns from some.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from cstorch.errors import CheckpointError

# Fletcher-32 of HDF5 was rejected: it needs chunks, which cannot be memory-mapped, and leaves the structure
# unchecked. xxh3 of 64 bits hashes 28 GB/s on one core, crc32 4.7, SHA-256 1.7 (numbers of a 2-core machine).
ALGORITHM = "xxh3_64"
_TAIL = struct.Struct("<8sQQ")  # magic, bytes of the table, checksum of the table
_MAGIC = b"CSCHKSUM"
_BUFFER_BYTES = 1 << 18
_THREADS = 2
# Tensors of fewer bytes are hashed without another thread.
_PARALLEL_BYTES = 4 << 20
_ADVICE = "load an older checkpoint, or copy the file again"


class Extent(NamedTuple):
    """Place and kind of a tensor's elements in the file, and their checksum.

    Attributes:
        offset: of the first byte in the file.
        size: bytes.
        dtype: element type in the file, as `numpy.dtype.str`.
        checksum: of these values, of the key, and of the elements; 0 until they are hashed.
    """

    offset: int
    size: int
    dtype: str
    shape: tuple[int, ...]
    checksum: int = 0


def start_checksum(key: str, extent: Extent) -> Any:
    """Return a hash that covers the key, the place and the kind of a tensor; elements must follow."""
    text = json.dumps([key, extent.offset, extent.dtype, list(extent.shape)])
    return xxhash.xxh3_64(text.encode())


def append_checksums(path: Path, extents: Mapping[str, Extent]) -> None:
    """Append the trailer to an HDF5 file that is complete and closed."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        table = json.dumps(
            {
                "algorithm": ALGORITHM,
                "size": end,
                "structure": _hash_structure(file.fileno(), end, extents.values()),
                "tensors": extents,
            }
        ).encode()
        file.write(table + _TAIL.pack(_MAGIC, len(table), xxhash.xxh3_64_intdigest(table)))


@dataclass(frozen=True)
class Checksums:
    """The checksums in a file.

    Attributes:
        path: of the file.
        size: bytes of the HDF5 file in it.
        structure: checksum of all bytes that are not elements of tensors.
        extents: extent of each tensor by its key.
    """

    path: Path
    size: int
    structure: int
    extents: Mapping[str, Extent]

    @classmethod
    def read(cls, path: Path, file: int) -> Checksums | None:
        """Return the checksums in an open file, None if it has none.

        Raises:
            CheckpointError: they are damaged.
        """
        length = os.fstat(file).st_size
        tail = os.pread(file, _TAIL.size, max(0, length - _TAIL.size))
        if not tail.startswith(_MAGIC) or len(tail) < _TAIL.size:
            return None
        _, size, checksum = _TAIL.unpack(tail)
        start = length - _TAIL.size - size
        table = os.pread(file, size, start) if start >= 0 else b""
        if xxhash.xxh3_64_intdigest(table) != checksum:
            raise CheckpointError(f"{path}: its checksums are damaged; {_ADVICE}")
        try:
            found = json.loads(table)
            extents = {key: Extent(*each) for key, each in found["tensors"].items()}
            if found["algorithm"] != ALGORITHM:
                raise CheckpointError(
                    f"{path} has checksums of the kind {found['algorithm']}, expected {ALGORITHM}; load it "
                    "with the release that wrote it"
                )
            if found["size"] != start or any(
                each.size < 0 or each.offset < 0 or each.offset + each.size > start
                for each in extents.values()
            ):
                raise ValueError
            return cls(path, start, found["structure"], extents)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise CheckpointError(
                f"{path}: its checksums do not describe this file, it was changed after it was saved; "
                f"{_ADVICE}"
            ) from None

    def check(self, file: int) -> None:
        """Compare the whole file with the checksums.

        Raises:
            CheckpointError: the file is damaged; names the first damaged tensor.
            OSError: the disk has a defect.
        """
        if _hash_structure(file, self.size, self.extents.values()) != self.structure:
            raise CheckpointError(
                f"{self.path} is damaged: the description of its tensors has changed since it was saved; "
                f"{_ADVICE}"
            )
        large = [item for item in self.extents.items() if item[1].size >= _PARALLEL_BYTES]
        with ThreadPoolExecutor(_THREADS, "checksum") as pool:
            results = pool.map(lambda item: self._is_intact(file, *item), large)
            small = (item for item in self.extents.items() if item[1].size < _PARALLEL_BYTES)
            damaged = [key for key, extent in small if not self._is_intact(file, key, extent)]
            damaged += [key for (key, _), intact in zip(large, results, strict=True) if not intact]
        if damaged:
            more = f" and {len(damaged) - 1} others" if len(damaged) > 1 else ""
            raise CheckpointError(
                f"{self.path} is damaged: the tensor {damaged[0]}{more} has changed since it was saved; "
                f"{_ADVICE}"
            )

    def covers(self, key: str, offset: int, dtype: str, shape: tuple[int, ...]) -> bool:
        """Return True if the elements that a data set refers to are those that have been checked."""
        extent = self.extents.get(key)
        return extent is not None and (extent.offset, extent.dtype, tuple(extent.shape)) == (
            offset,
            dtype,
            shape,
        )

    def _is_intact(self, file: int, key: str, extent: Extent) -> bool:
        state = start_checksum(key, extent)
        _hash_range(file, extent.offset, extent.size, state)
        return bool(state.intdigest() == extent.checksum)


def _hash_structure(file: int, end: int, extents: Iterable[Extent]) -> int:
    """Return the checksum of the bytes before `end` that are not in an extent."""
    state = xxhash.xxh3_64()
    for start, stop in _gaps(end, extents):
        _hash_range(file, start, stop - start, state)
    return int(state.intdigest())


def _gaps(end: int, extents: Iterable[Extent]) -> Iterator[tuple[int, int]]:
    position = 0
    for extent in sorted(extents):
        if extent.offset > position:
            yield position, extent.offset
        position = max(position, extent.offset + extent.size)
    yield position, end


def _hash_range(file: int, start: int, size: int, state: Any) -> None:
    # Not through a memory map: a defect of the disk would end the process with SIGBUS there, and is an
    # OSError here.
    buffer = memoryview(bytearray(min(size, _BUFFER_BYTES)))
    while size > 0:
        count = os.preadv(file, [buffer[: min(size, _BUFFER_BYTES)]], start)
        if not count:
            break
        state.update(buffer[:count])
        start += count
        size -= count
