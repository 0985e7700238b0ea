"""Layouts of a kernel as parallel arrays: rectangle, cycles, memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cgc.kernels.coefficients import coefficient

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Every kernel has layouts with room for the activations of this many samples, even if it has little work.
MIN_STASHED_SAMPLES = 32


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that all PEs of a rectangle hold together, by use.

    Attributes:
        code: code, stack and routing tables.
        resident: weights with their gradients, optimizer state, tables and constants, in all copies.
        buffers: activations that are being worked on.
        stash: activations that wait for their backward pass.
    """

    code: int
    resident: int
    buffers: int
    stash: int


@dataclass(frozen=True)
class Configuration:
    """One layout of a kernel, not rotated.

    Attributes:
        width: PEs in x of the bounding rectangle, adapters and fans included.
        height: PEs in y.
        compute_cycles: cycles per sample of the busiest PE, >= 1.
        transmission_cycles: cycles per sample of the busiest link, >= 1.
        memory_per_pe_bytes: SRAM of the fullest PE.
        busy_pe_cycles: PE cycles per sample in which kernel code runs, summed over the rectangle.
        memory: bytes of the whole rectangle; None until the activations are added.
    """

    width: int
    height: int
    compute_cycles: int
    transmission_cycles: int
    memory_per_pe_bytes: int
    busy_pe_cycles: float
    memory: MemoryUse | None = None

    @property
    def cycles(self) -> int:
        """Cycles per sample: compute and transmission overlap, so the slower of the two."""
        return max(self.compute_cycles, self.transmission_cycles)

    @property
    def area(self) -> int:
        """PEs of the rectangle."""
        return self.width * self.height


@dataclass(frozen=True)
class Configurations:
    """All layouts of a kernel, one per array element; fields as in `Configuration`.

    Memory excludes the activations of samples in flight, whose number is known only when the pipeline is
    placed. Activations are stored wherever the rectangle has room.

    Attributes:
        resident_bytes: weights, optimizer state and other resident data of all PEs together, in all copies.
        reserve: share of a layout's cycle budget that compute may take; 1 for all of it.
        held_bytes: bytes that all PEs of the rectangle hold together; None if all hold as much as the
            fullest.
    """

    width: Ints
    height: Ints
    compute_cycles: Ints
    transmission_cycles: Ints
    memory_per_pe_bytes: Ints
    busy_pe_cycles: Floats
    resident_bytes: Floats
    reserve: float = 1.0
    held_bytes: Ints | None = None

    def __len__(self) -> int:
        return len(self.width)

    def __getitem__(self, index: int) -> Configuration:
        return Configuration(
            int(self.width[index]),
            int(self.height[index]),
            int(self.compute_cycles[index]),
            int(self.transmission_cycles[index]),
            int(self.memory_per_pe_bytes[index]),
            float(self.busy_pe_cycles[index]),
        )

    def with_activations(self, index: int, stash_bytes: int) -> Configuration:
        """Return a layout with the memory of activations, stored wherever its rectangle has room."""
        layout = self[index]
        spread = -(-(int(self.held[index]) + stash_bytes) // layout.area)
        code = int(coefficient("code_bytes")) * layout.area
        resident = round(float(self.resident_bytes[index]))
        memory = MemoryUse(code, resident, max(0, int(self.held[index]) - code - resident), stash_bytes)
        return replace(layout, memory_per_pe_bytes=max(layout.memory_per_pe_bytes, spread), memory=memory)

    @cached_property
    def cycles(self) -> Ints:
        """Cycles per sample by which layouts are chosen: compute with the reserve, or transmission."""
        # No reserve for the layout with the fastest compute, since no other layout could be chosen instead.
        fastest = self.compute_cycles.min(initial=1 << 62)
        with_reserve = np.ceil(self.compute_cycles / self.reserve).astype(np.int64)
        compute = np.where(self.compute_cycles == fastest, self.compute_cycles, with_reserve)
        return np.maximum(compute, self.transmission_cycles)

    @cached_property
    def area(self) -> Ints:
        """PEs of every layout's rectangle."""
        return self.width * self.height

    @cached_property
    def by_cycles(self) -> Ints:
        """Indices of the layouts by ascending cycles; the order of equal ones is undefined."""
        return np.argsort(self.cycles)

    @cached_property
    def held(self) -> Ints:
        """Bytes that all PEs of the rectangle hold together."""
        return self.memory_per_pe_bytes * self.area if self.held_bytes is None else self.held_bytes

    def where(self, mask: NDArray[np.bool_]) -> Configurations:
        """Return the layouts that `mask` selects, in their order; this object if it selects all."""
        if mask.all():
            return self
        return Configurations(
            self.width[mask],
            self.height[mask],
            self.compute_cycles[mask],
            self.transmission_cycles[mask],
            self.memory_per_pe_bytes[mask],
            self.busy_pe_cycles[mask],
            self.resident_bytes[mask],
            self.reserve,
            None if self.held_bytes is None else self.held_bytes[mask],
        )


def pool_memory(working: Floats, held: Floats, area: Ints) -> tuple[Ints, Ints]:
    """Return the bytes of the fullest PE and of all PEs, where some data may be stored on any PE.

    Args:
        working: bytes that the fullest PE must hold itself.
        held: bytes of all PEs together.
        area: PEs of the rectangle.
    """
    total = np.ceil(held).astype(np.int64)
    fullest = np.maximum(np.ceil(working).astype(np.int64), -(-total // area))
    return fullest, total


def whole_cycles(cycles: Floats) -> Ints:
    """Round cycle counts up to whole cycles of at least 1."""
    return np.maximum(1, np.ceil(cycles - 1e-9)).astype(np.int64)


def ceil_div(amount: int, parts: Ints) -> Ints:
    """Divide and round up: the size of the largest part."""
    return -(-amount // parts)


def useful_splits(size: int) -> Ints:
    """Return the useful numbers of parts to split `size` into, ascending.

    For every possible size of the largest part, this is the smallest number of parts; more parts only leave
    PEs idle. There are about 2 * sqrt(size) such numbers.
    """
    small = np.arange(1, min(size, int(np.sqrt(size)) + 1) + 1, dtype=np.int64)
    return np.unique(np.concatenate([ceil_div(size, small), ceil_div(size, ceil_div(size, small))]))


def line_ladder(limit: int) -> Ints:
    """Return lengths of a line of PEs to try: all up to 24, then in steps of 6 %, and `limit`."""
    steps = np.arange(0, 160)
    lengths = np.unique(np.concatenate([np.arange(1, 25), np.round(24 * 1.06**steps), [limit]]))
    return lengths[lengths <= limit].astype(np.int64)


def with_copies(width: Ints, height: Ints, max_copies: int) -> tuple[Ints, Ints, Ints]:
    """Return widths, heights and copies: one of every layout, up to `max_copies` of those of one line."""
    flat = width[height == 1]
    copies = line_ladder(max_copies)[1:]
    widths, counts = (grid.ravel() for grid in np.meshgrid(flat, copies, indexing="ij"))
    ones = np.ones_like(width)
    return (
        np.concatenate([width, widths]),
        np.concatenate([height, np.ones_like(widths)]),
        np.concatenate([ones, counts]),
    )
