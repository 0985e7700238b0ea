"""Sets of rectangles to search with: all of them, or those of common h' and w' where adapters cost.

Where all kernels are split alike in h' and w', two of the three numbers match that an adapter may cost, at
some percent of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cgc.placement.engine.anneal import Stop
from cgc.placement.ispd.bounds import Bounds, bounds
from cgc.placement.ispd.curves import KernelCurves, Pair, graph_curves
from cgc.placement.ispd.errors import ContestError
from cgc.placement.ispd.model import ContestGraph

_PAIRS = "1x7 2x7 1x2 7x14 2x2 4x4 1x1 8x8 7x7 1x4 4x7 2x4 4x8 1x8 14x14 1x14 2x14"
"""h' x w' that suit images of 7, 14, 28, 56 and 112 points and of powers of 2, the best ones first."""

_MISMATCHES_SAVED = 0.4
"""About how many fewer an edge has with common h' and w'."""


@dataclass(frozen=True)
class Variant:
    """Rectangles of all kernels.

    Attributes:
        curves: by kernel.
        bounds: what no solution with these rectangles can beat.
    """

    curves: list[KernelCurves]
    bounds: Bounds


def variants(graph: ContestGraph, stop: Stop = lambda: False) -> list[Variant]:
    """The sets of rectangles to search with: all of them, and those of a pair that may pay.

    Args:
        graph: the graph.
        stop: whether the time for this is up.

    Raises:
        ContestError: the graph does not fit at any speed.
    """
    everything = _variant(graph, None)
    saving = _MISMATCHES_SAVED * graph.wadapter * len(graph.edges)
    pairs = (pair for pair in _pairs() if saving and not stop())
    commons = [variant for pair in pairs if (variant := _possible(graph, pair))]
    best = min(commons, key=lambda variant: variant.bounds.objective, default=everything)
    # An equal bound means equal rectangles: the images are single points.
    loss = best.bounds.objective - everything.bounds.objective
    return [everything, best] if 0 < loss < saving else [everything]


def _pairs() -> Iterator[Pair]:
    for text in _PAIRS.split():
        rows, columns = text.split("x")
        yield int(rows), int(columns)


def _variant(graph: ContestGraph, common: Pair | None) -> Variant:
    curves = graph_curves(graph.kernels, graph.width, graph.height, graph.memlimit, common)
    return Variant(curves, bounds(graph, curves))


def _possible(graph: ContestGraph, pair: Pair) -> Variant | None:
    try:
        return _variant(graph, pair)
    except ContestError:
        return None
