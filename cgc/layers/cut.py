"""Cut a training step into layers: the ops that the wafer computes for each, forward and backward.

The forward pass becomes a sequence of ops, which is cut at repeats first, then where the fewest bytes cross.
The cut is a pure function of the graph; names play no part in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from cgc.layers.graph import StepGraph
from cgc.layers.roles import Reads, Role, roles

# A repeat begins at its first place that costs at most this multiple of its cheapest.
NEAR_CHEAPEST = 1.05

# A repeat with a smaller share of all weights is no reason for a cut.
LEAST_SHARE = 0.02

# Nor is one whose copies have less than this share of the largest copies' weights: parts of a layer.
LEAST_COPY = 0.5

# The rest is cut so that no layer has more weights than this multiple of the largest unit.
LARGEST_LAYER = 1.25


@dataclass(frozen=True)
class Layer:
    """Ops of a layer, ascending; ops that are repeated by all their readers belong to none."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """A step cut into layers.

    Attributes:
        graph: the step.
        roles: of every op.
        layers: in the order of the forward pass; the backward parts run in the opposite order.
    """

    graph: StepGraph
    roles: tuple[Role, ...]
    layers: tuple[Layer, ...]


def cut(graph: StepGraph) -> Cut:
    """Cut a step into layers; a step without repeats and cheap places is one layer."""
    op_roles = roles(graph)
    reads = Reads(graph, op_roles)
    forward = _forward_layers(graph, op_roles, reads)
    count = max(forward.values(), default=0) + 1
    backward = _backward_layers(graph, op_roles, reads, forward, count)
    parts: list[tuple[list[int], list[int]]] = [([], []) for _ in range(count)]
    for half, layer_of in enumerate((forward, backward)):
        for op, layer in layer_of.items():
            parts[layer][half].append(op)
    layers = tuple(Layer(tuple(ahead), tuple(back)) for ahead, back in parts)
    return Cut(graph, tuple(op_roles), layers)


def _forward_layers(graph: StepGraph, op_roles: Sequence[Role], reads: Reads) -> dict[int, int]:
    """Return the layer of each op of the forward pass, by ascending op."""
    order = sequence(graph, frozenset(op for op, role in enumerate(op_roles) if role is Role.FORWARD))
    seen: set[int] = set()
    weight_bytes = []
    # A tied weight counts for the first op that reads it.
    for op in order:
        new = reads.weights(op) - seen
        seen |= new
        weight_bytes.append(sum(graph.size_bytes[value] for value in new))
    labels = [graph.labels[op] for op in order]
    places = layer_boundaries(Sequenced(labels, weight_bytes, live_bytes(graph, order)))
    layer_of: dict[int, int] = {}
    for layer, (start, end) in enumerate(pairwise(places)):
        layer_of.update(dict.fromkeys(order[start:end], layer))
    penalties = [op for op, role in enumerate(op_roles) if role is Role.PENALTY]
    if penalties:
        _add_penalties(graph, reads, penalties, layer_of)
    return dict(sorted(layer_of.items()))


def _add_penalties(graph: StepGraph, reads: Reads, ops: Iterable[int], layer_of: dict[int, int]) -> None:
    """Add penalties to the layer of their weight, and sums of penalties to the layer of the last of them."""
    home: dict[int, int] = {}
    for op, layer in layer_of.items():
        for weight in reads.weights(op):
            home[weight] = min(layer, home.get(weight, layer))
    for op in ops:
        layers = [home.get(weight, 0) for weight in reads.weights(op)]
        layers += [layer_of[producer] for producer in graph.producers(op) if producer in layer_of]
        layer_of[op] = max(layers, default=0)


def _backward_layers(
    graph: StepGraph, op_roles: Sequence[Role], reads: Reads, forward: dict[int, int], count: int
) -> dict[int, int]:
    """Return the layer of each backward op: that of the latest values and weights that it reads."""
    homes = _homes(graph, reads, forward)
    layer_of: dict[int, int] = {}
    for op, role in enumerate(op_roles):
        if role is not Role.BACKWARD:
            continue
        # Backward parts run from the last layer to the first: an op cannot be in a later layer than its
        # producers, and belongs to the latest remaining layer that has its forward values anyway.
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
    """Return the layers whose forward part makes or reads a value anyway, ascending."""
    homes: dict[int, set[int]] = {}
    for op, layer in forward.items():
        for value in (*reads.values(op), *graph.results[op]):
            if value not in graph.inputs and not graph.is_small(value):
                homes.setdefault(value, set()).add(layer)
    return {value: sorted(layers) for value, layers in homes.items()}


def sequence(graph: StepGraph, ops: frozenset[int]) -> list[int]:
    """Order ops by their dependences only, whatever their order in the program.

    Args:
        graph: the step.
        ops: the ops to order.
    """
    # An op follows its operands, and of these the one that took the most ops is first (Sethi and Ullman
    # 1970): an encoder is complete before its decoder begins, and few values are live at a time.
    depth = _ancestor_counts(graph, ops)
    last = [op for op in sorted(ops) if not any(reader in ops for reader in graph.readers(op))]
    ordered: dict[int, None] = {}
    pending = [(op, False) for op in sorted(last, key=lambda op: (depth[op], -op))]
    while pending:
        op, is_ready = pending.pop()
        if op in ordered:
            continue
        if is_ready:
            ordered[op] = None
            continue
        pending.append((op, True))
        before = [near for near in graph.producers(op) if near in ops and near not in ordered]
        # The last one pushed comes first: of equals the first operand.
        before.reverse()
        pending += [(producer, False) for producer in sorted(before, key=depth.__getitem__)]
    return list(ordered)


def live_bytes(graph: StepGraph, order: Sequence[int]) -> list[int]:
    """Return the live bytes at each place of a sequence, from before its first op to after its last."""
    # Small values are sent anywhere and do not count.
    place = {op: index for index, op in enumerate(order)}
    changes = [0] * (len(order) + 1)
    for op, index in place.items():
        for value in graph.results[op]:
            readers = [place[user] for user in graph.users.get(value, ()) if user in place]
            if readers and not graph.is_small(value):
                changes[index + 1] += graph.size_bytes[value]
                changes[max(readers) + 1] -= graph.size_bytes[value]
    live, total = [], 0
    for change in changes:
        total += change
        live.append(total)
    return live


def _ancestor_counts(graph: StepGraph, ops: frozenset[int]) -> dict[int, int]:
    """Return for each op the number of ops that it depends on, itself included."""
    # Sets of ops as bits of integers: unions are single operations, and shared ancestors count once.
    above: dict[int, int] = {}
    for bit, op in enumerate(sorted(ops)):
        mask = 1 << bit
        for producer in graph.producers(op):
            mask |= above.get(producer, 0)
        above[op] = mask
    return {op: mask.bit_count() for op, mask in above.items()}


@dataclass(frozen=True)
class Sequenced:
    """A sequence of n ops to cut.

    Attributes:
        labels: of each op, equal for ops that may be the same op of two copies of a layer.
        weight_bytes: of each op, the weights that no op before it reads.
        live_bytes: of each of the n + 1 places, the bytes that cross it.
    """

    labels: Sequence[Hashable]
    weight_bytes: Sequence[int]
    live_bytes: Sequence[int]


@dataclass(frozen=True)
class _Run:
    start: int
    period: int
    copies: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.copies


def layer_boundaries(ops: Sequenced) -> list[int]:
    """Return the places where layers begin, from 0, and the end; at least [0, n]."""
    names: dict[Hashable, int] = {}
    labels = np.array([names.setdefault(label, len(names)) for label in ops.labels], np.int64)
    weights = np.array([0, *accumulate(ops.weight_bytes)])
    runs = _runs(labels, weights, ops.live_bytes, 0, len(labels))
    largest = max((_weights_of_a_copy(weights, run) for run in runs), default=0)
    runs = [run for run in runs if _weights_of_a_copy(weights, run) >= LEAST_COPY * largest]
    unit = max(largest, max(ops.weight_bytes, default=0))
    places, at = [0], 0
    for run in [*runs, _Run(len(labels), 1, 0)]:
        places += _cheapest(weights, ops.live_bytes, at, run.start, LARGEST_LAYER * unit)
        places += [run.start + run.period * (copy + 1) for copy in range(run.copies)]
        at = run.end
    return sorted({*places, len(labels)})


def _weights_of_a_copy(weights: np.ndarray, run: _Run) -> int:
    return int(weights[run.start + run.period] - weights[run.start])


def _runs(labels: np.ndarray, weights: np.ndarray, live: Sequence[int], start: int, end: int) -> list[_Run]:
    """Return the repeats between two places, in order: the longest, then those on both sides of it."""
    run = _longest(labels[start:end])
    if run is None:
        return []
    run = _rotate(_Run(start + run.start, run.period, run.copies), end, labels, live)
    left = _runs(labels, weights, live, start, run.start)
    right = _runs(labels, weights, live, run.end, end)
    share = (weights[run.end] - weights[run.start]) / max(1, weights[-1])
    return [*left, *([run] if share >= LEAST_SHARE else []), *right]


def _longest(labels: np.ndarray) -> _Run | None:
    """Return the periodic run that covers most ops; of several the one with the shortest period."""
    best: _Run | None = None
    for period in range(1, len(labels) // 2 + 1):
        start, length = _longest_true(labels[period:] == labels[:-period])
        copies = length // period + 1
        if copies >= 2 and (best is None or copies * period > best.copies * best.period):
            best = _Run(start, period, copies)
    return best


def _longest_true(mask: np.ndarray) -> tuple[int, int]:
    """Return (first, length) of the longest run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    at = int(lengths.argmax())
    return int(edges[2 * at]), int(lengths[at])


def _rotate(run: _Run, end: int, labels: np.ndarray, live: Sequence[int]) -> _Run:
    """Rotate a run so that its copies begin where few bytes cross."""
    last = run.end
    while last < end and labels[last] == labels[last - run.period]:
        last += 1
    slack = last - run.end
    found = []
    for at in range(run.start, run.start + run.period):
        copies = run.copies if at <= run.start + slack else run.copies - 1
        if copies >= 2:
            cost = max(live[at + run.period * copy] for copy in range(copies + 1))
            found.append((cost, copies, at))
    cheapest = min(cost for cost, _, _ in found)
    near = [(copies, -at) for cost, copies, at in found if cost <= NEAR_CHEAPEST * cheapest]
    copies, negative = max(near)
    return _Run(-negative, run.period, copies)


def _cheapest(
    weights: np.ndarray, live: Sequence[int], start: int, end: int, most_weights: float
) -> list[int]:
    """Return places that cut [start, end) into layers within a limit of weights, with the fewest crossing
    bytes.

    A single op with more weights is a layer. The end is among the places.
    """
    if start >= end:
        return [end]
    inner = [at for at in range(start + 1, end) if live[at] <= min(live[at - 1], live[at + 1])]
    places = [start, *inner, end]
    cost, before = {start: 0.0}, {start: start}
    for index, at in enumerate(places[1:], 1):
        options = [
            p for p in places[:index] if weights[at] - weights[p] <= most_weights or p == places[index - 1]
        ]
        best = min(options, key=lambda p: cost[p])
        cost[at], before[at] = cost[best] + (live[at] if at < end else 0), best
    found = []
    while end != start:
        found.append(end)
        end = before[end]
    return found
