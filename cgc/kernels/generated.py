"""When and where the iterations of a generated kernel run.

Samples, and the rows of a sample, stream through a kernel one after the other: the loops over them run in
time. The other loops are spread over the rectangle of PEs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from xdsl.ir.affine import AffineMap

from cgc.lair.nest import Access, LoopNest, LoopProgram

_HALF_BYTES = 2


@dataclass(frozen=True)
class GeneratedKernel:
    """The loop nests of a kernel and what is known of their tensors.

    Attributes:
        program: the nests.
        samples: the tensors (positions in `program.values`) whose first dimension counts samples, as far as
            they enter or leave.
        resident: the tensors that stay in the kernel: state and constants.
        batch: samples of a step.
        replicas: copies of the kernel that share the samples; each does what is done once a step.
    """

    program: LoopProgram
    samples: frozenset[int]
    resident: frozenset[int]
    batch: int
    replicas: int = 1

    @property
    def step_share(self) -> float:
        """Of what is done once a step, the share that falls to a sample."""
        return self.replicas / self.batch

    def enters(self, value: int) -> bool:
        """Whether a tensor comes from another kernel or from the host."""
        return self.program.values[value].argument is not None and value not in self.resident

    def crosses(self, value: int) -> bool:
        """Whether a tensor enters or leaves; scalars do not count."""
        found = self.program.values[value]
        return found.elements > 1 and (self.enters(value) or value in self.program.results)

    def describe(self) -> tuple[str, ...]:
        """One line for all nests that are alike, in the order of the first of each."""
        counts = Counter(nest.describe() for nest in self.program.nests)
        return tuple(line if times == 1 else f"{line} ({times} times)" for line, times in counts.items())

    @property
    def family(self) -> str:
        """What its loops are: a reduction or scan, moves alone, or elementwise."""
        if any(nest.carried for nest in self.program.nests):
            return "reduction"
        moves = all(nest.arith_ops == 0 and nest.call is None for nest in self.program.nests)
        return "data_movement" if moves else "elementwise"


@dataclass(frozen=True)
class Timed:
    """A nest with its loops in time.

    Attributes:
        nest: the loops.
        time: those that run over samples and over rows of a sample.
        runs: how often the others run for a sample; less than 1 for what runs once a step.
    """

    nest: LoopNest
    time: frozenset[int]
    runs: float

    @property
    def spatial(self) -> tuple[int, ...]:
        """The loops to spread, the best first: free ones before carried ones, long ones before short ones."""
        loops = [loop for loop, n in enumerate(self.nest.extents) if loop not in self.time and n > 1]
        return tuple(sorted(loops, key=lambda loop: (loop in self.nest.carried, -self.nest.extents[loop])))

    @property
    def rows(self) -> int:
        """Rows of a sample that may be worked on at the same time: all, unless each needs the one before."""
        return 1 if self.time.intersection(self.nest.scanned) else max(1, math.floor(self.runs))

    @property
    def spatial_points(self) -> int:
        """Iterations of one run."""
        return math.prod(self.nest.extents[loop] for loop in self.spatial)


def timed(kernel: GeneratedKernel) -> Iterator[Timed]:
    """All nests in order, with the loops over samples found from the tensors that hold samples."""
    known = set(kernel.samples)
    for nest in kernel.program.nests:
        sample = _sample_loop(nest, known, kernel.batch)
        if sample is None:
            yield Timed(nest, frozenset(), kernel.step_share)
            continue
        known |= {access.value for access in nest.accesses if access.writes and _leads(access, sample)}
        time = {sample, *_row_loops(nest, known, sample)}
        yield Timed(nest, frozenset(time), math.prod(nest.extents[loop] for loop in time) / kernel.batch)


def _sample_loop(nest: LoopNest, known: set[int], batch: int) -> int | None:
    """The outermost loop that the samples of a tensor are counted with."""
    makes_samples = any(kind == "random" for kind, _ in nest.work)
    for access in nest.accesses:
        if access.value not in known and not makes_samples:
            continue
        loops = {0} if access.map is None else _loops_of(access.map, 0)
        found = [loop for loop in sorted(loops) if loop < len(nest.extents)]
        if found and nest.extents[found[0]] % batch == 0:
            return found[0]
    return None


def _row_loops(nest: LoopNest, known: set[int], sample: int) -> set[int]:
    """The loop over the rows of a sample: the second dimension of a tensor with three or more."""
    for access in nest.accesses:
        if access.value in known and access.map is not None and len(access.map.results) > 2:
            loops = _loops_of(access.map, 1) - {sample}
            if len(loops) == 1:
                return loops
    return set()


def _leads(access: Access, loop: int) -> bool:
    return access.map is None or loop in _loops_of(access.map, 0)


def _loops_of(mapping: AffineMap, result: int) -> set[int]:
    return mapping.results[result].used_dims() if len(mapping.results) > result else set()


def loop_changes(kernel: GeneratedKernel, slowest: LoopNest) -> Iterator[tuple[str, float, GeneratedKernel]]:
    """Changes in words, the share of its activations that is left, and the kernel that they lead to.

    Args:
        kernel: the loops.
        slowest: the nest of it that takes most of its time.
    """
    if any(value.element_bytes > _HALF_BYTES for value in kernel.program.values):
        yield "16-bit elements", 0.5, _in_16_bits(kernel)
    nest = next(one for one in timed(kernel) if one.nest == slowest)
    for words, loops in (("rows a sample", _row_loops_of(nest)), ("elements", nest.spatial)):
        size = max((slowest.extents[loop] for loop in loops), default=1)
        if size > 1:
            half = -(-size // 2)
            yield f"half as many {words} ({half:,} for {size:,})", 0.5, _halved(kernel, size)
    if len(kernel.program.nests) > 1:
        yield "without its slowest loop nest", 1.0, _without(kernel, nest)


def _in_16_bits(kernel: GeneratedKernel) -> GeneratedKernel:
    program = kernel.program
    values = tuple(
        replace(value, element_bytes=min(value.element_bytes, _HALF_BYTES)) for value in program.values
    )
    nests = tuple(replace(nest, wide=False) for nest in program.nests)
    return replace(kernel, program=replace(program, nests=nests, values=values))


def _halved(kernel: GeneratedKernel, size: int) -> GeneratedKernel:
    """Half of a size wherever it is, except that samples stay as many."""
    half, program = -(-size // 2), kernel.program

    def smaller(sizes: tuple[int, ...], kept: set[int]) -> tuple[int, ...]:
        return tuple(half if n == size and at not in kept else n for at, n in enumerate(sizes))

    nests = tuple(
        replace(one.nest, extents=smaller(one.nest.extents, _sample_loops_of(one))) for one in timed(kernel)
    )
    values = tuple(replace(value, shape=smaller(value.shape, {0})) for value in program.values)
    return replace(kernel, program=replace(program, nests=nests, values=values))


def _without(kernel: GeneratedKernel, slowest: Timed) -> GeneratedKernel:
    """The other nests; what the missing one would have written comes from another kernel."""
    program = kernel.program
    written = {access.value for access in slowest.nest.accesses if access.writes}
    nests = tuple(nest for nest in program.nests if nest is not slowest.nest)
    values = tuple(
        replace(value, argument=number) if number in written - set(program.results) else value
        for number, value in enumerate(program.values)
    )
    samples = kernel.samples | written if slowest.time else kernel.samples
    return replace(kernel, program=replace(program, nests=nests, values=values), samples=frozenset(samples))


def _sample_loops_of(nest: Timed) -> set[int]:
    return {min(nest.time)} if nest.time else set()


def _row_loops_of(nest: Timed) -> set[int]:
    return set(nest.time) - _sample_loops_of(nest)
