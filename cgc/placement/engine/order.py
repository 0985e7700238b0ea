"""The order of the kernels along the data flow, in which they are packed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.problem import Edges


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
