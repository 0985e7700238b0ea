"""How full the pipeline is: samples in flight, against memory for their activations.

Every sample between the forward and the backward pass of a kernel leaves activations there, and the deeper a
network, the more samples are between the two. Where the wafer has no memory for them, samples are let in less
often than the kernels take them: a kernel that needs D cycles for a sample has one every D / fill cycles, and
the samples in flight shrink with the fill. Slower kernels are smaller and leave room as well, so both are
chosen together: of all fills the one of the shortest interval at which the kernels and their memory take no
more than a share of the fabric.

With n layers of equal kernels the samples in flight are about n * fill, their memory n ** 2 * fill, and the
kernels' cycles n over the area: the rate falls as 1 / n ** 3, where it falls as 1 / n without that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cgc.placement.shapes import GraphShapes
from cgc.placement.targets import AREA_PER_SPEED, MOST_OF_FABRIC, areas, targets_from

_STEP = 0.98
_STRIDES = (32, 8, 2, 1)
_EMPTIEST = 320
"""Fills are powers of `_STEP` up to this one, searched in strides that become shorter."""

_SHARES = (MOST_OF_FABRIC, 0.95, 0.98, 1.0)
"""Of the fabric that kernels may take by their area; the whole of it only where they need it."""


class _Best(NamedTuple):
    """A fill, and the cycles between samples at it."""

    fill: float
    interval: float


class _FillSearch:
    """The shortest interval between samples by the fill, from the areas of the kernels.

    Args:
        shapes: of all kernels.
        start: cycles below which speed does not pay.
        available: PEs.
    """

    def __init__(self, shapes: GraphShapes, start: int, available: float) -> None:
        self._shapes = shapes
        self._start = start
        self._available = available
        self._found: dict[int, float] = {}

    def best(self) -> _Best | None:
        """The fill of the shortest interval, None where the kernels do not fit at any."""
        best: int | None = None
        tried = range(0, _EMPTIEST + 1, _STRIDES[0])
        for stride, shorter in zip(_STRIDES, (*_STRIDES[1:], 0), strict=True):
            for exponent in tried:
                bound = math.inf if best is None else self._interval(best)
                if self._start / _fill_of(exponent) >= bound:
                    break
                if self._interval(exponent) < bound:
                    best = exponent
            if best is None or not shorter:
                break
            tried = range(max(0, best - stride + shorter), min(_EMPTIEST, best + stride), shorter)
        return None if best is None else _Best(_fill_of(best), self._interval(best))

    def _interval(self, exponent: int) -> float:
        """Cycles between samples at a fill; infinite where the kernels do not fit."""
        if exponent not in self._found:
            self._found[exponent] = self._shortest(_fill_of(exponent))
        return self._found[exponent]

    def _shortest(self, fill: float) -> float:
        shapes = self._shapes.at(fill)
        if shapes is None:
            return math.inf
        targets = targets_from(shapes, max(self._start, *(int(kernel.cycles[0]) for kernel in shapes)))
        fitting = areas(shapes, targets) <= self._available
        return float(targets[np.argmax(fitting)]) / fill if fitting.any() else math.inf


def _fill_of(exponent: int) -> float:
    """The fill of an exponent."""
    return _STEP**exponent


def fills(shapes: GraphShapes, start: int, available: int) -> Iterator[float]:
    """Fills to pack at, best first; none where the kernels do not fit at any.

    Kernels take more than `MOST_OF_FABRIC` only where that speeds the pipeline by more than `AREA_PER_SPEED`
    for the area. The fills of smaller shares follow, for kernels that would fit by their area but do not
    pack.

    Args:
        shapes: of all kernels.
        start: cycles below which speed does not pay.
        available: PEs of the fabric.
    """
    emptiest = shapes.at(0)
    assert emptiest is not None
    if sum(int(kernel.least_area(int(kernel.cycles[-1]))) for kernel in emptiest) > available:
        return
    start = max(start, *(int(kernel.cycles[0]) for kernel in emptiest))
    found: dict[float, _Best] = {}
    for share in _SHARES:
        best = _FillSearch(shapes, start, share * available).best()
        if best is not None:
            found[share] = best
            if best.interval <= start:
                break
    wanted = [share for share in found if share < 1] or list(found)
    if wanted:
        chosen = min(wanted, key=lambda share: found[share].interval * share**AREA_PER_SPEED)
        yield from dict.fromkeys(found[share].fill for share in reversed(wanted) if share <= chosen)
