"""A generated kernel with one thing smaller, for what its cost function says of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cgc.kernels.nests.schedule import GeneratedKernel, Timed, timed
from cgc.lair.nest import LoopNest

_HALF_BYTES = 2


def loop_changes(kernel: GeneratedKernel, slowest: LoopNest) -> Iterator[tuple[str, float, GeneratedKernel]]:
    """Changes in words, the share of its activations that is left, and the kernel that they lead to.

    Args:
        kernel: the loops.
        slowest: the nest of it that takes most of its time.
    """
    if any(value.element_bytes > _HALF_BYTES for value in kernel.program.values):
        yield "16-bit elements", 0.5, _in_16_bits(kernel)
    nest = next(one for one in timed(kernel) if one.nest == slowest)
    for words, loops in (("rows a sample", _row_loops(nest)), ("elements", nest.spatial)):
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
        replace(one.nest, extents=smaller(one.nest.extents, _sample_loop(one))) for one in timed(kernel)
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


def _sample_loop(nest: Timed) -> set[int]:
    return {min(nest.time)} if nest.time else set()


def _row_loops(nest: Timed) -> set[int]:
    return set(nest.time) - _sample_loop(nest)
