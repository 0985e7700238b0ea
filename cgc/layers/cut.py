"""A training step cut into layers: which ops the wafer computes of each, forward and backward.

The cut is a pure function of the graph; names play no part in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cgc.layers.graph import StepGraph
from cgc.layers.order import live_bytes, sequence
from cgc.layers.reads import Reads
from cgc.layers.repeats import Sequenced, layer_boundaries
from cgc.layers.roles import Role, roles


@dataclass(frozen=True)
class Layer:
    """Ops of a layer, ascending; those that are repeated wherever they are read are in none."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """A step in layers.

    Attributes:
        graph: the step.
        roles: of every op.
        layers: in the order of the forward pass; the backward parts run in the opposite order.
    """

    graph: StepGraph
    roles: tuple[Role, ...]
    layers: tuple[Layer, ...]


def cut(graph: StepGraph) -> Cut:
    """Cuts a step; what cannot be cut is one layer."""
    found = roles(graph)
    reads = Reads(graph, found)
    forward = _forward_layers(graph, found, reads)
    count = max(forward.values(), default=0) + 1
    backward = _backward_layers(graph, found, reads, forward, count)
    parts: list[tuple[list[int], list[int]]] = [([], []) for _ in range(count)]
    for half, layer_of in enumerate((forward, backward)):
        for op, layer in layer_of.items():
            parts[layer][half].append(op)
    layers = tuple(Layer(tuple(ahead), tuple(back)) for ahead, back in parts)
    return Cut(graph, tuple(found), layers)


def _forward_layers(graph: StepGraph, found: Sequence[Role], reads: Reads) -> dict[int, int]:
    """The layer of each op of the forward pass, by ascending op."""
    order = sequence(graph, frozenset(op for op, role in enumerate(found) if role is Role.FORWARD))
    seen: set[int] = set()
    weight_bytes = []
    for op in order:
        new = reads.weights(op) - seen
        seen |= new
        weight_bytes.append(sum(graph.size_bytes[value] for value in new))
    labels = [graph.labels[op] for op in order]
    places = layer_boundaries(Sequenced(labels, weight_bytes, live_bytes(graph, order)))
    layer_of: dict[int, int] = {}
    for layer, (start, end) in enumerate(pairwise(places)):
        layer_of.update(dict.fromkeys(order[start:end], layer))
    penalties = [op for op, role in enumerate(found) if role is Role.PENALTY]
    if penalties:
        _add_penalties(graph, reads, penalties, layer_of)
    return dict(sorted(layer_of.items()))


def _add_penalties(graph: StepGraph, reads: Reads, ops: Iterable[int], layer_of: dict[int, int]) -> None:
    """A penalty is computed where its weight is, a sum of penalties where the last of them is."""
    home: dict[int, int] = {}
    for op, layer in layer_of.items():
        for weight in reads.weights(op):
            home[weight] = min(layer, home.get(weight, layer))
    for op in ops:
        layers = [home.get(weight, 0) for weight in reads.weights(op)]
        layers += [layer_of[producer] for producer in graph.producers(op) if producer in layer_of]
        layer_of[op] = max(layers, default=0)


def _backward_layers(
    graph: StepGraph, found: Sequence[Role], reads: Reads, forward: dict[int, int], count: int
) -> dict[int, int]:
    """The layer of each op of the backward pass: that whose values and weights it reads, latest first."""
    homes = _homes(graph, reads, forward)
    layer_of: dict[int, int] = {}
    for op, role in enumerate(found):
        if role is not Role.BACKWARD:
            continue
        latest = min(
            (layer_of[producer] for producer in graph.producers(op) if producer in layer_of),
            default=count - 1,
        )
        near = [
            layers[at - 1]
            for value in reads.values(op)
            if (at := bisect_right(layers := homes.get(value, []), latest))
        ]
        layer_of[op] = max(near, default=latest)
    return layer_of


def _homes(graph: StepGraph, reads: Reads, forward: dict[int, int]) -> dict[int, list[int]]:
    """The layers that have a value anyway in their forward part, as they make or read it; ascending."""
    homes: dict[int, set[int]] = {}
    for op, layer in forward.items():
        for value in (*reads.values(op), *graph.results[op]):
            if value not in graph.inputs and not graph.is_small(value):
                homes.setdefault(value, set()).add(layer)
    return {value: sorted(layers) for value, layers in homes.items()}
