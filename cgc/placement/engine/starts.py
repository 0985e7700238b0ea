"""Initial floorplans along the data flow, and searches for any floorplan that fits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from cgc.placement.engine.anneal import Schedule, Stop, anneal
from cgc.placement.engine.packing import MAX_COLUMN_KERNELS, Rows, compute_stacks, pack_bands, pack_columns
from cgc.placement.engine.problem import Edges, Floorplan, Problem, Weights
from cgc.placement.engine.tree import Node, cut

# Heights of the box relative to the fabric. A floorplan that is slightly too high is a good start as well.
STRETCHES = (1.0, 1.03)
MAX_BANDS = 10

# Maximum numbers of kernels in a row and in a column of a band. Columns of few kernels have short wires,
# those of more kernels pack more densely.
SHORT, DENSE = ((1, 1), (1, 3)), ((3, 96),)

RUN_LENGTHS = (1, 24, 64, 256)  # of the runs to sort by size
_HEAT, _STEEPNESS = 0.02, 5.0
_BANDS_TO_FIT = 6
_BAND_HEIGHTS = (1.0, 1.1, 1.25)  # heights of all bands together to start from, relative to the fabric


def flow_order(count: int, edges: Edges) -> list[int]:
    """Sort the kernels topologically, depth first; kernels on a cycle come last, by index."""
    targets: list[list[int]] = [[] for _ in range(count)]
    in_degree = [0] * count
    for source, sink in edges:
        targets[source].append(sink)
        in_degree[sink] += 1
    stack = [index for index in reversed(range(count)) if not in_degree[index]]
    order = []
    while stack:
        index = stack.pop()
        order.append(index)
        for target in targets[index]:
            in_degree[target] -= 1
            if not in_degree[target]:
                stack.append(target)
    seen = set(order)
    return order + [index for index in range(count) if index not in seen]


def sort_runs(order: Sequence[int], sizes: Sequence[float], length: int) -> list[int]:
    """Sort each run of `length` kernels of an order by descending size.

    Kernels of similar sizes pack more densely; short runs preserve most of the order.
    """
    runs = (order[start : start + length] for start in range(0, len(order), length))
    return [index for run in runs for index in sorted(run, key=lambda index: (-sizes[index], index))]


def shorten_order(
    order: Sequence[int],
    edges: Edges,
    sizes: Sequence[float],
    moves: int,
    rng: random.Random,
    stop: Stop = lambda: False,
) -> list[int]:
    """Move and reverse runs of an order to shorten the wires, as if the kernels were stacked in this order.

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
    max_bands: int = MAX_BANDS,
) -> Iterator[Node]:
    """Yield trees of bands packed into a box, fewest bands first."""
    shapes = problem.shapes(target)
    curves = [shapes.heights[index] for index in order]
    for max_row, max_stack in styles:
        found = compute_stacks(curves, width, height, max_row, max_stack)
        for count in range(1, min(max_bands, height) + 1):
            bands = pack_bands(found, len(order), width, height, count)
            if bands is not None:
                yield _make_serpentine(bands, order)


def column_trees(
    problem: Problem, order: Sequence[int], target: float, stop: Stop = lambda: False
) -> Iterator[Node]:
    """Yield the columns with the shortest wires at a target, in boxes of the heights `STRETCHES`."""
    if len(order) > MAX_COLUMN_KERNELS:
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
    """Return a tree of bands and columns with alternating direction, which keeps neighbors close."""
    pieces = []
    for number, band in enumerate(bands):
        columns = []
        for column_number, rows in enumerate(band):
            # The rows of a backward band are mirrored as well, so that the data flow continues across
            # columns.
            step = -1 if number % 2 else 1
            leaves = [cut(False, [Node(order[position]) for position in row[::step]]) for row in rows]
            columns.append(cut(True, leaves[::-1] if column_number % 2 else leaves))
        pieces.append(cut(False, columns[::-1] if number % 2 else columns))
    return cut(True, pieces)


def orders_to_fit(problem: Problem, order: Sequence[int], target: float) -> Iterator[list[int]]:
    """Yield an order, then variants that pack more densely but follow the data flow less."""
    sizes = _sizes(problem, target)
    for length in RUN_LENGTHS:
        if length < 2 * len(order):
            yield sort_runs(order, sizes, length)


def fit_bands(problem: Problem, order: Sequence[int], target: float) -> Floorplan | None:
    """Find dense bands along an order that fit the fabric at a target; return None if there are none."""
    for variant in orders_to_fit(problem, order, target):
        trees = band_trees(problem, variant, target, problem.width, problem.height, DENSE, _BANDS_TO_FIT)
        for tree in trees:
            plan = problem.floorplan(tree, target)
            if plan is not None:
                return plan
    return None


def fit_by_annealing(
    problem: Problem,
    tree: Node,
    target: float,
    moves: int,
    rng: random.Random,
    stop: Stop = lambda: False,
) -> Floorplan | None:
    """Anneal a tree until it fits at a target; return None if it does not within `moves` moves."""
    fitting: list[Floorplan] = []
    without_wires = Problem(problem.width, problem.height, problem.curves, problem.edges, Weights(1.0, 0.0))

    def realize(changed: Node, _: float) -> Floorplan | None:
        found = problem.floorplan(changed, target)
        if found is not None:
            fitting.append(found)
        return found

    anneal(
        without_wires,
        tree,
        target,
        Schedule(moves, _HEAT, _STEEPNESS),
        rng,
        realize,
        lambda: bool(fitting) or stop(),
    )
    return fitting[0] if fitting else None


def fit_tight(
    problem: Problem, target: float, moves: int, rng: random.Random, stop: Stop = lambda: False
) -> Floorplan | None:
    """Find a floorplan for kernels that barely fit: anneal bands, sorted by size, that may be too high."""
    by_size = sort_runs(range(len(problem.curves)), _sizes(problem, target), len(problem.curves))
    for share in _BAND_HEIGHTS:
        for tree in band_trees(problem, by_size, target, problem.width, int(problem.height * share)):
            plan = fit_by_annealing(problem, tree, target, moves, rng, stop)
            if plan is not None:
                return plan
    return None


def _sizes(problem: Problem, target: float) -> list[int]:
    """Estimate the least area of each kernel."""
    lengths = np.arange(len(problem.curves[0].heights(target)))
    areas = {id(heights): int((heights * lengths)[1:].min()) for heights in problem.shapes(target).heights}
    return [areas[id(heights)] for heights in problem.shapes(target).heights]
