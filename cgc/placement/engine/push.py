"""Moves of placed rectangles that shorten the wires."""

from __future__ import annotations

from heapq import heappop, heappush

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
    """Places after a kernel moved along an axis and pushed others, None where the fabric ends.

    Whoever pushes lies before what it pushes, also before the move. So in the order of the places before the
    move the place of every kernel is known for good when its turn comes.
    """
    forward = step > 0
    # Backwards is forwards with the axis turned round: the far edge becomes the near one.
    near = places[:, axis] if forward else -(places[:, axis] + sizes[:, axis])
    end = limit if forward else 0
    lows, highs = places[:, 1 - axis], places[:, 1 - axis] + sizes[:, 1 - axis]
    pushed = {index: int(near[index]) + abs(step)}
    waiting = [(int(near[index]), index)]
    while waiting:
        start, pusher = heappop(waiting)
        high = pushed[pusher] + int(sizes[pusher, axis])
        if high > end:
            return None
        hit = (near > start) & (near < high) & (lows < highs[pusher]) & (highs > lows[pusher])
        for number in hit.nonzero()[0].tolist():
            if number not in pushed:
                heappush(waiting, (int(near[number]), number))
            pushed[number] = max(high, pushed.get(number, high))
    moved = places.copy()
    for number, place in pushed.items():
        moved[number, axis] = place if forward else -place - sizes[number, axis]
    return moved
