"""Dense bands along the data flow, by dynamic programming, for any number of kernels.

The fabric is cut into bands of equal height that lie on top of each other; a band is cut into columns, a
column into rows, a row holds a few kernels. For one order and one height of the bands the columns are
the narrowest ones, so that the kernels take the fewest bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cgc.placement.engine.tree import NEVER, Ints, inverse

_LEAST_WIDTHS, _MOST_WIDTH_ENTRIES = 48, 20_000
"""Widths to try, and those times the number of kernels, to which time and memory are proportional."""


Lengths = NDArray[np.int32]

Rows = tuple[tuple[int, ...], ...]
"""Positions in the order, by row from low to high."""


@dataclass(frozen=True)
class Stacks:
    """The lowest stacks of rows of all short runs of an order.

    Attributes:
        widths: the widths of columns that were tried, ascending.
        heights: by length of the run less 1, first position and width: the least height.
        last: likewise, how many kernels are in the last row.
    """

    widths: Ints
    heights: list[Lengths]
    last: list[NDArray[np.int8]]

    def rows(self, start: int, end: int, column: int) -> Rows:
        """The rows of a run at a width, given by its number."""
        found = []
        while end > start:
            size = int(self.last[end - start - 1][start, column])
            found.append(tuple(range(end - size, end)))
            end -= size
        return tuple(reversed(found))


def stacks(curves: Sequence[Ints], width: int, height: int, largest_row: int, largest_stack: int) -> Stacks:
    """Stacks of all runs that are no higher than `height` at some width.

    Args:
        curves: by position in the order, the least extent in one direction by that in the other.
        width: of the fabric.
        height: of the highest band.
        largest_row: kernels in a row at most.
        largest_stack: kernels in a stack at most.
    """
    count = len(curves)
    widths = _useful_widths(curves, width)
    rows = [_row_heights(curves, size, widths) for size in range(1, min(largest_row, count) + 1)]
    heights = [rows[0]]
    last = [np.ones(rows[0].shape, np.int8)]
    for length in range(2, min(count, largest_stack) + 1):
        starts = count - length + 1
        best = rows[0][length - 1 :] + heights[length - 2][:starts]
        sizes = np.ones(best.shape, np.int8)
        for size in range(2, min(len(rows), length) + 1):
            option = rows[size - 1][length - size :][:starts]
            if size < length:
                option = option + heights[length - size - 1][:starts]
            sizes[option < best] = size
            np.minimum(best, option, out=best)
        np.minimum(best, np.int32(NEVER), out=best)
        if bool((best > height).all()):
            break
        heights.append(best)
        last.append(sizes)
    return Stacks(widths, heights, last)


def _useful_widths(curves: Sequence[Ints], width: int) -> Ints:
    """Widths at which some kernel becomes lower, thinned out."""
    distinct = {id(curve): curve for curve in curves}.values()
    useful = np.zeros(width + 1, np.bool_)
    useful[width] = True
    for curve in distinct:
        useful[1:] |= np.diff(curve[: width + 1]) < 0
    found = np.nonzero(useful)[0]
    most = max(_LEAST_WIDTHS, _MOST_WIDTH_ENTRIES // len(curves))
    if len(found) > most:
        found = found[np.unique(np.linspace(0, len(found) - 1, most).round().astype(np.int64))]
    return found.astype(np.int64)


def _row_heights(curves: Sequence[Ints], size: int, widths: Ints) -> Lengths:
    """Least height of `size` kernels beside each other, by first position and width."""
    if size == 1:
        return np.stack([curve[widths] for curve in curves]).astype(np.int32)
    known: dict[tuple[int, ...], Ints] = {}
    found = []
    for start in range(len(curves) - size + 1):
        run = curves[start : start + size]
        key = tuple(sorted(map(id, run)))
        if key not in known:
            known[key] = inverse(np.add.reduce(run), widths)
        found.append(known[key])
    return np.stack(found).astype(np.int32)


def pack_bands(found: Stacks, count: int, width: int, height: int, bands: int) -> list[list[Rows]] | None:
    """The narrowest columns in equal bands.

    Args:
        found: stacks of the order.
        count: kernels of the order.
        width: of the fabric.
        height: of the fabric.
        bands: how many.

    Returns:
        By band and column the rows, None where the kernels need more bands.
    """
    narrowest, which = _narrowest(found, count, width, height // bands)
    lengths = np.arange(1, len(narrowest) + 1)
    # Width used so far, plus `width` for every full band; the least is the best in every respect.
    used = np.full(count + 1, NEVER, dtype=np.int64)
    used[0] = 0
    came_from = np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        sizes = lengths[: min(end, len(lengths))]
        columns = narrowest[sizes - 1, end - sizes]
        before = used[end - sizes]
        left = width - before % width
        after = before + columns + np.where(columns <= left, 0, left)
        after[columns > width] = NEVER
        best = int(np.argmin(after))
        used[end], came_from[end] = after[best], end - sizes[best]
    if used[count] > bands * width:
        return None
    return _read_back(found, which, used, came_from, count, width)


def _narrowest(found: Stacks, count: int, width: int, height: int) -> tuple[Ints, Ints]:
    """By length less 1 and first position: the least width of a column of that height, and its number."""
    narrowest = np.full((len(found.heights), count), NEVER, dtype=np.int64)
    which = np.zeros((len(found.heights), count), dtype=np.int64)
    for number, heights in enumerate(found.heights):
        # Wider columns are never higher.
        possible = heights[:, -1] <= height
        first = np.argmax(heights <= height, axis=1)
        which[number, : len(heights)] = first
        narrowest[number, : len(heights)][possible] = found.widths[first[possible]]
    return narrowest, which


def _read_back(
    found: Stacks, which: Ints, used: Ints, came_from: Ints, end: int, width: int
) -> list[list[Rows]]:
    bands: dict[int, list[Rows]] = {}
    while end > 0:
        start = int(came_from[end])
        rows = found.rows(start, end, int(which[end - start - 1, start]))
        bands.setdefault((int(used[end]) - 1) // width, []).append(rows)
        end = start
    return [bands[number][::-1] for number in sorted(bands)]
