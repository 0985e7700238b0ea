"""Floorplans along the data flow, to start the search from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from cgc.placement.engine.anneal import Schedule, Stop, anneal
from cgc.placement.engine.packing import MOST_KERNELS, Rows, pack_bands, pack_columns, stacks
from cgc.placement.engine.problem import Edges, Floorplan, Problem, Weights
from cgc.placement.engine.tree import Node, cut


def flow_order(count: int, edges: Edges) -> list[int]:
    """Indices of the kernels with every source before its targets, staying on a branch as long as possible.

    Kernels on a cycle come last, by index.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, sink in edges:
        targets[source].append(sink)
        waiting[sink] += 1
    stack = [index for index in reversed(range(count)) if not waiting[index]]
    order = []
    while stack:
        index = stack.pop()
        order.append(index)
        for target in targets[index]:
            waiting[target] -= 1
            if not waiting[target]:
                stack.append(target)
    seen = set(order)
    return order + [index for index in range(count) if index not in seen]


def sorted_runs(order: Sequence[int], sizes: Sequence[float], length: int) -> list[int]:
    """An order with the kernels of each run of some length sorted by falling size.

    Kernels of like sizes fill an area better; short runs keep most of the order.
    """
    runs = (order[start : start + length] for start in range(0, len(order), length))
    return [index for run in runs for index in sorted(run, key=lambda index: (-sizes[index], index))]


def short_order(
    order: Sequence[int],
    edges: Edges,
    sizes: Sequence[float],
    moves: int,
    rng: random.Random,
    stop: Stop = lambda: False,
) -> list[int]:
    """Moves and reverses runs of an order while that shortens the wires of a stack of the kernels.

    Args:
        order: where to start.
        edges: by index of kernel.
        sizes: thickness of each kernel in the stack, any unit.
        moves: how many to try.
        rng: source of the moves.
        stop: whether time is up.
    """
    count = len(order)
    if count < 3 or not edges:
        return list(order)
    sources, targets = np.array(edges).T
    thickness = np.asarray(sizes, dtype=np.float64)

    def length(candidate: Sequence[int]) -> float:
        indices = np.asarray(candidate)
        sorted_thickness = thickness[indices]
        centers = np.empty(count)
        centers[indices] = np.cumsum(sorted_thickness) - sorted_thickness / 2
        return float(np.abs(centers[sources] - centers[targets]).sum())

    best, best_length = list(order), length(order)
    for _ in range(moves):
        if stop():
            break
        start = rng.randrange(count)
        end = min(count, start + rng.choice((1, 1, 1, 2, 3, 4, 8)))
        run, rest = best[start:end], best[:start] + best[end:]
        if rng.random() < 0.4:
            run.reverse()
        place = max(0, min(len(rest), start + rng.randint(-6, 6)))
        candidate = rest[:place] + run + rest[place:]
        if (found := length(candidate)) < best_length - 1e-9:
            best, best_length = candidate, found
    return best


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


_HEAT, _STEEPNESS = 0.02, 5.0
RUNS = (1, 24, 64, 256)
"""Lengths of runs that may be sorted by size."""

_BANDS_TO_FIT = 6
_HIGHER = (1.0, 1.1, 1.25)
"""Heights of bands to start from, as shares of the fabric's."""


def orders_to_fit(problem: Problem, order: Sequence[int], target: float) -> Iterator[list[int]]:
    """An order, and others that pack more densely the less they follow it."""
    sizes = _sizes(problem, target)
    for length in RUNS:
        if length < 2 * len(order):
            yield sorted_runs(order, sizes, length)


def fit_bands(problem: Problem, order: Sequence[int], target: float) -> Floorplan | None:
    """The first dense bands along an order that fit the fabric at a target, None where none do."""
    for variant in orders_to_fit(problem, order, target):
        trees = band_trees(problem, variant, target, problem.width, problem.height, DENSE, _BANDS_TO_FIT)
        for tree in trees:
            plan = problem.floorplan(tree, target)
            if plan is not None:
                return plan
    return None


def fit_changed(
    problem: Problem,
    tree: Node,
    target: float,
    moves: int,
    rng: random.Random,
    stop: Stop = lambda: False,
) -> Floorplan | None:
    """Anneals a tree until it fits at a target, None where it does not after that many changes."""
    fitting: list[Floorplan] = []
    unwired = Problem(problem.width, problem.height, problem.curves, problem.edges, Weights(1.0, 0.0))

    def realise(changed: Node, _: float) -> Floorplan | None:
        found = problem.floorplan(changed, target)
        if found is not None:
            fitting.append(found)
        return found

    anneal(
        unwired,
        tree,
        target,
        Schedule(moves, _HEAT, _STEEPNESS),
        rng,
        realise,
        lambda: bool(fitting) or stop(),
    )
    return fitting[0] if fitting else None


def fit_hard(
    problem: Problem, target: float, moves: int, rng: random.Random, stop: Stop = lambda: False
) -> Floorplan | None:
    """For kernels that hardly fit: by falling size, and annealed from bands that are too high."""
    by_size = sorted_runs(range(len(problem.curves)), _sizes(problem, target), len(problem.curves))
    for share in _HIGHER:
        for tree in band_trees(problem, by_size, target, problem.width, int(problem.height * share)):
            plan = fit_changed(problem, tree, target, moves, rng, stop)
            if plan is not None:
                return plan
    return None


def _sizes(problem: Problem, target: float) -> list[int]:
    """About the least area of each kernel."""
    lengths = np.arange(len(problem.curves[0].heights(target)))
    areas = {id(heights): int((heights * lengths)[1:].min()) for heights in problem.shapes(target).heights}
    return [areas[id(heights)] for heights in problem.shapes(target).heights]
