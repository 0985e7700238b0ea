"""Packing of kernels along the data flow by dynamic programming: into dense bands, or columns of short wires.

`pack_bands` works for any number of kernels. It cuts the fabric into bands of equal height, a band into
columns, and a column into rows of a few kernels. For a given order and band height it chooses the narrowest
columns, which take the fewest bands. `pack_columns` cuts the fabric into columns only, and estimates the wire
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.tree import NO_EXTENT, Floats, Ints, inverse

# Widths to try: 48, and more for few kernels. Time and memory grow with widths times kernels.
_MIN_WIDTHS, _MAX_WIDTH_ENTRIES = 48, 20_000

# `pack_columns` compares all spans at all widths, which takes too much time and memory for larger graphs.
MAX_COLUMN_KERNELS = 160
_IMPOSSIBLE = 1e15
_MAX_WIDTHS_PER_SPAN = 12
_MAX_WIDTH_RATIO = 1.4

Small = NDArray[np.int8]
Wires = NDArray[np.float32]
Lengths = NDArray[np.int32]

Rows = tuple[tuple[int, ...], ...]
"""Positions in the order, one tuple per row, from low to high."""


@dataclass(frozen=True)
class Stacks:
    """The lowest stack of rows for each short run of an order.

    Attributes:
        widths: column widths that were tried, ascending.
        heights: least height, by length of the run less 1, first position and width.
        last: number of kernels in the last row, indexed like `heights`.
    """

    widths: Ints
    heights: list[Lengths]
    last: list[NDArray[np.int8]]

    def rows(self, start: int, end: int, column: int) -> Rows:
        """Return the rows of a run at the width of index `column`."""
        found = []
        while end > start:
            size = int(self.last[end - start - 1][start, column])
            found.append(tuple(range(end - size, end)))
            end -= size
        return tuple(reversed(found))


def compute_stacks(curves: Sequence[Ints], width: int, height: int, max_row: int, max_stack: int) -> Stacks:
    """Compute the stacks of all runs that are no higher than `height` at some width.

    Args:
        curves: shape curves by position in the order: the least extent in one direction by that in the other.
        width: width of the fabric.
        height: height of the highest band.
        max_row: maximum number of kernels in a row.
        max_stack: maximum number of kernels in a stack.
    """
    count = len(curves)
    widths = _useful_widths(curves, width)
    rows = [_row_heights(curves, size, widths) for size in range(1, min(max_row, count) + 1)]
    heights = [rows[0]]
    last = [np.ones(rows[0].shape, np.int8)]
    for length in range(2, min(count, max_stack) + 1):
        starts = count - length + 1
        best = rows[0][length - 1 :] + heights[length - 2][:starts]
        sizes = np.ones(best.shape, np.int8)
        for size in range(2, min(len(rows), length) + 1):
            option = rows[size - 1][length - size :][:starts]
            if size < length:
                option = option + heights[length - size - 1][:starts]
            sizes[option < best] = size
            np.minimum(best, option, out=best)
        np.minimum(best, np.int32(NO_EXTENT), out=best)
        if bool((best > height).all()):
            break
        heights.append(best)
        last.append(sizes)
    return Stacks(widths, heights, last)


def _useful_widths(curves: Sequence[Ints], width: int) -> Ints:
    """Return the widths at which some kernel becomes lower, subsampled to a maximum number."""
    distinct = {id(curve): curve for curve in curves}.values()
    useful = np.zeros(width + 1, np.bool_)
    useful[width] = True
    for curve in distinct:
        useful[1:] |= np.diff(curve[: width + 1]) < 0
    found = np.nonzero(useful)[0]
    max_widths = max(_MIN_WIDTHS, _MAX_WIDTH_ENTRIES // len(curves))
    if len(found) > max_widths:
        found = found[np.unique(np.linspace(0, len(found) - 1, max_widths).round().astype(np.int64))]
    return found.astype(np.int64)


def _row_heights(curves: Sequence[Ints], size: int, widths: Ints) -> Lengths:
    """Return the least height of a row of `size` kernels, by first position and width."""
    if size == 1:
        return np.stack([curve[widths] for curve in curves]).astype(np.int32)
    cache: dict[tuple[int, ...], Ints] = {}
    found = []
    for start in range(len(curves) - size + 1):
        run = curves[start : start + size]
        key = tuple(sorted(map(id, run)))
        if key not in cache:
            cache[key] = inverse(np.add.reduce(run), widths)
        found.append(cache[key])
    return np.stack(found).astype(np.int32)


def pack_bands(found: Stacks, count: int, width: int, height: int, bands: int) -> list[list[Rows]] | None:
    """Pack kernels into the narrowest columns of equal bands.

    Args:
        found: stacks of the order.
        count: number of kernels in the order.
        width: width of the fabric.
        height: height of the fabric.
        bands: number of bands.

    Returns:
        The rows by band and column; None if the kernels need more bands.
    """
    narrowest, width_index = _narrowest(found, count, width, height // bands)
    lengths = np.arange(1, len(narrowest) + 1)
    # Width used so far, plus `width` for every full band. A smaller value is never worse, so one is kept.
    used = np.full(count + 1, NO_EXTENT, dtype=np.int64)
    used[0] = 0
    previous = np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        sizes = lengths[: min(end, len(lengths))]
        columns = narrowest[sizes - 1, end - sizes]
        before = used[end - sizes]
        left = width - before % width
        after = before + columns + np.where(columns <= left, 0, left)
        after[columns > width] = NO_EXTENT
        best = int(np.argmin(after))
        used[end], previous[end] = after[best], end - sizes[best]
    if used[count] > bands * width:
        return None
    return _read_bands(found, width_index, used, previous, count, width)


def _narrowest(found: Stacks, count: int, width: int, height: int) -> tuple[Ints, Ints]:
    """Return the least width of a column and its index, by length less 1 and first position."""
    narrowest = np.full((len(found.heights), count), NO_EXTENT, dtype=np.int64)
    width_index = np.zeros((len(found.heights), count), dtype=np.int64)
    for number, heights in enumerate(found.heights):
        # Wider columns are never higher.
        possible = heights[:, -1] <= height
        first = np.argmax(heights <= height, axis=1)
        width_index[number, : len(heights)] = first
        narrowest[number, : len(heights)][possible] = found.widths[first[possible]]
    return narrowest, width_index


def _read_bands(
    found: Stacks, width_index: Ints, used: Ints, previous: Ints, end: int, width: int
) -> list[list[Rows]]:
    bands: dict[int, list[Rows]] = {}
    while end > 0:
        start = int(previous[end])
        rows = found.rows(start, end, int(width_index[end - start - 1, start]))
        bands.setdefault((int(used[end]) - 1) // width, []).append(rows)
        end = start
    return [bands[number][::-1] for number in sorted(bands)]


@dataclass(frozen=True)
class _Rows:
    """All rows of N kernels; axes are the first position and the width of the column."""

    heights: Lengths
    wires: Wires


@dataclass(frozen=True)
class _SpanStacks:
    """The best stacks of all spans of one length, with axes as in `_Rows`; `last` is the last row's size."""

    heights: Lengths
    wires: Wires
    last: Small


class _Order:
    """The wires of an order: edges that pass over, leave and stay within a run of positions."""

    def __init__(self, count: int, edges: Sequence[tuple[int, int]]) -> None:
        self.count = count
        self.first = np.array([min(edge) for edge in edges], dtype=np.int64)
        self.second = np.array([max(edge) for edge in edges], dtype=np.int64)
        cuts = np.arange(count + 1)[:, None]
        self.crossing: Ints = ((self.first < cuts) & (cuts <= self.second)).sum(axis=1)

    def row(self, start: int, size: int) -> tuple[float, float]:
        """Return the wire length of a row of `size` kernels per tile of its height, and per tile of width."""
        end = start + size
        first_in = (self.first >= start) & (self.first < end)
        second_in = (self.second >= start) & (self.second < end)
        passing = (self.first < start) & (self.second >= end)
        is_inside, first_ = first_in & second_in, first_in ^ second_in
        inner_end = np.where(first_in, self.first, self.second)[first_] - start
        across = (self.second - self.first)[is_inside].sum() + np.abs(inner_end - (size - 1) / 2).sum()
        return float(passing.sum() + first_.sum() / 2), float(across / size)


def pack_columns(
    heights: Ints,
    edges: Sequence[tuple[int, int]],
    width: int,
    height: int,
    max_row: int = 3,
    height_prices: Sequence[float] = (0.0, 1.0, 8.0),
    stop: Stop = lambda: False,
) -> list[Rows] | None:
    """Pack kernels into the columns of the shortest estimated wires.

    Args:
        heights: by position in the order, the least extent of the kernel in y by its extent in x (and the
            other way round, as kernels may be turned), 0 .. at least max(width, height).
        edges: pairs of positions.
        width: tiles of the fabric in x.
        height: tiles in y.
        max_row: maximum number of kernels in a row.
        height_prices: values to try for the wire length that a stack may add to become one tile lower.
        stop: returns True when the time is up.

    Returns:
        The rows of the columns from left to right; None if nothing fits or the time is up.
    """
    order = _Order(len(heights), edges)
    rows = [_make_rows(heights, order, size, width, height) for size in range(1, max_row + 1)]
    options = [_make_stacks(rows, order.count, height, height_price, stop) for height_price in height_prices]
    return None if stop() else _choose_columns(options, order, width, height, stop)


def _make_rows(heights: Ints, order: _Order, size: int, width: int, height: int) -> _Rows:
    count = max(0, order.count - size + 1)
    widths = np.arange(width + 1)
    table = np.empty((count, width + 1), dtype=np.int64)
    wires = np.empty((count, width + 1))
    for start in range(count):
        if size == 1:
            table[start] = heights[start, : width + 1]
        else:
            total = heights[start : start + size].sum(axis=0)
            table[start] = inverse(total, widths)
        upright, across = order.row(start, size)
        wires[start] = upright * np.minimum(table[start], 2 * height) + across * widths
    return _Rows(table.astype(np.int32), wires.astype(np.float32))


def _make_stacks(
    rows: Sequence[_Rows], count: int, height: int, height_price: float, stop: Stop
) -> list[_SpanStacks]:
    """Return the best stacks by length of the span, from 0 to the longest that fits anywhere."""
    shape = (count + 1, rows[0].heights.shape[1])
    stacks = [_SpanStacks(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.int8))]
    for length in range(1, count + 1):
        best: _SpanStacks | None = None
        for size in range(1, min(length, len(rows)) + 1):
            stack = stacks[length - size]
            row = rows[size - 1]
            starts = count - length + 1
            rest = length - size
            heights = stack.heights[:starts] + row.heights[rest : rest + starts]
            wires = stack.wires[:starts] + row.wires[rest : rest + starts]
            option = _SpanStacks(
                np.minimum(heights, np.int32(NO_EXTENT)), wires, np.full(heights.shape, size, np.int8)
            )
            best = option if best is None else _select_stacks(best, option, height_price)
        assert best is not None
        if stop() or bool((best.heights > height).all()):
            break
        stacks.append(best)
    return stacks


def _select_stacks(current: _SpanStacks, option: _SpanStacks, height_price: float) -> _SpanStacks:
    """Choose the cheaper of two stacks for every start and width."""
    is_cheaper = option.wires + height_price * option.heights < current.wires + height_price * current.heights
    return _SpanStacks(
        np.where(is_cheaper, option.heights, current.heights),
        np.where(is_cheaper, option.wires, current.wires),
        np.where(is_cheaper, option.last, current.last),
    )


def _choose_columns(
    options: Sequence[Sequence[_SpanStacks]], order: _Order, width: int, height: int, stop: Stop
) -> list[Rows] | None:
    count = order.count
    cost, choice = _span_costs(options, order, width, height)
    total = np.full((count + 1, width + 1), _IMPOSSIBLE)
    total[0, 0] = 0.0
    previous = np.zeros((count + 1, width + 1, 2), dtype=np.int64)
    for start in range(count):
        possible = total[start] < _IMPOSSIBLE
        if stop():
            return None
        if not possible.any():
            continue
        used = int(np.argmax(possible))
        for length in range(1, min(len(cost) - 1, count - start) + 1):
            end = start + length
            for column in _useful_column_widths(cost[length][start], width - used, end == count):
                found = total[start, : width + 1 - column] + cost[length][start, column]
                is_better = found < total[end, column:] - 1e-9
                total[end, column:][is_better] = found[is_better]
                previous[end, column:][is_better] = start, column
    used = int(np.argmin(total[count]))
    if total[count, used] >= _IMPOSSIBLE:
        return None
    return _read_columns(options, choice, previous, count, used)


def _span_costs(
    options: Sequence[Sequence[_SpanStacks]], order: _Order, width: int, height: int
) -> tuple[list[Floats], list[Small]]:
    """Return the cost of a column by length of span, start and width, and the index of its option."""
    widths = np.arange(width + 1)
    costs, choices = [np.empty((0, 0))], [np.empty((0, 0), np.int8)]
    for length in range(1, max(len(option) for option in options)):
        starts = np.arange(order.count - length + 1)
        cost = np.full((len(starts), width + 1), _IMPOSSIBLE)
        choice = np.zeros(cost.shape, np.int8)
        for number, option in enumerate(options):
            if length < len(option):
                is_better = (option[length].heights <= height) & (option[length].wires < cost)
                cost[is_better] = option[length].wires[is_better]
                choice[is_better] = number
        ends = order.crossing[starts] + order.crossing[starts + length]
        costs.append(cost + ends[:, None] * widths / 2)
        choices.append(choice)
    return costs, choices


def _useful_column_widths(cost: Floats, limit: int, last: bool) -> list[int]:
    """Return the widths that are cheaper than all narrower ones, subsampled to a maximum number."""
    lowest = np.minimum.accumulate(cost[: limit + 1])
    useful = np.nonzero(lowest[1:] < np.minimum(lowest[:-1], _IMPOSSIBLE / 2))[0] + 1
    # A column much wider than its kernels need leaves PEs idle. Only the last column may be so wide.
    if len(useful) and not last:
        useful = useful[useful <= _MAX_WIDTH_RATIO * useful[0] + 1]
    if len(useful) > _MAX_WIDTHS_PER_SPAN:
        useful = useful[np.unique(np.linspace(0, len(useful) - 1, _MAX_WIDTHS_PER_SPAN).astype(np.int64))]
    return [int(column) for column in useful]


def _read_columns(
    options: Sequence[Sequence[_SpanStacks]], choice: Sequence[Small], previous: Ints, end: int, used: int
) -> list[Rows]:
    columns = []
    while end > 0:
        start, width = (int(value) for value in previous[end, used])
        option = options[int(choice[end - start][start, width])]
        rows = []
        row_end = end
        while row_end > start:
            size = int(option[row_end - start].last[start, width])
            rows.append(tuple(range(row_end - size, row_end)))
            row_end -= size
        columns.append(tuple(reversed(rows)))
        end, used = start, used - width
    return columns[::-1]
