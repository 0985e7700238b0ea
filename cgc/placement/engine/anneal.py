"""Simulated annealing of slicing floorplans."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from cgc.placement.engine.moves import MOVES
from cgc.placement.engine.problem import Floorplan, Problem
from cgc.placement.engine.tree import Node

Stop = Callable[[], bool]
"""Whether time is up."""

Realise = Callable[[Node, float], Floorplan | None]
"""From a tree and an objective that must be beaten to a floorplan that fits, None where there is none."""


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
    problem: Problem,
    tree: Node,
    target: float,
    schedule: Schedule,
    rng: random.Random,
    realise: Realise,
    stop: Stop = lambda: False,
) -> Floorplan | None:
    """Changes a tree at random at one target; better ones, and sometimes worse ones, are changed further.

    Args:
        problem: the kernels.
        tree: where to start; it need not fit.
        target: the time at which trees are compared.
        schedule: how many and which changes to accept.
        rng: source of the changes.
        realise: makes floorplans of the best trees.
        stop: whether time is up.

    Returns:
        The best floorplan seen that fits.
    """
    kinds, shares = [move for move, _ in MOVES], [share for _, share in MOVES]
    current = lowest = problem.estimate(tree, target, schedule.steepness)
    best = realise(tree, math.inf)
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
            best = realise(tree, best.objective if best else math.inf) or best
    return best
