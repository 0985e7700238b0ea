"""The state of MemoryX, in files that are mapped into memory: it may be larger than the machine's memory.

A file has all its blocks from the start, so that a full disk shows before the first step. It is unlinked once
it is mapped, so nothing is left of it when the processes that have it open end, however they end. A wafer on
the same machine finds a file by the process that has it open. Device and inode numbers make sure that it is
the same file, and not one of another machine or container.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import math
import mmap
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cs_system.errors import MemoryxError, StorageFullError
from cs_system.memoryx.protocol import padded_bytes, padded_size, raw_bytes, split_views
from cs_system.messages import dtype_named
from cs_toolkit.layered_step import Schedule, Shard, Sweep, is_small
from cs_toolkit.network.frames import Fields, FrameError, decode_object
from cs_toolkit.step import TensorSpec, device_dtype

# Limit for the copies of a snapshot; a single update may exceed it by the tensors that it changes.
COPIED_BYTES = 1 << 30

# MADV_POPULATE_READ of Linux 5.14, for which Python has no constant.
_POPULATE_READ = 22

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Start and end of ranges of a file in bytes, all multiples of the page size.
Pages = Sequence[tuple[int, int]]

Arrays = Sequence[np.ndarray]
Combine = Callable[[np.ndarray, np.ndarray, np.ndarray], object]

Values = dict[int, np.ndarray]
Exchange = Callable[[int, list[np.ndarray]], list[np.ndarray]]
Changes = Callable[[frozenset[int]], None]

# Functions that combine the contributions of two micro-batches, with the output as third argument.
_COMBINE: Mapping[str, Combine] = {"sum": np.add, "min": np.minimum, "max": np.maximum}

_madvise: Any = ctypes.CDLL(None).madvise


class FileLayout:
    """The layout of the tensors in a file, by number, in device dtypes.

    It follows only from the schedule, so MemoryX and a wafer that maps the file agree on it.

    Args:
        specs: Specs of the tensors.
        columns: Groups of contiguous tensors of one dtype; tensors that are not in `specs` are ignored.

    Attributes:
        specs: Specs of the tensors.
        offsets: First byte of each tensor.
        nbytes: Size of the file.
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
        """Return the byte range of a tensor, with its padding."""
        offset = self.offsets[number]
        return slice(offset, offset + padded_bytes([self.specs[number]]))

    def column(self, numbers: Sequence[int]) -> slice:
        """Return the byte range of contiguous tensors, with the padding between them."""
        end = self.offsets[numbers[-1]] + _column_bytes(self.specs[numbers[-1]])
        return slice(self.offsets[numbers[0]], end)


def file_layouts(shard: Shard) -> tuple[FileLayout, FileLayout]:
    """Return the file layouts of a part of a model: of its state, and of the values that arrive in a step."""
    specs, traffic = shard.schedule.values, shard.traffic
    arriving = dict.fromkeys((*traffic.inputs, *(v for values in traffic.to_memory for v in values)))
    together = columns(shard.schedule)
    state = FileLayout({number: specs[number] for number in shard.schedule.state.values()}, together)
    return state, FileLayout({number: specs[number] for number in arriving}, together)


def columns(schedule: Schedule) -> list[tuple[int, ...]]:
    """Return the groups of contiguous tensors: those that sweeps read, and those that they replace."""
    found = [
        numbers
        for sweep in schedule.sweeps()
        for numbers in (*sweep.taken, *replaced_state(schedule, sweep))
        if not is_small(schedule.values[numbers[0]])
    ]
    return list(dict.fromkeys(found))


def replaced_state(schedule: Schedule, sweep: Sweep) -> list[tuple[int, ...]]:
    """Return, for each result of a sweep, the state that it replaces."""
    old = {new: number for number, new in schedule.replacements.items()}
    return [tuple(old[number] for number in made) for made in sweep.made]


def small_state(schedule: Schedule) -> frozenset[int]:
    """Return the numbers of small state, which every process has."""
    return frozenset(number for number in schedule.state.values() if is_small(schedule.values[number]))


def step_values(schedule: Schedule) -> list[int]:
    """Return the numbers of the small values of a step's start, in the order in which they are sent."""
    before = () if schedule.before is None else schedule.before.results
    return sorted(small_state(schedule) | set(before))


def _column_bytes(spec: TensorSpec) -> int:
    """Return the size of a tensor in a column, where its number of elements is the same for all dtypes."""
    return padded_size(math.prod(spec.shape)) * dtype_named(device_dtype(spec.dtype)).itemsize


class MappedTensors:
    """Tensors in a mapped file, by number, in device dtypes.

    Args:
        descriptor: Descriptor of the file, closed by `close`.
        layout: Layout of the tensors in it.
    """

    def __init__(self, descriptor: int, layout: FileLayout) -> None:
        self.descriptor = descriptor
        self._layout = layout
        self._map = mmap.mmap(descriptor, max(layout.nbytes, 1))
        self._bytes: np.ndarray = np.frombuffer(self._map, np.uint8)
        self._arrays = {
            number: split_views(self._bytes[layout.span(number)], [spec])[0]
            for number, spec in layout.specs.items()
        }

    @classmethod
    def in_directory(cls, directory: Path, layout: FileLayout) -> MappedTensors:
        """Create a new file.

        Raises:
            StorageFullError: the file system has no room.
            MemoryxError: the directory cannot be written.
        """
        nbytes = max(layout.nbytes, 1)
        try:
            with tempfile.TemporaryFile(dir=directory, prefix="memoryx-") as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
                return cls(os.dup(file.fileno()), layout)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                status = os.statvfs(directory)
                free_bytes = status.f_bavail * status.f_frsize
                raise StorageFullError.of(directory, nbytes, free_bytes) from error
            raise MemoryxError(
                f"MemoryX cannot keep {nbytes:,} bytes in {directory}: {error.strerror}; name another "
                "directory with --memoryx-dir"
            ) from error

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self._layout.nbytes

    def __getitem__(self, number: int) -> np.ndarray:
        """Return a tensor as a view of the file."""
        return self._arrays[number]

    def column(self, numbers: Sequence[int]) -> np.ndarray:
        """Return a one-dimensional view of contiguous tensors, with the padding between them."""
        return self._bytes[self._layout.column(numbers)].view(self._arrays[numbers[0]].dtype)

    def __iter__(self) -> Iterator[int]:
        return iter(self._arrays)

    def __contains__(self, number: object) -> bool:
        return number in self._arrays

    def write(self, number: int, array: np.ndarray) -> None:
        """Replace a tensor in the file."""
        # Writing to the file is cheaper than writing to mapped pages that this process does not have yet.
        data, offset = raw_bytes(np.ascontiguousarray(array)), self._layout.offsets[number]
        while data.nbytes:
            count = os.pwrite(self.descriptor, data, offset)
            data, offset = data[count:], offset + count

    def pages(self, numbers: Iterable[int]) -> Pages:
        """Return the page ranges of tensors, with those of contiguous tensors merged."""
        found: list[tuple[int, int]] = []
        for span in sorted((self._layout.span(number) for number in numbers), key=lambda span: span.start):
            start, stop = span.start & -mmap.PAGESIZE, -(-span.stop // mmap.PAGESIZE) * mmap.PAGESIZE
            if found and start <= found[-1][1]:
                start = found.pop()[0]
            found.append((start, stop))
        return found

    def load_pages(self, pages: Pages) -> None:
        """Load pages into the memory of this process, so that computations do not wait for the disk."""
        for start, stop in pages:
            if not _advise(self._bytes[start:stop], _POPULATE_READ):
                # An older kernel: read a byte of each page instead.
                self._bytes[start : stop : mmap.PAGESIZE].sum()

    def drop_pages(self, pages: Pages) -> None:
        """Drop pages from the memory of this process; their content stays in the file."""
        for start, stop in pages:
            _advise(self._bytes[start:stop], mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the file and unmap it: its blocks on the disk are free when all processes have done so.

        No array of it may be used any more.
        """
        os.close(self.descriptor)
        self._arrays = {}
        self._bytes = np.empty(0, np.uint8)
        # JAX keeps arrays that its own threads have released until its next call or collection; a collection
        # of young objects takes a millisecond.
        gc.collect(0)
        # The map has its own descriptor of the file. An array that is still referenced, by the traceback of a
        # failed step for example, keeps both until it is dropped: unmapping it would crash the next access.
        with contextlib.suppress(BufferError):
            self._map.close()


def _advise(memory: np.ndarray, advice: int) -> bool:
    """Call madvise; return True if the kernel accepted the advice."""
    # Not `mmap.madvise`, which holds the GIL and so blocks all threads.
    address, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)
    return bool(_madvise(address, size, ctypes.c_int(advice)) == 0)


def is_first_micro_batch(shard: Shard, call: int) -> bool:
    """Return True if a call computes the first micro-batch, whose results replace those of the last step."""
    return call < len(shard.traffic.calls) // shard.schedule.micro.count


def accumulate_results(shard: Shard, call: int, places: MappedTensors, results: Sequence[np.ndarray]) -> None:
    """Store the results of a call; those of further micro-batches are combined with the totals so far.

    Args:
        shard: Part of the step.
        call: Index of the wafer's call.
        places: Values that arrive in a step, by number.
        results: Results of the call, in the order of the traffic.
    """
    totals = {} if is_first_micro_batch(shard, call) else shard.schedule.micro.totals
    for number, result in zip(shard.traffic.to_memory[call], results, strict=True):
        combine = _COMBINE.get(totals.get(number, ""))
        if combine is None:
            np.copyto(places[number], result)
        else:
            combine(places[number], result, places[number])


class Snapshot:
    """The state after a step, which can be read while the next steps change it (copy on write).

    A tensor that is still to be read is copied before it changes. The copies have a limit: if a reader is so
    slow that they would exceed it, the update waits.

    Args:
        state: The state, which the next steps change.
        step: Step after which the state is kept.
        numbers: Tensors to be read, each once.
        limit_bytes: Limit for the copies.
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
        """Size of the copies that have not been read."""
        return sum(array.nbytes for array in self._copies.values())

    def before_change(self, step: int, numbers: Iterable[int]) -> None:
        """Copy the unread tensors that a step is about to change; wait while there is no room.

        Args:
            step: Step that changes them.
            numbers: Numbers of the tensors.
        """
        if step <= self.step:
            return

        def has_room() -> bool:
            new = sum(self._state[number].nbytes for number in self._waiting.intersection(numbers))
            return not new or not self._copies or self.copied_bytes + new <= self._limit

        with self._changed:
            self._changed.wait_for(has_room)
            for number in self._waiting.intersection(numbers):
                self._copies[number] = np.array(self._state[number])
            self._waiting.difference_update(numbers)

    def take(self, number: int) -> np.ndarray | None:
        """Return a tensor as it was after the step, or None if it is not in the snapshot or has been read."""
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
        """Discard the rest of the snapshot."""
        with self._changed:
            self._waiting.clear()
            self._copies.clear()
            self._changed.notify_all()


@dataclass(frozen=True)
class OpenFile:
    """An unlinked file that a process has open: its descriptor there, and its identity in the file system."""

    descriptor: int
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> OpenFile:
        """Describe an open file of this process."""
        status = os.fstat(descriptor)
        return cls(descriptor, status.st_dev, status.st_ino)

    def open(self, pid: int, flags: int) -> int:
        """Open the same file in this process; return the descriptor.

        Raises:
            OSError: it does not exist, cannot be accessed, or is another file.
        """
        descriptor = os.open(f"/proc/{pid}/fd/{self.descriptor}", flags | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            os.close(descriptor)
            raise FileNotFoundError("another file")
        return descriptor


@dataclass(frozen=True)
class SharedFiles:
    """The files of a part of a model, for wafers on the same machine.

    Attributes:
        boot: Boot id of the machine.
        pid: Process that has the files open.
        state, arrived: The files.
    """

    boot: str
    pid: int
    state: OpenFile
    arrived: OpenFile

    @classmethod
    def of(cls, state: MappedTensors, arrived: MappedTensors) -> SharedFiles:
        """Describe the files of this process."""
        names = OpenFile.of(state.descriptor), OpenFile.of(arrived.descriptor)
        return cls(_BOOT_ID.read_text(), os.getpid(), *names)

    def to_json(self) -> bytes:
        """Encode the description."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> SharedFiles:
        """Decode a description.

        Raises:
            MemoryxError: the text is not a description.
        """
        try:
            fields = Fields("OPENED", decode_object(text))
            state, arrived = (
                OpenFile(*(Fields(name, part).integer(each) for each in OpenFile.__dataclass_fields__))
                for name, part in ((name, fields.mapping(name)) for name in ("state", "arrived"))
            )
            return cls(fields.text("boot"), fields.integer("pid"), state, arrived)
        except FrameError as error:
            raise MemoryxError(f"the description of the files of MemoryX is malformed: {error}") from None

    def open(self, shard: Shard) -> tuple[MappedTensors, MappedTensors]:
        """Map the files into the memory of this process.

        Raises:
            OSError: they cannot be reached.
        """
        if _BOOT_ID.read_text() != self.boot:
            raise FileNotFoundError("another machine")
        found: list[int] = []
        try:
            for name in (self.state, self.arrived):
                found.append(name.open(self.pid, os.O_RDWR))
        except OSError:
            for descriptor in found:
                os.close(descriptor)
            raise
        state, arrived = map(MappedTensors, found, file_layouts(shard))
        return state, arrived

    def map(self, shard: Shard) -> SharedModel | None:
        """Map the files for a wafer; return None if they cannot be reached."""
        try:
            return SharedModel(shard, *self.open(shard))
        except OSError:
            return None


class ModelMemory(ABC):
    """State and gradients of a part of a model, and the update that changes them.

    Args:
        shard: The part.
        state, arrived: The mapped files.
        files: Their description for wafers.

    Attributes:
        small: Numbers of the small state.
    """

    def __init__(
        self, shard: Shard, state: MappedTensors, arrived: MappedTensors, files: SharedFiles
    ) -> None:
        self.shard, self.schedule, self.traffic = shard, shard.schedule, shard.traffic
        self.state, self.arrived, self.files = state, arrived, files
        self.small = small_state(shard.schedule)

    @property
    def nbytes(self) -> int:
        """Size of state and gradients."""
        return self.state.nbytes + self.arrived.nbytes

    def value(self, number: int, known: Values) -> np.ndarray:
        """Return a value; those in `known` are taken from there."""
        if number in known:
            return known[number]
        return self.arrived[number] if number in self.arrived else self.state[number]

    def receive_state(self, number: int, receive: Callable[[np.ndarray], None]) -> None:
        """Call `receive` with the memory of a state tensor, which it fills between two steps."""
        receive(self.state[number])

    @abstractmethod
    def begin_step(self) -> Values:
        """Return the small values of a step's start: state, and schedules and scales computed from it."""

    @abstractmethod
    def update(
        self,
        known: Values,
        exchange: Exchange,
        before_change: Changes | None,
        after_change: Changes,
    ) -> list[np.ndarray]:
        """Compute the update of a step whose results have all arrived.

        Args:
            known: The values of `begin_step`; an update in this process adds its small values.
            exchange: Exchanges the contributions to a round with the other parts; not called if there are
                none.
            before_change: Called with the state that is about to change, and may wait; None: nobody reads a
                snapshot.
            after_change: Called with the state that has its new value, as soon as it has.

        Returns:
            The step outputs that the update computes, in the order of the traffic.
        """

    @abstractmethod
    def abort(self) -> None:
        """End an update that is running in another thread, if that is possible."""

    def close(self) -> None:
        """Close the files."""
        self.state.close()
        self.arrived.close()


def always_streamed(shard: Shard) -> list[tuple[int, ...]]:
    """Return, for each call, the values that are sent even to a wafer that has mapped the files.

    These are small values, some of which are computed before the step and are in no file.
    """
    schedule = shard.schedule
    large = {number for number in schedule.state.values() if not is_small(schedule.values[number])}
    return [tuple(number for number in numbers if number not in large) for numbers in shard.traffic.to_wafer]


class SharedModel:
    """A part of a model in mapped files, on the side of a wafer.

    Args:
        shard: The part.
        state: State of the model.
        arrived: Values that the wafer computes for MemoryX.
    """

    def __init__(self, shard: Shard, state: MappedTensors, arrived: MappedTensors) -> None:
        self._shard, self._state, self._arrived = shard, state, arrived
        self._in_file = [
            [number for number in numbers if number not in sent]
            for numbers, sent in zip(shard.traffic.to_wafer, always_streamed(shard), strict=True)
        ]
        self._pages = [state.pages(numbers) for numbers in self._in_file]

    def weights(self, call: int) -> dict[int, np.ndarray]:
        """Return views of the weights of a call, by number; waits until they have been read from the disk."""
        self._state.load_pages(self._pages[call])
        return {number: self._state[number] for number in self._in_file[call]}

    def copy_weights(self, call: int, places: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Copy the weights of a call to other arrays, by number."""
        for number in self._in_file[call]:
            np.copyto(places[number], self._state[number])
        self.release(call)
        return {number: places[number] for number in self._in_file[call]}

    def release(self, call: int) -> None:
        """Drop the pages of the weights of a call, which has read them."""
        self._state.drop_pages(self._pages[call])

    def write_results(self, call: int, results: Arrays) -> None:
        """Write the results of a call."""
        numbers = self._shard.traffic.to_memory[call]
        if is_first_micro_batch(self._shard, call):
            for number, result in zip(numbers, results, strict=True):
                self._arrived.write(number, result)
        else:
            accumulate_results(self._shard, call, self._arrived, results)
            self._arrived.drop_pages(self._arrived.pages(numbers))

    def close(self) -> None:
        """Close the files."""
        self._state.close()
        self._arrived.close()
