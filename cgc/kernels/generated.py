"""Generated kernels: loop nests scheduled in time and space.

Samples and the rows of a sample stream through a kernel sequentially: loops over them run in time. Other
loops are spread over the rectangle of PEs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from xdsl.ir.affine import AffineMap

from cgc.lair.nest import LoopNest, LoopProgram

_HALF_BYTES = 2


@dataclass(frozen=True)
class GeneratedKernel:
    """The loop nests of a kernel with the roles of their tensors.

    Attributes:
        program: the nests.
        samples: inputs and outputs whose first dimension counts samples, as positions in `program.values`.
        resident: tensors that stay in the kernel: state and constants.
        batch: samples of a step.
        replicas: copies of the kernel that share the samples; each does the work that is done once a step.
    """

    program: LoopProgram
    samples: frozenset[int]
    resident: frozenset[int]
    batch: int
    replicas: int = 1

    @property
    def step_share(self) -> float:
        """The part of work done once a step that counts for one sample."""
        return self.replicas / self.batch

    def enters(self, value: int) -> bool:
        """Return True if a tensor comes from another kernel or from the host."""
        return self.program.values[value].argument is not None and value not in self.resident

    def crosses(self, value: int) -> bool:
        """Return True if a tensor enters or leaves; scalars do not count."""
        found = self.program.values[value]
        return found.elements > 1 and (self.enters(value) or value in self.program.results)

    def describe(self) -> tuple[str, ...]:
        """Return one line for each distinct nest, in the order of their first occurrence."""
        counts = Counter(nest.describe() for nest in self.program.nests)
        return tuple(line if times == 1 else f"{line} ({times} times)" for line, times in counts.items())

    @property
    def family(self) -> str:
        """Name of the family: reduction (scans included), data_movement, or elementwise."""
        if any(nest.carried for nest in self.program.nests):
            return "reduction"
        moves = all(nest.arith_ops == 0 and nest.call is None for nest in self.program.nests)
        return "data_movement" if moves else "elementwise"


@dataclass(frozen=True)
class TimedNest:
    """A nest with its loops in time.

    Attributes:
        nest: the loops.
        time: loops over samples and over rows of a sample.
        runs: runs of the other loops for a sample; less than 1 if they run once a step.
    """

    nest: LoopNest
    time: frozenset[int]
    runs: float

    @property
    def sample_loops(self) -> frozenset[int]:
        """The outermost loop in time, that over samples; empty for work that is done once a step."""
        return frozenset({min(self.time)} if self.time else ())

    @property
    def spatial(self) -> tuple[int, ...]:
        """Loops to spread over PEs, in order of preference: parallel before carried, long before short."""
        loops = [loop for loop, n in enumerate(self.nest.extents) if loop not in self.time and n > 1]
        return tuple(sorted(loops, key=lambda loop: (loop in self.nest.carried, -self.nest.extents[loop])))

    @property
    def rows(self) -> int:
        """Rows of a sample that may run at the same time: all, unless each depends on the previous one."""
        return 1 if self.time.intersection(self.nest.scanned) else max(1, math.floor(self.runs))

    @property
    def spatial_points(self) -> int:
        """Iterations of one run."""
        return math.prod(self.nest.extents[loop] for loop in self.spatial)


def schedule_nests(kernel: GeneratedKernel) -> Iterator[TimedNest]:
    """Yield all nests in order, with their loops over samples and rows."""
    known = set(kernel.samples)
    for nest in kernel.program.nests:
        sample = _sample_loop(nest, known, kernel.batch)
        if sample is None:
            yield TimedNest(nest, frozenset(), kernel.step_share)
            continue
        known |= {
            access.value
            for access in nest.accesses
            if access.writes and (access.map is None or sample in _loops_of(access.map, 0))
        }
        time = {sample, *_row_loops(nest, known, sample)}
        yield TimedNest(nest, frozenset(time), math.prod(nest.extents[loop] for loop in time) / kernel.batch)


def _sample_loop(nest: LoopNest, known: set[int], batch: int) -> int | None:
    """Return the outermost loop that indexes the samples of a tensor; None without one."""
    draws_samples = any(kind == "random" for kind, _ in nest.work)
    for access in nest.accesses:
        if access.value not in known and not draws_samples:
            continue
        loops = {0} if access.map is None else _loops_of(access.map, 0)
        found = [loop for loop in sorted(loops) if loop < len(nest.extents)]
        if found and nest.extents[found[0]] % batch == 0:
            return found[0]
    return None


def _row_loops(nest: LoopNest, known: set[int], sample: int) -> set[int]:
    """Return the loop over the rows of a sample: over dimension 1 of a tensor of rank 3 or more."""
    for access in nest.accesses:
        if access.value in known and access.map is not None and len(access.map.results) > 2:
            loops = _loops_of(access.map, 1) - {sample}
            if len(loops) == 1:
                return loops
    return set()


def _loops_of(mapping: AffineMap, result: int) -> set[int]:
    return mapping.results[result].used_dims() if len(mapping.results) > result else set()


def loop_changes(kernel: GeneratedKernel, slowest: LoopNest) -> Iterator[tuple[str, float, GeneratedKernel]]:
    """Yield what-if changes: text, remaining share of activation bytes, and the changed kernel.

    Args:
        kernel: the loops.
        slowest: its nest with most cycles.
    """
    if any(value.element_bytes > _HALF_BYTES for value in kernel.program.values):
        program = kernel.program
        values = tuple(
            replace(value, element_bytes=min(value.element_bytes, _HALF_BYTES)) for value in program.values
        )
        nests = tuple(replace(nest, wide=False) for nest in program.nests)
        yield "16-bit elements", 0.5, replace(kernel, program=replace(program, nests=nests, values=values))
    nest = next(timed for timed in schedule_nests(kernel) if timed.nest == slowest)
    for words, loops in (
        ("rows a sample", nest.time - nest.sample_loops),
        ("elements", nest.spatial),
    ):
        size = max((slowest.extents[loop] for loop in loops), default=1)
        if size > 1:
            half = -(-size // 2)
            yield f"half as many {words} ({half:,} for {size:,})", 0.5, _halve(kernel, size)
    if len(kernel.program.nests) > 1:
        yield "without its slowest loop nest", 1.0, _remove(kernel, nest)


def _halve(kernel: GeneratedKernel, size: int) -> GeneratedKernel:
    """Halve a size wherever it occurs, except in dimensions of samples."""
    half, program = -(-size // 2), kernel.program

    def shrink(sizes: tuple[int, ...], kept: AbstractSet[int]) -> tuple[int, ...]:
        return tuple(half if n == size and axis not in kept else n for axis, n in enumerate(sizes))

    nests = tuple(
        replace(timed.nest, extents=shrink(timed.nest.extents, timed.sample_loops))
        for timed in schedule_nests(kernel)
    )
    values = tuple(replace(value, shape=shrink(value.shape, {0})) for value in program.values)
    return replace(kernel, program=replace(program, nests=nests, values=values))


def _remove(kernel: GeneratedKernel, slowest: TimedNest) -> GeneratedKernel:
    """Remove a nest; its results become inputs of the kernel."""
    program = kernel.program
    written = {access.value for access in slowest.nest.accesses if access.writes}
    nests = tuple(nest for nest in program.nests if nest is not slowest.nest)
    values = tuple(
        replace(value, argument=number) if number in written - set(program.results) else value
        for number, value in enumerate(program.values)
    )
    samples = kernel.samples | written if slowest.time else kernel.samples
    return replace(kernel, program=replace(program, nests=nests, values=values), samples=frozenset(samples))
