"""Floorplans that fit, whatever their wires."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from cgc.placement.engine.anneal import Schedule, Stop, anneal
from cgc.placement.engine.order import sorted_runs
from cgc.placement.engine.problem import Floorplan, Problem, Weights
from cgc.placement.engine.starts import DENSE, band_trees
from cgc.placement.engine.tree import Node

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
