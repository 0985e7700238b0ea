"""State of MemoryX in files that are mapped into memory: it may be larger than the memory of the machine.

A file has its blocks from the start, so a full disk shows before the first step. It has no name any more once
it is mapped: nothing is left of it when the processes that have it end, however they end. A wafer on the same
machine finds the files by the process that has them open. It is sure to have the same ones, and not those of
another machine or container, where the file systems' own numbers of them agree.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cs_system.errors import MemoryxError, StorageFullError
from cs_system.memoryx.protocol import padded, padded_bytes, raw_bytes, views
from cs_system.messages import dtype_named
from cs_toolkit.layered_step import Schedule, Shard, Sweep, is_small
from cs_toolkit.step import TensorSpec, device_dtype

COPIED_BYTES = 1 << 30
"""Of copies at once; one update may always copy what it changes, however much that is."""

_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python has no name for."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Pages = Sequence[tuple[int, int]]
"""First byte and end of pieces of a file, both multiples of a page."""

Arrays = Sequence[np.ndarray]

Combine = Callable[[np.ndarray, np.ndarray, np.ndarray], object]

_COMBINED: Mapping[str, Combine] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
"""How shares of micro-batches are combined: two of them, and where the result goes."""

_madvise: Any = ctypes.CDLL(None).madvise


class FileLayout:
    """Tensors of a file by number, in device dtypes.

    Args:
        specs: Of the tensors.
        columns: Tensors of one dtype that lie one behind the other; others than in `specs` do not count.

    Attributes:
        specs: See the argument.
        offsets: First byte of each.
        nbytes: Of all.
    """

    def __init__(self, specs: Mapping[int, TensorSpec], columns: Iterable[tuple[int, ...]] = ()) -> None:
        in_columns = [number for numbers in columns if numbers[0] in specs for number in numbers]
        sizes = {number: padded_bytes([spec]) for number, spec in specs.items()}
        sizes |= {number: _column_bytes(specs[number]) for number in in_columns}
        self.specs = specs
        self.offsets: dict[int, int] = {}
        self.nbytes = 0
        for number in dict.fromkeys((*in_columns, *specs)):
            self.offsets[number] = self.nbytes
            self.nbytes += sizes[number]

    def span(self, number: int) -> slice:
        """The bytes of a tensor, with what pads it."""
        offset = self.offsets[number]
        return slice(offset, offset + padded_bytes([self.specs[number]]))

    def column(self, numbers: Sequence[int]) -> slice:
        """The bytes of tensors that lie one behind the other, with what is between them."""
        end = self.offsets[numbers[-1]] + _column_bytes(self.specs[numbers[-1]])
        return slice(self.offsets[numbers[0]], end)


def file_layouts(shard: Shard) -> tuple[FileLayout, FileLayout]:
    """Of a part of a model: of its state, and of what arrives in a step."""
    specs, traffic = shard.schedule.values, shard.traffic
    arriving = dict.fromkeys((*traffic.inputs, *(v for values in traffic.to_memory for v in values)))
    together = columns(shard.schedule)
    state = FileLayout({number: specs[number] for number in shard.schedule.state.values()}, together)
    return state, FileLayout({number: specs[number] for number in arriving}, together)


def columns(schedule: Schedule) -> list[tuple[int, ...]]:
    """Tensors that lie one behind the other: those that sweeps read, and those that they replace."""
    found = [
        numbers
        for sweep in schedule.sweeps()
        for numbers in (*sweep.taken, *replaced_state(schedule, sweep))
        if not is_small(schedule.values[numbers[0]])
    ]
    return list(dict.fromkeys(found))


def replaced_state(schedule: Schedule, sweep: Sweep) -> list[tuple[int, ...]]:
    """For each result of a sweep the state that it replaces."""
    old = {new: number for number, new in schedule.replacements.items()}
    return [tuple(old[number] for number in made) for made in sweep.made]


def _column_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor in a column: as many elements in all columns, whatever their dtypes."""
    return padded(math.prod(spec.shape)) * dtype_named(device_dtype(spec.dtype)).itemsize


class MappedTensors:
    """Tensors by number, in device dtypes.

    Args:
        descriptor: Of the file, which is closed with `close`.
        layout: Of the tensors in it.
    """

    def __init__(self, descriptor: int, layout: FileLayout) -> None:
        self.descriptor = descriptor
        self._layout = layout
        self._map = mmap.mmap(descriptor, max(layout.nbytes, 1))
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._arrays = {
            number: views(self._bytes[layout.span(number)], [spec])[0]
            for number, spec in layout.specs.items()
        }

    @classmethod
    def in_directory(cls, directory: Path, layout: FileLayout) -> MappedTensors:
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


def is_first_micro_batch(shard: Shard, call: int) -> bool:
    """Whether a call computes the first micro-batch: its results replace those of the step before."""
    return call < len(shard.traffic.calls) // shard.schedule.micro.count


def accumulate_results(shard: Shard, call: int, places: MappedTensors, results: Sequence[np.ndarray]) -> None:
    """Takes what a call gives: its share of a total, else the value itself.

    Args:
        shard: Of the step.
        call: Of the wafer.
        places: Of all that arrives in a step, by number.
        results: Of the call, in the order of the traffic.
    """
    totals = {} if is_first_micro_batch(shard, call) else shard.schedule.micro.totals
    for number, result in zip(shard.traffic.to_memory[call], results, strict=True):
        combine = _COMBINED.get(totals.get(number, ""))
        if combine is None:
            np.copyto(places[number], result)
        else:
            combine(places[number], result, places[number])


class Snapshot:
    """The state after a step.

    Args:
        state: As it is.
        step: Whose state is read.
        numbers: Of the tensors that are to be read, each once.
        limit_bytes: Of copies.
    """

    def __init__(
        self, state: MappedTensors, step: int, numbers: Iterable[int], limit_bytes: int = COPIED_BYTES
    ) -> None:
        self.step = step
        self._state, self._limit = state, limit_bytes
        self._waiting = set(numbers)
        self._copies: dict[int, np.ndarray] = {}
        self._changed = threading.Condition()

    @property
    def copied_bytes(self) -> int:
        """Of the copies that wait to be read."""
        return sum(array.nbytes for array in self._copies.values())

    def before_change(self, step: int, numbers: Iterable[int]) -> None:
        """Copies what a step is about to change and nobody has read; waits while there is no room.

        Args:
            step: That changes it.
            numbers: Of the tensors.
        """
        if step <= self.step:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(numbers))
            for number in self._waiting.intersection(numbers):
                self._copies[number] = np.array(self._state[number])
            self._waiting.difference_update(numbers)

    def take(self, number: int) -> np.ndarray | None:
        """A tensor, which is there since its step; None where it is not to be read, or has been."""
        with self._changed:
            if number in self._copies:
                found = self._copies.pop(number)
                self._changed.notify_all()
                return found
            if number not in self._waiting:
                return None
            self._waiting.remove(number)
            found = np.array(self._state[number])
            self._changed.notify_all()
            return found

    def end(self) -> None:
        """Nothing more is read."""
        with self._changed:
            self._waiting.clear()
            self._copies.clear()
            self._changed.notify_all()

    def _has_room(self, numbers: Iterable[int]) -> bool:
        new = sum(self._state[number].nbytes for number in self._waiting.intersection(numbers))
        return not new or not self._copies or self.copied_bytes + new <= self._limit


@dataclass(frozen=True)
class OpenFile:
    """A file without a name that a process has open: its descriptor there, and what the file system says."""

    descriptor: int
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> OpenFile:
        """That of an open file of this process."""
        status = os.fstat(descriptor)
        return cls(descriptor, status.st_dev, status.st_ino)

    def open(self, pid: int, flags: int) -> int:
        """A descriptor of the same file.

        Raises:
            OSError: it is not there, not allowed, or another file.
        """
        descriptor = os.open(f"/proc/{pid}/fd/{self.descriptor}", flags | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            os.close(descriptor)
            raise FileNotFoundError("another file")
        return descriptor


@dataclass(frozen=True)
class SharedFiles:
    """Where wafers of the same machine find the files of a part of a model.

    Attributes:
        boot: of the machine, an id of the time since it was started.
        pid: of the process.
        state, arrived: its files.
    """

    boot: str
    pid: int
    state: OpenFile
    arrived: OpenFile

    @classmethod
    def of(cls, state: MappedTensors, arrived: MappedTensors) -> SharedFiles:
        """Those of this process."""
        names = OpenFile.of(state.descriptor), OpenFile.of(arrived.descriptor)
        return cls(_BOOT_ID.read_text(), os.getpid(), *names)

    def to_json(self) -> bytes:
        """As text."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> SharedFiles:
        """The inverse."""
        fields = json.loads(text)
        state, arrived = (OpenFile(**fields[name]) for name in ("state", "arrived"))
        return cls(fields["boot"], fields["pid"], state, arrived)

    def mapped(self, shard: Shard) -> SharedModel | None:
        """The files in the memory of this process; None where they cannot be reached."""
        if _BOOT_ID.read_text() != self.boot:
            return None
        found: list[int] = []
        try:
            for name in (self.state, self.arrived):
                found.append(name.open(self.pid, os.O_RDWR))
        except OSError:
            for descriptor in found:
                os.close(descriptor)
            return None
        pairs = zip(found, file_layouts(shard), strict=True)
        return SharedModel(shard, *(MappedTensors(descriptor, layout) for descriptor, layout in pairs))


def always_streamed(shard: Shard) -> list[tuple[int, ...]]:
    """For each call of a wafer that has the files what comes before it: small values, some only computed."""
    schedule = shard.schedule
    large = {number for number in schedule.state.values() if not is_small(schedule.values[number])}
    return [tuple(number for number in numbers if number not in large) for numbers in shard.traffic.to_wafer]


class SharedModel:
    """A part of a model as a wafer that maps its files has it.

    Args:
        shard: The part.
        state: Of the model.
        arrived: What the wafer computes for MemoryX.
    """

    def __init__(self, shard: Shard, state: MappedTensors, arrived: MappedTensors) -> None:
        self._shard, self._state, self._arrived = shard, state, arrived
        self._in_file = [
            [number for number in numbers if number not in sent]
            for numbers, sent in zip(shard.traffic.to_wafer, always_streamed(shard), strict=True)
        ]
        self._pages = [state.pages(numbers) for numbers in self._in_file]

    def weights(self, call: int) -> dict[int, np.ndarray]:
        """What a call reads, at its place, by number; waits until it has been read from the disk."""
        self._state.have(self._pages[call])
        return {number: self._state[number] for number in self._in_file[call]}

    def copied(self, call: int, places: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Copies what a call reads to other places, by number."""
        for number in self._in_file[call]:
            np.copyto(places[number], self._state[number])
        self.leave(call)
        return {number: places[number] for number in self._in_file[call]}

    def leave(self, call: int) -> None:
        """A call has read its weights."""
        self._state.leave(self._pages[call])

    def put(self, call: int, results: Arrays) -> None:
        """Puts what a call has computed for MemoryX to its place."""
        numbers = self._shard.traffic.to_memory[call]
        if is_first_micro_batch(self._shard, call):
            for number, result in zip(numbers, results, strict=True):
                self._arrived.write(number, result)
        else:
            accumulate_results(self._shard, call, self._arrived, results)
            self._arrived.leave(self._arrived.pages(numbers))

    def close(self) -> None:
        """Closes the files."""
        self._state.close()
        self._arrived.close()
