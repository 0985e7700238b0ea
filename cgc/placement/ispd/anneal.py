"""Simulated annealing of slicing floorplans."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from cgc.placement.ispd.moves import MOVES
from cgc.placement.ispd.search import Floorplan, Problem, realised
from cgc.placement.ispd.tree import Node

Stop = Callable[[], bool]
"""Whether time is up."""


@dataclass(frozen=True)
class Schedule:
    """How to anneal.

    Attributes:
        moves: how many changes to try.
        heat: rise of the objective, as a share, that is accepted in 37 % of the cases at the beginning; it
            falls to a twentieth of that.
        steepness: see `Problem.estimate`.
    """

    moves: int
    heat: float
    steepness: float


def anneal(
    problem: Problem, tree: Node, target: float, schedule: Schedule, rng: random.Random, stop: Stop
) -> Floorplan | None:
    """Changes a tree at random at one target; better ones, and sometimes worse ones, are changed further.

    Args:
        problem: the graph.
        tree: where to start; it need not fit.
        target: the time at which trees are compared.
        schedule: how many and which changes to accept.
        rng: source of the changes.
        stop: whether time is up.

    Returns:
        The best floorplan seen that fits.
    """
    kinds, shares = [move for move, _ in MOVES], [share for _, share in MOVES]
    current = lowest = problem.estimate(tree, target, schedule.steepness)
    best = realised(problem, tree, target)
    if math.isinf(current):
        return best
    # With all weights 0 every tree is as good as any other.
    scale = schedule.heat * max(current, 1.0)
    for number in range(schedule.moves):
        if stop():
            break
        changed = rng.choices(kinds, shares)[0](tree, rng, problem.neighbours)
        if changed is None:
            continue
        estimate = problem.estimate(changed, target, schedule.steepness)
        rise = estimate - current
        if rise > 0 and rng.random() >= math.exp(-rise / (scale * 0.05 ** (number / schedule.moves))):
            continue
        tree, current = changed, estimate
        if current < lowest - 1e-9:
            lowest = current
            best = realised(problem, tree, target, best.objective if best else math.inf) or best
    return best
