"""Cost of a generated kernel, from its loop nests.

Each nest spreads one loop over the lines of the rectangle and one over its columns, or one loop over both.
Compute, memory and traffic of a PE follow from its tile: iterations from the extents, elements from the image
of the tile under the access maps. Rows of a sample do not depend on each other: copies of a line, at most one
per row, may share them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import (
    MIN_STASHED_SAMPLES,
    Configuration,
    Configurations,
    Floats,
    Ints,
    line_ladder,
    whole_cycles,
    with_copies,
)
from cgc.kernels.cost import image_lines, line_cycles
from cgc.kernels.generated import GeneratedKernel, TimedNest, schedule_nests
from cgc.lair.nest import Access, LoopNest
from cgc.lair.polyhedra import footprint, is_injective

# Samples of a step; bytes of activations of one sample that wait for its backward pass.
PARAMETERS = frozenset({"batch", "stash_bytes"})

_MAX_LINE_LENGTH = 1024

# A running value passes from PE to PE; a router forwards one wavelet per cycle.
_HOP_CYCLES = 1.0
# Loops of a nest that are tried for lines and columns.
_MAX_SPREAD_LOOPS = 3

# With more distinct tiles, the elements of each are not counted but bounded by its iterations.
_MAX_COUNTED_TILES = 128


def nest_configurations(kernel: GeneratedKernel, parameters: Mapping[str, int]) -> Configurations:
    """Return all layouts lines x columns, and copies of one line, without those of more PEs than work."""
    return _configurations(kernel, parameters["stash_bytes"])


def nest_shares(
    kernel: GeneratedKernel, parameters: Mapping[str, int], layout: Configuration
) -> list[tuple[LoopNest, float]]:
    """Return the nests of a kernel, each with its share of the compute cycles of a layout."""
    layouts = _layouts(kernel, list(schedule_nests(kernel)), parameters["stash_bytes"])
    same = (layouts.width == layout.width) & (layouts.height * layouts.copies == layout.height)
    nests, _ = _schedule(kernel, layouts)
    # Several layouts may have the same rectangle and differ only in copies. The fastest one was chosen.
    fastest = min(np.flatnonzero(same), key=lambda index: sum(cycles[index] for _, cycles in nests))
    total = sum(float(cycles[fastest]) for _, cycles in nests)
    return [(nest.nest, float(cycles[fastest]) / total) for nest, cycles in nests]


@lru_cache(maxsize=1024)
def _configurations(kernel: GeneratedKernel, stash_bytes: int) -> Configurations:
    """Return all layouts of a kernel, with compute, traffic and memory of its scheduled nests."""
    layouts = _layouts(kernel, list(schedule_nests(kernel)), stash_bytes)
    nests, state = _schedule(kernel, layouts)
    compute, busy = np.zeros(len(layouts.width)), np.zeros(len(layouts.width))
    for nest, cycles in nests:
        compute += cycles
        busy += nest.runs * _busy(nest, layouts)
    return Configurations(
        width=layouts.width,
        height=layouts.height * layouts.copies,
        compute_cycles=whole_cycles(compute),
        transmission_cycles=whole_cycles(_wire_cycles(kernel, layouts)),
        memory_per_pe_bytes=np.ceil(state.memory()).astype(np.int64),
        busy_pe_cycles=np.minimum(busy, compute * layouts.pes * layouts.copies),
        resident_bytes=state.resident() * layouts.pes * layouts.copies,
    )


def _schedule(kernel: GeneratedKernel, layouts: _Layouts) -> tuple[list[tuple[TimedNest, Floats]], _State]:
    """Return nests with their cycles per sample for every layout, and the final placement of the tensors."""
    state = _State(kernel, layouts)
    nests: list[tuple[TimedNest, Floats]] = []
    for number, nest in enumerate(schedule_nests(kernel)):
        spread = _best_spread(nest, state)
        cycles = nest.runs * layouts.share(nest.rows) * spread.cycles
        nests.append((nest, cycles + _copy_sum_cycles(nest, kernel.step_share, layouts)))
        state.record(number, spread)
    return nests, state


@dataclass(frozen=True)
class _Layouts:
    """Rectangles and the number of their copies; each array has an element for each layout."""

    width: Ints
    height: Ints
    copies: Ints

    @property
    def pes(self) -> Ints:
        """PEs of one copy."""
        return self.width * self.height

    def share(self, rows: int) -> Floats:
        """Return the share of the rows that the copy with most of them has."""
        return -(-rows // self.copies) / rows


def _layouts(kernel: GeneratedKernel, schedule: list[TimedNest], stash_bytes: int) -> _Layouts:
    """Return lines, columns and copies; more PEs than pieces of work only if their memory is needed."""
    pieces = math.ceil(
        max((nest.spatial_points for nest in schedule), default=1) / coefficient("smallest_piece")
    )
    values = kernel.program.values
    held = sum(values[number].elements * values[number].element_bytes for number in kernel.resident)
    ladder = line_ladder(_MAX_LINE_LENGTH)
    width, height = (grid.ravel() for grid in np.meshgrid(ladder, ladder, indexing="ij"))
    useful = width * height <= max(pieces, (held + MIN_STASHED_SAMPLES * stash_bytes) // 1024)
    useful |= (width == 1) & (height == 1)
    rows = max((nest.rows for nest in schedule), default=1)
    return _Layouts(*with_copies(width[useful], height[useful], rows))


@dataclass(frozen=True)
class _Spread:
    """A nest on the rectangle: the loops over lines and columns, and the resulting cost.

    Attributes:
        nest: the loops.
        lines: the loop over the lines of PEs; None for a nest without a loop to spread.
        columns: the loop over the columns; the same loop is folded over the whole rectangle.
        cycles: of one run, for every layout.
        footprints: elements of the fullest PE, for every access and layout.
    """

    nest: LoopNest
    lines: int | None
    columns: int | None
    cycles: Floats
    footprints: tuple[Floats, ...]

    def placement(self, access: Access) -> tuple[int | None, int | None]:
        """Return the dimensions of a tensor along lines and columns."""
        if access.map is None:
            return None, None
        dims = {
            expr.position: d for d, expr in enumerate(access.map.results) if isinstance(expr, AffineDimExpr)
        }
        first = None if self.lines is None else dims.get(self.lines)
        second = None if self.columns is None else dims.get(self.columns)
        return first, second


@dataclass
class _State:
    """Placement and size of the tensors while the nests are placed in order.

    Attributes:
        placement: dimensions along lines and columns, for every tensor touched so far.
        held: elements of the fullest PE, for every tensor.
        first, last: the first and the last nest that touch a tensor; it is live in between.
    """

    kernel: GeneratedKernel
    layouts: _Layouts
    placement: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)
    held: dict[int, Floats] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def record(self, number: int, spread: _Spread) -> None:
        """Record a nest's use of its tensors."""
        for access, elements in zip(spread.nest.accesses, spread.footprints, strict=True):
            value = access.value
            self.placement.setdefault(value, spread.placement(access))
            self.held[value] = np.maximum(self.held.get(value, elements), elements)
            self.first.setdefault(value, number)
            self.last[value] = number

    def resident(self) -> Floats:
        """Return the bytes of resident tensors on the fullest PE."""
        total: Floats = np.zeros(len(self.layouts.width))
        for value in self.kernel.resident & self.held.keys():
            total = total + self.held[value] * self.kernel.program.values[value].element_bytes
        return total

    def memory(self) -> Floats:
        """Return the bytes of the fullest PE: code, resident tensors, and the peak of live ones."""
        zero = np.zeros(len(self.layouts.width))
        base = self.resident() + coefficient("code_bytes")
        live: list[Floats] = [zero.copy() for _ in range(1 + max(self.last.values(), default=0))]
        for value, elements in self.held.items():
            size = elements * self.kernel.program.values[value].element_bytes
            if value in self.kernel.resident:
                continue
            # A tensor that enters or leaves is buffered: one row is computed while another arrives.
            buffers = coefficient("row_buffers") if self.kernel.crosses(value) else 1.0
            for number in range(self.first[value], self.last[value] + 1):
                live[number] += buffers * size
        total: Floats = base + np.max(live, axis=0)
        return total


def _best_spread(nest: TimedNest, state: _State) -> _Spread:
    """Return the spread with the fastest layout; on ties, the first one."""
    return min((_spread(nest, pair, state) for pair in _pairs(nest)), key=lambda spread: spread.cycles.min())


def _pairs(nest: TimedNest) -> Iterator[tuple[int | None, int | None]]:
    """Yield pairs of loops for lines and columns; a pair of the same loop is folded over both."""
    loops = nest.spatial[:_MAX_SPREAD_LOOPS]
    if not loops:
        yield None, None
    for first in loops:
        for second in loops:
            if first != second:
                yield first, second
        yield first, first


def _spread(timed_nest: TimedNest, pair: tuple[int | None, int | None], state: _State) -> _Spread:
    """Return the cost of a nest with a pair of loops over lines and columns."""
    nest, (lines, columns) = timed_nest.nest, pair
    tiles = _tiles(timed_nest, lines, columns, state.layouts)
    points = np.prod(np.array(tiles), axis=0) if tiles else np.ones(len(state.layouts.width))
    footprints = tuple(_footprint(access, tiles, timed_nest, state) for access in nest.accesses)
    cycles = coefficient("start") + _point_cycles(nest) * points
    cycles = cycles + _reduction_cycles(nest, pair, state.layouts)
    spread = _Spread(nest, lines, columns, cycles, footprints)
    moved = _traffic(spread, state)
    return _Spread(nest, lines, columns, cycles + coefficient("stream") * moved, footprints)


def _tiles(nest: TimedNest, lines: int | None, columns: int | None, layouts: _Layouts) -> list[Floats]:
    """Return the iterations of the fullest PE along every loop; 1 for loops in time."""
    tiles: list[Floats] = []
    for loop, extent in enumerate(nest.nest.extents):
        parts = np.ones(len(layouts.width), np.int64)
        if loop == lines:
            parts = parts * layouts.height
        if loop == columns:
            parts = parts * layouts.width
        size = 1 if loop in nest.time else extent
        tiles.append((-(-size // parts)).astype(np.float64))
    return tiles


def _point_cycles(nest: LoopNest) -> float:
    """Return the cycles of one iteration."""
    wide = coefficient("wide_element_factor") if nest.wide else 1.0
    return sum(
        times * coefficient(kind) * (wide if kind in ("simple", "stream") else 1.0)
        for kind, times in nest.work
    )


def _reduction_cycles(nest: LoopNest, pair: tuple[int | None, int | None], layouts: _Layouts) -> Floats:
    """Return the cycles in which running values pass from PE to PE: a start, and the hops."""
    cycles: Floats = np.zeros(len(layouts.width))
    for loop, parts in zip(pair, (layouts.height, layouts.width), strict=True):
        if loop is not None and loop in nest.carried:
            cycles = cycles + np.where(parts > 1, coefficient("reduction") + _HOP_CYCLES * parts, 0)
    return cycles


def _copy_sum_cycles(nest: TimedNest, step_share: float, layouts: _Layouts) -> Floats:
    """Return the cycles per sample to combine the running values of all copies."""
    cycles: Floats = np.zeros(len(layouts.width))
    carried = nest.time.intersection(nest.nest.carried)
    if nest.rows == 1 or not carried:
        return cycles
    # Values that are also carried over samples are combined once a step.
    times = step_share if carried == nest.time else 1.0
    path_cycles = coefficient("reduction") + _HOP_CYCLES * layouts.copies
    return np.where(layouts.copies > 1, times * path_cycles, cycles)


def _traffic(spread: _Spread, state: _State) -> Floats:
    """Return the elements of one run that enter or leave the fullest PE; wide ones count twice."""
    # The first nest that touches a tensor of another kernel receives it. A tensor of this kernel moves if the
    # nest needs it in another placement.
    moved: Floats = np.zeros(len(state.layouts.width))
    for access, elements in zip(spread.nest.accesses, spread.footprints, strict=True):
        value = state.kernel.program.values[access.value]
        arrives = state.kernel.crosses(access.value) and access.value not in state.placement
        placed = state.placement.get(access.value)
        is_moved = placed is not None and placed != spread.placement(access) and value.elements > 1
        resident = access.value in state.kernel.resident
        if arrives or (is_moved and not resident):
            wide = coefficient("wide_element_factor") if value.element_bytes > 2 else 1.0
            moved = moved + wide * elements
    return moved


def _footprint(access: Access, tiles: list[Floats], nest: TimedNest, state: _State) -> Floats:
    """Return the elements of a tensor that the fullest PE touches in one run, for every layout."""
    value = state.kernel.program.values[access.value]
    if access.map is None:
        whole = access.value in state.kernel.resident or not nest.time
        share = 1.0 if whole else min(1.0, 1 / (nest.runs * state.kernel.batch))
        spread: Floats = np.ceil(value.elements * share / state.layouts.pes)
        return spread
    elements: Floats = np.ones(len(state.layouts.width))
    for expr in access.map.results:
        elements = elements * _distinct_indices(expr, tiles, nest)
    iterations = (
        np.prod([tiles[loop] for loop in access.map.used_dims()], axis=0) if access.map.used_dims() else 1
    )
    touched: Floats = np.minimum(elements, iterations)
    return touched


def _distinct_indices(expr: AffineExpr, tiles: list[Floats], nest: TimedNest) -> Floats:
    """Return the number of values that an index expression takes over the tiles, for every layout."""
    if isinstance(expr, AffineDimExpr):
        return tiles[expr.position]
    used = sorted(expr.used_dims())
    if not used:
        return np.ones_like(tiles[0]) if tiles else np.ones(1)
    if len(used) == 1 and (
        _slope(expr) or is_injective(nest.nest.extents, AffineMap(len(tiles), 0, (expr,)))
    ):
        return tiles[used[0]]
    sizes = np.array([tiles[loop] for loop in used]).astype(np.int64)
    distinct, column_of = np.unique(sizes, axis=1, return_inverse=True)
    if distinct.shape[1] > _MAX_COUNTED_TILES:
        bound: Floats = np.prod(sizes.astype(np.float64), axis=0)
        return bound
    compact = expr.replace_dims_and_symbols(
        [
            AffineExpr.dimension(used.index(loop)) if loop in used else AffineExpr.constant(0)
            for loop in range(len(tiles))
        ],
        (),
    )
    mapping = AffineMap(len(used), 0, (compact,))
    extents = [1 if loop in nest.time else nest.nest.extents[loop] for loop in used]
    counts = [
        footprint(
            tuple(int(size) for size in column),
            mapping,
            tuple(-(-extent // int(size)) for extent, size in zip(extents, column, strict=True)),
        )
        for column in distinct.T
    ]
    images: Floats = np.array(counts, np.float64)[column_of.ravel()]
    return images


def _slope(expr: AffineExpr) -> int | None:
    """Return the factor of the one loop that an index depends on; None if it is not linear."""
    # For most indices this replaces `is_injective`: building and hashing its map took three quarters of the
    # compile time of a small 3D convolution network.
    if isinstance(expr, AffineDimExpr | AffineConstantExpr):
        return int(isinstance(expr, AffineDimExpr))
    if not isinstance(expr, AffineBinaryOpExpr):
        return None
    left, right = _slope(expr.lhs), _slope(expr.rhs)
    if left is None or right is None:
        return None
    if expr.kind == AffineBinaryOpKind.Add:
        return left + right
    if expr.kind == AffineBinaryOpKind.Mul and isinstance(expr.rhs, AffineConstantExpr):
        return left * expr.rhs.value
    return None


def _busy(nest: TimedNest, layouts: _Layouts) -> Floats:
    """Return the PE cycles of one run over the whole rectangle."""
    working = np.minimum(layouts.pes, nest.spatial_points)
    busy: Floats = coefficient("start") * working + _point_cycles(nest.nest) * nest.spatial_points
    return busy


def _wire_cycles(kernel: GeneratedKernel, layouts: _Layouts) -> Floats:
    """Return the cycles per sample of the widest stream over the lines, or the slowest stream of images."""
    widest = slowest = 0.0
    for number, value in enumerate(kernel.program.values):
        if kernel.crosses(number):
            wide = coefficient("wide_element_factor") if value.element_bytes > 2 else 1.0
            times = 1 if number in kernel.samples else kernel.replicas
            widest = max(widest, wide * -(-value.elements * times // kernel.batch))
            sizes = image_lines(value.shape, kernel.batch)
            slowest = max(slowest, line_cycles({**sizes, "element_bytes": value.element_bytes}))
    cycles: Floats = np.ceil(widest / (layouts.height * layouts.copies))
    return np.maximum(cycles, slowest)
