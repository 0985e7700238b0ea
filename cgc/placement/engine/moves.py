"""Random changes of a slicing floorplan."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from cgc.placement.engine.tree import Node, cut

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
