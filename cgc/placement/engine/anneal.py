"""Simulated annealing of slicing floorplans."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from cgc.placement.engine.problem import Floorplan, Problem
from cgc.placement.engine.tree import Ints, Node, cut

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


Move = Callable[[Node, random.Random, Sequence[Sequence[int]]], Node | None]
"""From a tree, a source of randomness and the neighbours of every kernel to a changed tree, or None."""


def without(node: Node, kernel: int) -> Node | None:
    """The tree without a kernel, None where that was the last one."""
    if not node.members >> kernel & 1:
        return node
    if node.leaf >= 0:
        return None
    rest = (without(child, kernel) for child in node.children)
    return cut(node.stacked, [child for child in rest if child is not None])


def replaced(node: Node, kernel: int, piece: Callable[[Node], Node]) -> Node:
    """The tree with the leaf of a kernel replaced."""
    if not node.members >> kernel & 1:
        return node
    if node.leaf >= 0:
        return piece(node)
    return cut(node.stacked, [replaced(child, kernel, piece) for child in node.children])


def changed(node: Node, old: Node, new: Node) -> Node:
    """The tree with an inner node replaced."""
    if node is old:
        return new
    if node.members & old.members != old.members:
        return node
    return cut(node.stacked, [changed(child, old, new) for child in node.children])


def swap_kernels(tree: Node, rng: random.Random, neighbours: Sequence[Sequence[int]]) -> Node | None:
    """Exchanges two kernels, as a rule ones with a common neighbour."""
    first = rng.randrange(len(neighbours))
    second = _near(first, rng, neighbours)
    if first == second:
        return None

    def swapped(node: Node) -> Node:
        if not node.members & (1 << first | 1 << second):
            return node
        if node.leaf >= 0:
            return Node(second if node.leaf == first else first)
        return Node(-1, node.stacked, tuple(swapped(child) for child in node.children))

    return swapped(tree)


def move_kernel(tree: Node, rng: random.Random, neighbours: Sequence[Sequence[int]]) -> Node | None:
    """Takes a kernel out and puts it beside, below or above another one."""
    kernel = rng.randrange(len(neighbours))
    place = _near(kernel, rng, neighbours)
    rest = without(tree, kernel)
    if kernel == place or rest is None:
        return None
    stacked, before = rng.random() < 0.5, rng.random() < 0.5
    leaf = Node(kernel)
    return replaced(rest, place, lambda old: cut(stacked, (leaf, old) if before else (old, leaf)))


def move_beside_run(tree: Node, rng: random.Random, neighbours: Sequence[Sequence[int]]) -> Node | None:
    """Takes a kernel out and puts it across the ends of some neighbouring pieces of one node."""
    kernel = rng.randrange(len(neighbours))
    rest = without(tree, kernel)
    if rest is None or rest.leaf >= 0:
        return None
    node = rng.choice(rest.inner())
    size = rng.randint(2, len(node.children))
    start = rng.randrange(len(node.children) - size + 1)
    run = node.children[start : start + size]
    leaf, group = Node(kernel), Node(-1, node.stacked, run)
    pair = cut(not node.stacked, (leaf, group) if rng.random() < 0.5 else (group, leaf))
    new = cut(node.stacked, (*node.children[:start], pair, *node.children[start + size :]))
    return changed(rest, node, new)


def reverse_run(tree: Node, rng: random.Random, neighbours: Sequence[Sequence[int]]) -> Node | None:
    """Reverses some neighbouring pieces of a node; no size changes."""
    if tree.leaf >= 0:
        return None
    node = rng.choice(tree.inner())
    count = len(node.children)
    size = count if rng.random() < 0.3 else rng.randint(2, count)
    start = rng.randrange(count - size + 1)
    run = node.children[start : start + size][::-1]
    new = Node(-1, node.stacked, (*node.children[:start], *run, *node.children[start + size :]))
    return changed(tree, node, new)


def move_piece(tree: Node, rng: random.Random, neighbours: Sequence[Sequence[int]]) -> Node | None:
    """Moves a piece of a node to another place in it, or into the piece beside it."""
    if tree.leaf >= 0:
        return None
    node = rng.choice(tree.inner())
    children = list(node.children)
    piece = children.pop(rng.randrange(len(children)))
    place = rng.randrange(len(children) + 1)
    if rng.random() < 0.5 and place < len(children):
        children[place] = cut(not node.stacked, (children[place], piece))
    else:
        children.insert(place, piece)
    return changed(tree, node, cut(node.stacked, children))


def turn_piece(tree: Node, rng: random.Random, neighbours: Sequence[Sequence[int]]) -> Node | None:
    """Cuts a node the other way."""
    if tree.leaf >= 0:
        return None
    node = rng.choice(tree.inner())
    return changed(tree, node, cut(not node.stacked, node.children))


def _near(kernel: int, rng: random.Random, neighbours: Sequence[Sequence[int]]) -> int:
    """A kernel some edges away, sometimes any kernel."""
    if rng.random() < 0.15 or not neighbours[kernel]:
        return rng.randrange(len(neighbours))
    place = kernel
    for _ in range(rng.randint(1, 3)):
        place = rng.choice(neighbours[place])
    return place


MOVES: tuple[tuple[Move, int], ...] = (
    (swap_kernels, 4),
    (move_kernel, 6),
    (move_beside_run, 2),
    (reverse_run, 3),
    (move_piece, 2),
    (turn_piece, 1),
)
"""Moves with their shares."""


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
