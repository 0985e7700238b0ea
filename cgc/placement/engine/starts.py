"""Initial floorplans along the data flow, and searches for any floorplan that fits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from cgc.placement.engine.anneal import Schedule, Stop, anneal
from cgc.placement.engine.packing import MOST_KERNELS, Rows, pack_bands, pack_columns, stacks
from cgc.placement.engine.problem import Edges, Floorplan, Problem, Weights
from cgc.placement.engine.tree import Node, cut

STRETCHES = (1.0, 1.03)  # heights of the box relative to the fabric's: slightly too high is a good start, too
MOST_BANDS = 10

# Most kernels in a row and in a column of a band: thin kernels in a row have short wires, more freedom packs
# more densely.
SHORT, DENSE = ((1, 1), (1, 3)), ((3, 96),)

RUNS = (1, 24, 64, 256)  # lengths of the runs that may be sorted by size
_HEAT, _STEEPNESS = 0.02, 5.0
_BANDS_TO_FIT = 6
_HIGHER = (1.0, 1.1, 1.25)  # heights of bands to start from, relative to the fabric's


def flow_order(count: int, edges: Edges) -> list[int]:
    """Sort the kernels topologically, depth first; kernels on a cycle come last, by index."""
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


def sort_runs(order: Sequence[int], sizes: Sequence[float], length: int) -> list[int]:
    """Sort each run of `length` kernels of an order by descending size.

    Kernels of similar sizes pack more densely; short runs preserve most of the order.
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
    """Move and reverse runs of an order while that shortens the wires of a stack of the kernels.

    Args:
        order: initial order.
        edges: pairs of kernel indices.
        sizes: thickness of each kernel in the stack, in any unit.
        moves: number of moves to try.
        rng: random generator of the moves.
        stop: returns True when the time is up.
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


def band_trees(
    problem: Problem,
    order: Sequence[int],
    target: float,
    width: int,
    height: int,
    styles: Sequence[tuple[int, int]] = SHORT + DENSE,
    most_bands: int = MOST_BANDS,
) -> Iterator[Node]:
    """Yield trees of bands packed into a box, fewest bands first; cut as trees they may be even denser."""
    shapes = problem.shapes(target)
    curves = [shapes.heights[index] for index in order]
    for largest_row, largest_stack in styles:
        found = stacks(curves, width, height, largest_row, largest_stack)
        for count in range(1, min(most_bands, height) + 1):
            bands = pack_bands(found, len(order), width, height, count)
            if bands is not None:
                yield _make_serpentine(bands, order)


def column_trees(
    problem: Problem, order: Sequence[int], target: float, stop: Stop = lambda: False
) -> Iterator[Node]:
    """Yield the columns of the shortest wires at a target, in boxes of the heights `STRETCHES`."""
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
            yield _make_serpentine([columns], order)


def _make_serpentine(bands: Sequence[Sequence[Rows]], order: Sequence[int]) -> Node:
    """Make a tree of bands and columns with alternating direction, which keeps neighbors close."""
    pieces = []
    for number, band in enumerate(bands):
        columns = []
        for turn, rows in enumerate(band):
            # Mirror a backward band together with its rows, so that the data flow continues across columns.
            step = -1 if number % 2 else 1
            leaves = [cut(False, [Node(order[position]) for position in row[::step]]) for row in rows]
            columns.append(cut(True, leaves[::-1] if turn % 2 else leaves))
        pieces.append(cut(False, columns[::-1] if number % 2 else columns))
    return cut(True, pieces)


def orders_to_fit(problem: Problem, order: Sequence[int], target: float) -> Iterator[list[int]]:
    """Yield an order, then others that pack more densely but follow it less."""
    sizes = _sizes(problem, target)
    for length in RUNS:
        if length < 2 * len(order):
            yield sort_runs(order, sizes, length)


def fit_bands(problem: Problem, order: Sequence[int], target: float) -> Floorplan | None:
    """Find dense bands along an order that fit the fabric at a target; None if none do."""
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
    """Anneal a tree until it fits at a target; None if it does not within `moves` moves."""
    fitting: list[Floorplan] = []
    unwired = Problem(problem.width, problem.height, problem.curves, problem.edges, Weights(1.0, 0.0))

    def realize(changed: Node, _: float) -> Floorplan | None:
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
        realize,
        lambda: bool(fitting) or stop(),
    )
    return fitting[0] if fitting else None


def fit_hard(
    problem: Problem, target: float, moves: int, rng: random.Random, stop: Stop = lambda: False
) -> Floorplan | None:
    """Find a floorplan for kernels that barely fit: sort by size, then anneal bands that are too high."""
    by_size = sort_runs(range(len(problem.curves)), _sizes(problem, target), len(problem.curves))
    for share in _HIGHER:
        for tree in band_trees(problem, by_size, target, problem.width, int(problem.height * share)):
            plan = fit_changed(problem, tree, target, moves, rng, stop)
            if plan is not None:
                return plan
    return None


def _sizes(problem: Problem, target: float) -> list[int]:
    """Estimate the least area of each kernel."""
    lengths = np.arange(len(problem.curves[0].heights(target)))
    areas = {id(heights): int((heights * lengths)[1:].min()) for heights in problem.shapes(target).heights}
    return [areas[id(heights)] for heights in problem.shapes(target).heights]
