"""Floorplans along the data flow, to start the search from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.bands import Rows, pack_bands, stacks
from cgc.placement.engine.columns import MOST_KERNELS, pack_columns
from cgc.placement.engine.problem import Problem
from cgc.placement.engine.tree import Node, cut

STRETCHES = (1.0, 1.03)
"""Heights of the box to fill, as shares of the fabric's: what is a little too high is a good start, too."""

MOST_BANDS = 10

SHORT, DENSE = ((1, 1), (1, 3)), ((3, 96),)
"""Kernels in a row and in a column of a band at most: thin kernels beside each other have short wires, more
freedom fills more."""


def band_trees(
    problem: Problem,
    order: Sequence[int],
    target: float,
    width: int,
    height: int,
    styles: Sequence[tuple[int, int]] = SHORT + DENSE,
    most_bands: int = MOST_BANDS,
) -> Iterator[Node]:
    """Dense bands in a box at the corner of the fabric, few bands first; as trees they may be even denser."""
    shapes = problem.shapes(target)
    curves = [shapes.heights[index] for index in order]
    for largest_row, largest_stack in styles:
        found = stacks(curves, width, height, largest_row, largest_stack)
        for count in range(1, min(most_bands, height) + 1):
            bands = pack_bands(found, len(order), width, height, count)
            if bands is not None:
                yield _serpentine(bands, order)


def column_trees(
    problem: Problem, order: Sequence[int], target: float, stop: Stop = lambda: False
) -> Iterator[Node]:
    """The columns of the shortest wires at a target, in boxes as high as the fabric and a little higher."""
    if len(order) > MOST_KERNELS:
        return
    shapes = problem.shapes(target)
    heights = np.array([shapes.heights[index] for index in order])
    position = {kernel: number for number, kernel in enumerate(order)}
    edges = [(position[source], position[sink]) for source, sink in problem.edges]
    seen: list[list[Rows]] = []
    for stretch in STRETCHES:
        columns = pack_columns(heights, edges, problem.width, int(problem.height * stretch), stop=stop)
        if columns is not None and columns not in seen:
            seen.append(columns)
            yield _serpentine([columns], order)


def _serpentine(bands: Sequence[Sequence[Rows]], order: Sequence[int]) -> Node:
    """Bands and columns of which every other one runs backwards, so that neighbours stay near."""
    pieces = []
    for number, band in enumerate(bands):
        columns = []
        for turn, rows in enumerate(band):
            # A backward band is mirrored, rows included, so that what follows in a row lies behind it.
            step = -1 if number % 2 else 1
            leaves = [cut(False, [Node(order[position]) for position in row[::step]]) for row in rows]
            columns.append(cut(True, leaves[::-1] if turn % 2 else leaves))
        pieces.append(cut(False, columns[::-1] if number % 2 else columns))
    return cut(True, pieces)
