"""Files of MemoryX that a wafer on the same machine maps: weights are read there, results written.

A wafer finds the files by the process that has them open. It is sure to have the same ones, and not those of
another machine or container, where the file systems' own numbers of them agree.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cs_system.memoryx.layout import layouts
from cs_system.memoryx.store import MappedTensors
from cs_system.memoryx.totals import is_first, put_results
from cs_toolkit.shards import Shard
from cs_toolkit.traffic import is_small

Arrays = Sequence[np.ndarray]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class FileName:
    """A file without a name that a process has open: its descriptor there, and what the file system says."""

    descriptor: int
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> FileName:
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
    state: FileName
    arrived: FileName

    @classmethod
    def of(cls, state: MappedTensors, arrived: MappedTensors) -> SharedFiles:
        """Those of this process."""
        names = FileName.of(state.descriptor), FileName.of(arrived.descriptor)
        return cls(_BOOT_ID.read_text(), os.getpid(), *names)

    def to_json(self) -> bytes:
        """As text."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> SharedFiles:
        """The inverse."""
        fields = json.loads(text)
        state, arrived = (FileName(**fields[name]) for name in ("state", "arrived"))
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
        pairs = zip(found, layouts(shard), strict=True)
        return SharedModel(shard, *(MappedTensors(descriptor, layout) for descriptor, layout in pairs))


def sent_all_the_same(shard: Shard) -> list[tuple[int, ...]]:
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
            for numbers, sent in zip(shard.traffic.to_wafer, sent_all_the_same(shard), strict=True)
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
        if is_first(self._shard, call):
            for number, result in zip(numbers, results, strict=True):
                self._arrived.write(number, result)
        else:
            put_results(self._shard, call, self._arrived, results)
            self._arrived.leave(self._arrived.pages(numbers))

    def close(self) -> None:
        """Closes the files."""
        self._state.close()
        self._arrived.close()
