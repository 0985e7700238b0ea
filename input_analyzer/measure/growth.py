"""Whether the memory of a copy grows for as long as it is measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

_QUARTERS = 4
_LEAST_BYTES = 32 << 20
"""Buffers fill, and what was freed is not given back at once: less says nothing."""


def growth_bytes_per_s(levels: Sequence[tuple[float, int]], start: float, end: float) -> float:
    """Bytes per second by which memory rose in every quarter of a measurement; 0 where it came to rest.

    What rises for less than three quarters, as with a buffer that is full then, does not count.

    Args:
        levels: Times in seconds, and the memory seen then in bytes.
        start: Begin of the measurement, in seconds.
        end: Its end.
    """
    length = (end - start) / _QUARTERS
    quarters: list[list[int]] = [[] for _ in range(_QUARTERS)]
    for time_s, size in levels:
        if start <= time_s < end:
            quarters[int((time_s - start) / length)].append(size)
    if not all(quarters):
        return 0.0  # too short to tell
    middles = [median(quarter) for quarter in quarters]
    steps = [after - before for before, after in pairwise(middles)]
    total = sum(steps)
    if min(steps) <= 0 or total < _LEAST_BYTES or min(steps) < total / (3 * len(steps)):
        return 0.0
    return float(total / (length * len(steps)))
