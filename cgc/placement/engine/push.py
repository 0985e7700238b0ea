"""Moves of placed rectangles that shorten the wires."""

from __future__ import annotations

import numpy as np

from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.problem import Problem
from cgc.placement.engine.tree import Ints

PASSES = 30


def push(
    problem: Problem, places: Ints, sizes: Ints, most_passes: int = PASSES, stop: Stop = lambda: False
) -> Ints:
    """Moves kernels, and others that are in their way with them, while that shortens the wires.

    Args:
        problem: fabric and wires.
        places: x and y of every kernel, kernels x 2; without overlap.
        sizes: extents in x and y, likewise.
        most_passes: over all kernels; it ends earlier where nothing moves any more.
        stop: whether time is up.

    Returns:
        Places without overlap, inside the fabric.
    """
    limits = (problem.width, problem.height)
    best = problem.wires(places + sizes / 2)
    for _ in range(most_passes):
        before = best
        for index, near in enumerate(problem.neighbours):
            if stop() or not near:
                continue
            for axis in (0, 1):
                centers = places[:, axis] + sizes[:, axis] / 2
                distance = int(np.median(centers[near]) - centers[index])
                for step in dict.fromkeys((distance, distance // 2, distance // 4, 1, -1)):
                    moved = _pushed(places, sizes, index, axis, step, limits[axis]) if step else None
                    if moved is not None and (length := problem.wires(moved + sizes / 2)) < best - 1e-9:
                        places, best = moved, length
                        break
        if best >= before - 1e-9:
            break
    return places


def _pushed(places: Ints, sizes: Ints, index: int, axis: int, step: int, limit: int) -> Ints | None:
    """Places after a kernel moved along an axis and pushed others, None where the fabric ends."""
    other = 1 - axis
    moved = places.copy()
    moved[index, axis] += step
    waiting = [index]
    while waiting:
        pusher = waiting.pop()
        low, high = moved[pusher, axis], moved[pusher, axis] + sizes[pusher, axis]
        if low < 0 or high > limit:
            return None
        beside = (places[:, other] < places[pusher, other] + sizes[pusher, other]) & (
            places[pusher, other] < places[:, other] + sizes[:, other]
        )
        if step > 0:
            hit = beside & (places[:, axis] > places[pusher, axis]) & (moved[:, axis] < high)
            moved[hit, axis] = high
        else:
            ends = moved[:, axis] + sizes[:, axis]
            hit = beside & (places[:, axis] < places[pusher, axis]) & (ends > low)
            moved[hit, axis] = low - sizes[hit, axis]
        waiting.extend(int(number) for number in np.nonzero(hit)[0])
    return moved
