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
"""Returns True when the time is up."""

Realize = Callable[[Node, float], Floorplan | None]
"""Returns the floorplan of a tree if it fits and its objective is lower than a limit, else None."""


@dataclass(frozen=True)
class Schedule:
    """The budget and the temperatures of simulated annealing.

    Attributes:
        moves: number of moves to try.
        heat: relative rise of the objective that is accepted with probability 1/e at the beginning; at the
            end, it is a twentieth of that.
        steepness: percent of time per percent of missing length, as for `Problem.estimate`.
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
    realize: Realize,
    stop: Stop = lambda: False,
) -> Floorplan | None:
    """Anneal a tree at one target.

    Args:
        problem: kernels, wires and fabric.
        tree: initial tree, which need not fit.
        target: time at which trees are compared.
        schedule: number of moves and temperatures.
        rng: random generator of the moves.
        realize: computes the floorplans of the best trees.
        stop: returns True when the time is up.

    Returns:
        The best floorplan found; None if no tree fits.
    """
    kinds, shares = [move for move, _ in MOVES], [share for _, share in MOVES]
    current = lowest = problem.estimate(tree, target, schedule.steepness)
    best = realize(tree, math.inf)
    if math.isinf(current):
        return best
    # If all weights are 0, so is the estimate, and all trees are equally good.
    scale = schedule.heat * max(current, 1.0)
    for number in range(schedule.moves):
        if stop():
            break
        changed = rng.choices(kinds, shares)[0](tree, rng, problem.neighbors)
        if changed is None:
            continue
        estimate = problem.estimate(changed, target, schedule.steepness)
        rise = estimate - current
        if rise > 0 and rng.random() >= math.exp(-rise / (scale * 0.05 ** (number / schedule.moves))):
            continue
        tree, current = changed, estimate
        if current < lowest - 1e-9:
            lowest = current
            best = realize(tree, best.objective if best else math.inf) or best
    return best


Move = Callable[[Node, random.Random, Sequence[Sequence[int]]], Node | None]
"""Returns a changed tree, or None, from a tree, a random generator and the neighbors of every kernel."""


def remove_kernel(node: Node, kernel: int) -> Node | None:
    """Return the tree without a kernel; None if it was the last one."""
    if not node.members >> kernel & 1:
        return node
    if node.leaf >= 0:
        return None
    rest = (remove_kernel(child, kernel) for child in node.children)
    return cut(node.stacked, [child for child in rest if child is not None])


def replace_leaf(node: Node, kernel: int, piece: Callable[[Node], Node]) -> Node:
    """Return the tree with `piece` applied to the leaf of a kernel."""
    if not node.members >> kernel & 1:
        return node
    if node.leaf >= 0:
        return piece(node)
    return cut(node.stacked, [replace_leaf(child, kernel, piece) for child in node.children])


def replace_node(node: Node, old: Node, new: Node) -> Node:
    """Return the tree with an inner node replaced."""
    if node is old:
        return new
    if node.members & old.members != old.members:
        return node
    return cut(node.stacked, [replace_node(child, old, new) for child in node.children])


def swap_kernels(tree: Node, rng: random.Random, neighbors: Sequence[Sequence[int]]) -> Node | None:
    """Swap two kernels, usually ones that are close in the graph."""
    first = rng.randrange(len(neighbors))
    second = _pick_nearby(first, rng, neighbors)
    if first == second:
        return None

    def swap(node: Node) -> Node:
        if not node.members & (1 << first | 1 << second):
            return node
        if node.leaf >= 0:
            return Node(second if node.leaf == first else first)
        return Node(-1, node.stacked, tuple(swap(child) for child in node.children))

    return swap(tree)


def move_kernel(tree: Node, rng: random.Random, neighbors: Sequence[Sequence[int]]) -> Node | None:
    """Remove a kernel and insert it next to, below or above another one."""
    kernel = rng.randrange(len(neighbors))
    neighbor = _pick_nearby(kernel, rng, neighbors)
    rest = remove_kernel(tree, kernel)
    if kernel == neighbor or rest is None:
        return None
    stacked, before = rng.random() < 0.5, rng.random() < 0.5
    leaf = Node(kernel)
    return replace_leaf(rest, neighbor, lambda old: cut(stacked, (leaf, old) if before else (old, leaf)))


def move_next_to_run(tree: Node, rng: random.Random, neighbors: Sequence[Sequence[int]]) -> Node | None:
    """Remove a kernel and insert it alongside several adjacent pieces of a node."""
    kernel = rng.randrange(len(neighbors))
    rest = remove_kernel(tree, kernel)
    if rest is None or rest.leaf >= 0:
        return None
    node = rng.choice(rest.inner())
    size = rng.randint(2, len(node.children))
    start = rng.randrange(len(node.children) - size + 1)
    run = node.children[start : start + size]
    leaf, group = Node(kernel), Node(-1, node.stacked, run)
    pair = cut(not node.stacked, (leaf, group) if rng.random() < 0.5 else (group, leaf))
    new = cut(node.stacked, (*node.children[:start], pair, *node.children[start + size :]))
    return replace_node(rest, node, new)


def reverse_run(tree: Node, rng: random.Random, neighbors: Sequence[Sequence[int]]) -> Node | None:
    """Reverse the order of adjacent pieces of a node; its size does not change."""
    if tree.leaf >= 0:
        return None
    node = rng.choice(tree.inner())
    count = len(node.children)
    size = count if rng.random() < 0.3 else rng.randint(2, count)
    start = rng.randrange(count - size + 1)
    run = node.children[start : start + size][::-1]
    new = Node(-1, node.stacked, (*node.children[:start], *run, *node.children[start + size :]))
    return replace_node(tree, node, new)


def move_piece(tree: Node, rng: random.Random, neighbors: Sequence[Sequence[int]]) -> Node | None:
    """Move a piece of a node to another position in it, or into an adjacent piece."""
    if tree.leaf >= 0:
        return None
    node = rng.choice(tree.inner())
    children = list(node.children)
    piece = children.pop(rng.randrange(len(children)))
    position = rng.randrange(len(children) + 1)
    if rng.random() < 0.5 and position < len(children):
        children[position] = cut(not node.stacked, (children[position], piece))
    else:
        children.insert(position, piece)
    return replace_node(tree, node, cut(node.stacked, children))


def flip_cut(tree: Node, rng: random.Random, neighbors: Sequence[Sequence[int]]) -> Node | None:
    """Cut a node in the other direction."""
    if tree.leaf >= 0:
        return None
    node = rng.choice(tree.inner())
    return replace_node(tree, node, cut(not node.stacked, node.children))


def _pick_nearby(kernel: int, rng: random.Random, neighbors: Sequence[Sequence[int]]) -> int:
    """Pick a kernel at most three edges away, sometimes any kernel."""
    if rng.random() < 0.15 or not neighbors[kernel]:
        return rng.randrange(len(neighbors))
    picked = kernel
    for _ in range(rng.randint(1, 3)):
        picked = rng.choice(neighbors[picked])
    return picked


MOVES: tuple[tuple[Move, int], ...] = (
    (swap_kernels, 4),
    (move_kernel, 6),
    (move_next_to_run, 2),
    (reverse_run, 3),
    (move_piece, 2),
    (flip_cut, 1),
)
"""All moves with their relative frequencies."""

PASSES = 30


def push(
    problem: Problem, places: Ints, sizes: Ints, max_passes: int = PASSES, stop: Stop = lambda: False
) -> Ints:
    """Move kernels, and push others out of their way, as long as the wires become shorter.

    Args:
        problem: fabric and wires.
        places: lower corners x and y, kernels x 2, without overlap.
        sizes: extents in x and y, kernels x 2.
        max_passes: maximum number of passes over all kernels; the last pass is the first without a move.
        stop: returns True when the time is up.

    Returns:
        New corners, without overlap and inside the fabric.
    """
    limits = (problem.width, problem.height)
    best = problem.wires(places + sizes / 2)
    for _ in range(max_passes):
        before = best
        for index, connected in enumerate(problem.neighbors):
            if stop() or not connected:
                continue
            for axis in (0, 1):
                centers = places[:, axis] + sizes[:, axis] / 2
                distance = int(np.median(centers[connected]) - centers[index])
                for step in dict.fromkeys((distance, distance // 2, distance // 4, 1, -1)):
                    moved = _push_along(places, sizes, index, axis, step, limits[axis]) if step else None
                    if moved is not None and (length := problem.wires(moved + sizes / 2)) < best - 1e-9:
                        places, best = moved, length
                        break
        if best >= before - 1e-9:
            break
    return places


def _push_along(places: Ints, sizes: Ints, index: int, axis: int, step: int, limit: int) -> Ints | None:
    """Move a kernel along an axis and push others; return None if one would leave the fabric."""
    forward = step > 0
    # A backward move is a forward move on the mirrored axis.
    low_ends = places[:, axis] if forward else -(places[:, axis] + sizes[:, axis])
    end = limit if forward else 0
    lows, highs = places[:, 1 - axis], places[:, 1 - axis] + sizes[:, 1 - axis]
    pushed = {index: int(low_ends[index]) + abs(step)}
    # A kernel pushes only kernels that were after it before the move. Kernels are popped in the order of
    # their old positions, so the new position of a popped kernel is final.
    queue = [(int(low_ends[index]), index)]
    while queue:
        start, pusher = heappop(queue)
        high = pushed[pusher] + int(sizes[pusher, axis])
        if high > end:
            return None
        overlaps = (low_ends > start) & (low_ends < high) & (lows < highs[pusher]) & (highs > lows[pusher])
        for number in overlaps.nonzero()[0].tolist():
            if number not in pushed:
                heappush(queue, (int(low_ends[number]), number))
            pushed[number] = max(high, pushed.get(number, high))
    moved = places.copy()
    for number, position in pushed.items():
        moved[number, axis] = position if forward else -position - sizes[number, axis]
    return moved
