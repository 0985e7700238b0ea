"""The order of import: edges, reads before unordered writes, the same for the same graph."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# The algorithms need no TensorFlow, but their package loads it.
from cgc.importers.tensorflow.plan import Node, order_nodes, reachable

from .examples import examples

VARIABLES = "abc"


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    """Acyclic graphs in which an op needs earlier ones and may read or write variables."""
    nodes = []
    for index in range(draw(st.integers(1, 14))):
        earlier = st.sets(st.integers(0, index - 1), max_size=3) if index else st.just(set())
        keys = st.frozensets(st.sampled_from(VARIABLES), max_size=2)
        reads, writes = draw(st.sampled_from([(True, False), (False, True), (False, False)]))
        nodes.append(
            Node(
                index,
                tuple(sorted(draw(earlier))),
                draw(keys) if reads else frozenset(),
                draw(keys) if writes else frozenset(),
            )
        )
    return nodes


def ancestors(nodes: list[Node]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for node in nodes:
        found[node.index] = set(node.predecessors).union(*(found[p] for p in node.predecessors))
    return found


def unordered_pairs(nodes: list[Node]) -> list[tuple[int, int]]:
    """(read, write) of one variable where no path leads from the write to the read."""
    before = ancestors(nodes)
    return [
        (read.index, write.index)
        for write in nodes
        for read in nodes
        if read.reads & write.writes and write.index not in before[read.index]
    ]


def has_cycle(edges: dict[int, set[int]]) -> bool:
    remaining = dict(edges)
    while remaining:
        free = [node for node, sources in remaining.items() if not sources & remaining.keys()]
        if not free:
            return True
        for node in free:
            del remaining[node]
    return False


@settings(max_examples=examples(12))
@given(graphs())
def test_every_node_comes_once_after_its_operands(nodes: list[Node]) -> None:
    order = order_nodes(nodes)
    assert sorted(order) == [node.index for node in nodes]
    place = {index: i for i, index in enumerate(order)}
    assert all(place[p] < place[node.index] for node in nodes for p in node.predecessors)


@settings(max_examples=examples(12))
@given(graphs())
def test_unordered_reads_come_before_writes_wherever_that_can_be(nodes: list[Node]) -> None:
    pairs = unordered_pairs(nodes)
    edges = {node.index: set(node.predecessors) for node in nodes}
    for read, write in pairs:
        edges[write].add(read)
    if has_cycle(edges):
        return
    place = {index: i for i, index in enumerate(order_nodes(nodes))}
    assert all(place[read] < place[write] for read, write in pairs)


@settings(max_examples=examples(12))
@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_nodes_are_listed(nodes: list[Node], rng: random.Random) -> None:
    shuffled = list(nodes)
    rng.shuffle(shuffled)
    assert order_nodes(shuffled) == order_nodes(nodes)


def test_crossing_races_are_resolved_by_creation_order() -> None:
    # Each read follows the write of the other variable: one of the two must see a new value.
    nodes = [
        Node(0, (), writes=frozenset("a")),
        Node(1, (0,), reads=frozenset("b")),
        Node(2, (), writes=frozenset("b")),
        Node(3, (2,), reads=frozenset("a")),
    ]
    assert order_nodes(nodes) == [0, 1, 2, 3]


def test_nodes_of_a_loop_come_last() -> None:
    nodes = [Node(0, (2,)), Node(1, ()), Node(2, (0,)), Node(3, (1,))]
    assert order_nodes(nodes) == [1, 3, 0, 2]


@pytest.mark.parametrize("length", [5_000])
def test_long_chains_are_walked_without_recursion(length: int) -> None:
    nodes = [Node(i, (i - 1,) if i else (), reads=frozenset("a")) for i in range(length)]
    nodes.append(Node(length, (), writes=frozenset("a")))
    assert order_nodes(nodes)[-1] == length
    assert len(reachable([length - 1], lambda i: [i - 1] if i else [])) == length


@given(
    st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3)), st.sets(st.integers(0, 9))
)
def test_reachable_is_the_smallest_closed_set(edges: dict[int, list[int]], roots: set[int]) -> None:
    found = reachable(roots, lambda item: edges.get(item, []))
    assert roots <= found
    assert all(target in found for item in found for target in edges.get(item, []))
    assert all(item in roots or any(item in edges.get(other, []) for other in found) for item in found)
