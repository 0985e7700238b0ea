"""Stacks of rows in columns along the data flow, by dynamic programming.

The kernels, in one given order, are cut into columns that stand side by side; a column is cut into rows that
lie on top of each other; a row holds up to three kernels. Flat kernels on top of each other have near
centres, so few wide columns make short wires and many narrow ones fill the fabric better. For one target and
one order the cuts and widths below are the best ones, but for widths that are left out and for two estimates:
wires count as if the kernels of a row were equally wide, and as if columns were connected at their middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.bands import Rows
from cgc.placement.engine.tree import NEVER, Floats, Ints, inverse

Small = NDArray[np.int8]
Lengths = NDArray[np.int32]
Wires = NDArray[np.float32]

_IMPOSSIBLE = 1e15
_WIDTHS_PER_SPAN = 12
_EMPTIEST = 1.4

MOST_KERNELS = 160
"""Larger graphs need too much memory and time: all spans at all widths."""


@dataclass(frozen=True)
class _Rows:
    """All rows of one number of kernels; first axis: first position, second: width of the column."""

    heights: Lengths
    wires: Wires


@dataclass(frozen=True)
class _Stacks:
    """The best stacks of all spans of one length; axes as in `_Rows`, `last` is the size of the last row."""

    heights: Lengths
    wires: Wires
    last: Small


class _Order:
    """Wires of an order: which edges pass over, leave and stay in a run of positions."""

    def __init__(self, count: int, edges: Sequence[tuple[int, int]]) -> None:
        self.count = count
        self.first = np.array([min(edge) for edge in edges], dtype=np.int64)
        self.second = np.array([max(edge) for edge in edges], dtype=np.int64)
        cuts = np.arange(count + 1)[:, None]
        self.crossing: Ints = ((self.first < cuts) & (cuts <= self.second)).sum(axis=1)

    def row(self, start: int, size: int) -> tuple[float, float]:
        """Wire of a row of `size` kernels per tile of its height, and per tile of its width."""
        end = start + size
        first_in = (self.first >= start) & (self.first < end)
        second_in = (self.second >= start) & (self.second < end)
        over = (self.first < start) & (self.second >= end)
        both, one = first_in & second_in, first_in ^ second_in
        inside = np.where(first_in, self.first, self.second)[one] - start
        across = (self.second - self.first)[both].sum() + np.abs(inside - (size - 1) / 2).sum()
        return float(over.sum() + one.sum() / 2), float(across / size)


def pack_columns(
    heights: Ints,
    edges: Sequence[tuple[int, int]],
    width: int,
    height: int,
    largest_row: int = 3,
    frugalities: Sequence[float] = (0.0, 1.0, 8.0),
    stop: Stop = lambda: False,
) -> list[Rows] | None:
    """The columns of the shortest estimated wires.

    Args:
        heights: by position in the order, the least extent of the kernel in y by its extent in x (and the
            other way round, as kernels may be turned), 0 .. at least max(width, height).
        edges: pairs of positions.
        width: tiles of the fabric in x.
        height: tiles in y.
        largest_row: kernels in a row at most.
        frugalities: wire length per tile of height that a stack may cost more to be lower; each is tried.
        stop: whether time is up.

    Returns:
        The rows of the columns from left to right, or None where nothing fits or time is up.
    """
    order = _Order(len(heights), edges)
    rows = [_rows(heights, order, size, width, height) for size in range(1, largest_row + 1)]
    options = [_stacks(rows, order.count, height, frugality, stop) for frugality in frugalities]
    return None if stop() else _best_columns(options, order, width, height, stop)


def _rows(heights: Ints, order: _Order, size: int, width: int, height: int) -> _Rows:
    count = max(0, order.count - size + 1)
    widths = np.arange(width + 1)
    table = np.empty((count, width + 1), dtype=np.int64)
    wires = np.empty((count, width + 1))
    for start in range(count):
        if size == 1:
            table[start] = heights[start, : width + 1]
        else:
            together = heights[start : start + size].sum(axis=0)
            table[start] = inverse(together, widths)
        upright, across = order.row(start, size)
        wires[start] = upright * np.minimum(table[start], 2 * height) + across * widths
    return _Rows(table.astype(np.int32), wires.astype(np.float32))


def _stacks(rows: Sequence[_Rows], count: int, height: int, frugality: float, stop: Stop) -> list[_Stacks]:
    """The best stacks by length of the span, from 0 to the longest that fits anywhere."""
    shape = (count + 1, rows[0].heights.shape[1])
    stacks = [_Stacks(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.int8))]
    for length in range(1, count + 1):
        best: _Stacks | None = None
        for size in range(1, min(length, len(rows)) + 1):
            option = _extended(stacks[length - size], rows[size - 1], count, length, size)
            best = option if best is None else _better(best, option, frugality)
        assert best is not None
        if stop() or bool((best.heights > height).all()):
            break
        stacks.append(best)
    return stacks


def _extended(stack: _Stacks, row: _Rows, count: int, length: int, size: int) -> _Stacks:
    starts = count - length + 1
    rest = length - size
    heights = stack.heights[:starts] + row.heights[rest : rest + starts]
    wires = stack.wires[:starts] + row.wires[rest : rest + starts]
    return _Stacks(np.minimum(heights, np.int32(NEVER)), wires, np.full(heights.shape, size, np.int8))


def _better(one: _Stacks, other: _Stacks, frugality: float) -> _Stacks:
    take = other.wires + frugality * other.heights < one.wires + frugality * one.heights
    return _Stacks(
        np.where(take, other.heights, one.heights),
        np.where(take, other.wires, one.wires),
        np.where(take, other.last, one.last),
    )


def _best_columns(
    options: Sequence[Sequence[_Stacks]], order: _Order, width: int, height: int, stop: Stop
) -> list[Rows] | None:
    count = order.count
    cost, choice = _span_costs(options, order, width, height)
    total = np.full((count + 1, width + 1), _IMPOSSIBLE)
    total[0, 0] = 0.0
    came_from = np.zeros((count + 1, width + 1, 2), dtype=np.int64)
    for start in range(count):
        possible = total[start] < _IMPOSSIBLE
        if stop():
            return None
        if not possible.any():
            continue
        used = int(np.argmax(possible))
        for length in range(1, min(len(cost) - 1, count - start) + 1):
            end = start + length
            for column in _widths(cost[length][start], width - used, end == count):
                found = total[start, : width + 1 - column] + cost[length][start, column]
                better = found < total[end, column:] - 1e-9
                total[end, column:][better] = found[better]
                came_from[end, column:][better] = start, column
    used = int(np.argmin(total[count]))
    if total[count, used] >= _IMPOSSIBLE:
        return None
    return _read_back(options, choice, came_from, count, used)


def _span_costs(
    options: Sequence[Sequence[_Stacks]], order: _Order, width: int, height: int
) -> tuple[list[Floats], list[Small]]:
    """Cost of a column by length of span, start and width, and which of the options it is."""
    widths = np.arange(width + 1)
    costs, choices = [np.empty((0, 0))], [np.empty((0, 0), np.int8)]
    for length in range(1, max(len(option) for option in options)):
        starts = np.arange(order.count - length + 1)
        cost = np.full((len(starts), width + 1), _IMPOSSIBLE)
        choice = np.zeros(cost.shape, np.int8)
        for number, option in enumerate(options):
            if length < len(option):
                better = (option[length].heights <= height) & (option[length].wires < cost)
                cost[better] = option[length].wires[better]
                choice[better] = number
        ends = order.crossing[starts] + order.crossing[starts + length]
        costs.append(cost + ends[:, None] * widths / 2)
        choices.append(choice)
    return costs, choices


def _widths(cost: Floats, limit: int, last: bool) -> list[int]:
    """Widths worth trying: those cheaper than all narrower ones, thinned out.

    A column that is far wider than its kernels need stays half empty, so it can only be the last one.
    """
    lowest = np.minimum.accumulate(cost[: limit + 1])
    useful = np.nonzero(lowest[1:] < np.minimum(lowest[:-1], _IMPOSSIBLE / 2))[0] + 1
    if len(useful) and not last:
        useful = useful[useful <= _EMPTIEST * useful[0] + 1]
    if len(useful) > _WIDTHS_PER_SPAN:
        useful = useful[np.unique(np.linspace(0, len(useful) - 1, _WIDTHS_PER_SPAN).astype(np.int64))]
    return [int(column) for column in useful]


def _read_back(
    options: Sequence[Sequence[_Stacks]], choice: Sequence[Small], came_from: Ints, end: int, used: int
) -> list[Rows]:
    columns = []
    while end > 0:
        start, width = (int(value) for value in came_from[end, used])
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
