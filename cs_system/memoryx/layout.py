"""Where the tensors of a model lie in the files of MemoryX: it follows from the schedule, on every side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from cs_system.memoryx.frames import padded, padded_bytes
from cs_system.messages import dtype_named
from cs_toolkit.schedule import Schedule, Sweep
from cs_toolkit.shards import Shard
from cs_toolkit.step import TensorSpec, device_dtype
from cs_toolkit.traffic import is_small


class Layout:
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


def layouts(shard: Shard) -> tuple[Layout, Layout]:
    """Of a part of a model: of its state, and of what arrives in a step."""
    specs, traffic = shard.schedule.values, shard.traffic
    arriving = dict.fromkeys((*traffic.inputs, *(v for values in traffic.to_memory for v in values)))
    together = columns(shard.schedule)
    state = Layout({number: specs[number] for number in shard.schedule.state.values()}, together)
    return state, Layout({number: specs[number] for number in arriving}, together)


def columns(schedule: Schedule) -> list[tuple[int, ...]]:
    """Tensors that lie one behind the other: those that sweeps read, and those that they replace."""
    found = [
        numbers
        for sweep in schedule.sweeps()
        for numbers in (*sweep.taken, *replaced_by(schedule, sweep))
        if not is_small(schedule.values[numbers[0]])
    ]
    return list(dict.fromkeys(found))


def replaced_by(schedule: Schedule, sweep: Sweep) -> list[tuple[int, ...]]:
    """For each result of a sweep the state that it replaces."""
    old = {new: number for number, new in schedule.replacements.items()}
    return [tuple(old[number] for number in made) for made in sweep.made]


def _column_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor in a column: as many elements in all columns, whatever their dtypes."""
    return padded(math.prod(spec.shape)) * dtype_named(device_dtype(spec.dtype)).itemsize
