"""Partition a training step into layers, each with forward and backward ops.

The forward pass becomes a sequence of ops. Blocks that repeat in it are layers; the rest is cut where the
fewest bytes cross. The result is a function of the graph only: names do not affect it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from cgc.layers.graph import StepGraph
from cgc.layers.roles import Reads, Role, roles

# Copies of a repeat may begin at any boundary that costs at most this multiple of the cheapest one. Of these,
# the boundary with the most copies is chosen, then the earliest.
BOUNDARY_TOLERANCE = 1.05

# A repeat with a smaller share of all weights is ignored.
MIN_WEIGHT_SHARE = 0.02

# A repeat whose copies have less than this share of the weights of the largest copy is a part of a layer.
MIN_COPY_RATIO = 0.5

# Between repeats, a layer has at most this multiple of the weights of the largest copy or single op.
MAX_LAYER_RATIO = 1.25


@dataclass(frozen=True)
class Layer:
    """Ops of a layer, ascending; only ops of the roles FORWARD, PENALTY and BACKWARD are in a layer."""

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
    """Cut a step into layers; a step with neither repeats nor cheap boundaries is one layer."""
    op_roles = roles(graph)
    reads = Reads(graph, op_roles)
    forward = _forward_layers(graph, op_roles, reads)
    count = max(forward.values(), default=0) + 1
    backward = _backward_layers(graph, op_roles, reads, forward, count)
    forward_ops: list[list[int]] = [[] for _ in range(count)]
    backward_ops: list[list[int]] = [[] for _ in range(count)]
    for op, layer in forward.items():
        forward_ops[layer].append(op)
    for op, layer in backward.items():
        backward_ops[layer].append(op)
    parts = zip(map(tuple, forward_ops), map(tuple, backward_ops), strict=True)
    return Cut(graph, tuple(op_roles), tuple(Layer(*part) for part in parts))


def _forward_layers(graph: StepGraph, op_roles: Sequence[Role], reads: Reads) -> dict[int, int]:
    """Return the layer of each op of the forward pass, by ascending op."""
    order = dependency_order(graph, frozenset(op for op, role in enumerate(op_roles) if role is Role.FORWARD))
    seen: set[int] = set()
    weight_bytes = []
    # A tied weight counts for the first op that reads it.
    for op in order:
        new = reads.weights(op) - seen
        seen |= new
        weight_bytes.append(sum(graph.size_bytes[value] for value in new))
    labels = [graph.labels[op] for op in order]
    boundaries = layer_boundaries(OpSequence(labels, weight_bytes, live_bytes(graph, order)))
    layer_of: dict[int, int] = {}
    for layer, (start, end) in enumerate(pairwise(boundaries)):
        layer_of.update(dict.fromkeys(order[start:end], layer))
    # A regularization term joins the first layer that has its weight, and a sum of such terms the last layer
    # that has one of them.
    penalties = [op for op, role in enumerate(op_roles) if role is Role.PENALTY]
    first_layer: dict[int, int] = {}
    if penalties:
        for op, layer in layer_of.items():
            for weight in reads.weights(op):
                first_layer[weight] = min(layer, first_layer.get(weight, layer))
    for op in penalties:
        layers = [first_layer.get(weight, 0) for weight in reads.weights(op)]
        layers += [layer_of[producer] for producer in graph.producers(op) if producer in layer_of]
        layer_of[op] = max(layers, default=0)
    return dict(sorted(layer_of.items()))


def _backward_layers(
    graph: StepGraph, op_roles: Sequence[Role], reads: Reads, forward: dict[int, int], count: int
) -> dict[int, int]:
    """Return the layer of each backward op: the latest available one that already holds a value it reads."""
    holders: dict[int, set[int]] = {}
    for op, layer in forward.items():
        for value in (*reads.values(op), *graph.results[op]):
            if value not in graph.inputs and not graph.is_small(value):
                holders.setdefault(value, set()).add(layer)
    layers_holding = {value: sorted(layers) for value, layers in holders.items()}
    layer_of: dict[int, int] = {}
    for op, role in enumerate(op_roles):
        if role is not Role.BACKWARD:
            continue
        # Backward parts run from the last layer to the first: an op cannot be in a later layer than its
        # producers.
        latest = min(
            (layer_of[producer] for producer in graph.producers(op) if producer in layer_of),
            default=count - 1,
        )
        candidates = []
        for value in reads.values(op):
            layers = layers_holding.get(value, [])
            if available := bisect_right(layers, latest):
                candidates.append(layers[available - 1])
        layer_of[op] = max(candidates, default=latest)
    return layer_of


def dependency_order(graph: StepGraph, ops: frozenset[int]) -> list[int]:
    """Order ops by their dependencies only, whatever their order in the program.

    Args:
        graph: the step.
        ops: the ops to order.
    """
    # Count the ops that each op depends on, itself included. Sets of ops are bits of integers: a union is a
    # single operation, and shared ancestors count once.
    masks: dict[int, int] = {}
    for bit, op in enumerate(sorted(ops)):
        masks[op] = 1 << bit
        for producer in graph.producers(op):
            masks[op] |= masks.get(producer, 0)
    ancestors = {op: mask.bit_count() for op, mask in masks.items()}
    # An op follows its producers, and the producer with most ancestors is first (Sethi and Ullman 1970): an
    # encoder is complete before its decoder begins, and few values are live at a time.
    sinks = [op for op in sorted(ops) if not any(user in ops for user in graph.op_users(op))]
    ordered: dict[int, None] = {}
    pending = [(op, False) for op in sorted(sinks, key=lambda op: (ancestors[op], -op))]
    while pending:
        op, is_ready = pending.pop()
        if op in ordered:
            continue
        if is_ready:
            ordered[op] = None
            continue
        pending.append((op, True))
        unordered = [
            producer for producer in graph.producers(op) if producer in ops and producer not in ordered
        ]
        # The last one pushed comes first; on ties, this is the first operand.
        unordered.reverse()
        pending += [(producer, False) for producer in sorted(unordered, key=ancestors.__getitem__)]
    return list(ordered)


def live_bytes(graph: StepGraph, order: Sequence[int]) -> list[int]:
    """Return the bytes that cross each boundary of a sequence, from before its first op to after its last."""
    position = {op: index for index, op in enumerate(order)}
    changes = [0] * (len(order) + 1)
    for op, index in position.items():
        for value in graph.results[op]:
            users = [position[user] for user in graph.users.get(value, ()) if user in position]
            # Small values are cheap to send to any layer.
            if users and not graph.is_small(value):
                changes[index + 1] += graph.size_bytes[value]
                changes[max(users) + 1] -= graph.size_bytes[value]
    return list(accumulate(changes))


@dataclass(frozen=True)
class OpSequence:
    """A sequence of n ops to cut at some of its n + 1 boundaries; boundary i is before op i.

    Attributes:
        labels: of each op, equal for ops that may be the same op of two copies of a layer.
        weight_bytes: of each op, the weights that no op before it reads.
        live_bytes: of each boundary, the bytes that cross it.
    """

    labels: Sequence[Hashable]
    weight_bytes: Sequence[int]
    live_bytes: Sequence[int]


@dataclass(frozen=True)
class _Repeat:
    """Contiguous copies of a block of `period` ops with equal labels."""

    start: int
    period: int
    copies: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.copies


def layer_boundaries(ops: OpSequence) -> list[int]:
    """Return the boundaries between layers, ascending, with 0 and the number of ops."""
    label_ids: dict[Hashable, int] = {}
    labels = np.array([label_ids.setdefault(label, len(label_ids)) for label in ops.labels], np.int64)
    weights_before = np.array([0, *accumulate(ops.weight_bytes)])
    repeats = _find_repeats(labels, weights_before, ops.live_bytes, 0, len(labels))
    copy_weights = [
        int(weights_before[repeat.start + repeat.period] - weights_before[repeat.start]) for repeat in repeats
    ]
    largest = max(copy_weights, default=0)
    repeats = [
        repeat
        for repeat, weights in zip(repeats, copy_weights, strict=True)
        if weights >= MIN_COPY_RATIO * largest
    ]
    max_weight_bytes = MAX_LAYER_RATIO * max(largest, max(ops.weight_bytes, default=0))
    boundaries, start = [0], 0
    # An empty repeat at the end, so that the ops after the last repeat are cut as well.
    for repeat in [*repeats, _Repeat(len(labels), 1, 0)]:
        boundaries += _cheapest_boundaries(
            weights_before, ops.live_bytes, start, repeat.start, max_weight_bytes
        )
        boundaries += range(repeat.start + repeat.period, repeat.end + 1, repeat.period)
        start = repeat.end
    return sorted({*boundaries, len(labels)})


def _find_repeats(
    labels: np.ndarray, weights_before: np.ndarray, live: Sequence[int], start: int, end: int
) -> list[_Repeat]:
    """Return the repeats between two boundaries, in order: the longest, and those on both sides of it."""
    repeat = _longest_repeat(labels[start:end])
    if repeat is None:
        return []
    repeat = _rotate(_Repeat(start + repeat.start, repeat.period, repeat.copies), end, labels, live)
    left = _find_repeats(labels, weights_before, live, start, repeat.start)
    right = _find_repeats(labels, weights_before, live, repeat.end, end)
    share = (weights_before[repeat.end] - weights_before[repeat.start]) / max(1, weights_before[-1])
    return [*left, *([repeat] if share >= MIN_WEIGHT_SHARE else []), *right]


def _longest_repeat(labels: np.ndarray) -> _Repeat | None:
    """Return the repeat that covers most ops; on ties, the one with the shortest period."""
    best: _Repeat | None = None
    for period in range(1, len(labels) // 2 + 1):
        # Copies follow each other where an op has the label of the op one period later.
        is_equal = (labels[period:] == labels[:-period]).astype(np.int8)
        edges = np.flatnonzero(np.diff(np.concatenate(([0], is_equal, [0]))))
        lengths = edges[1::2] - edges[::2]
        if not len(lengths):
            continue
        longest = int(lengths.argmax())
        copies = int(lengths[longest]) // period + 1
        if copies >= 2 and (best is None or copies * period > best.copies * best.period):
            best = _Repeat(int(edges[2 * longest]), period, copies)
    return best


def _rotate(repeat: _Repeat, end: int, labels: np.ndarray, live: Sequence[int]) -> _Repeat:
    """Rotate a repeat so that its copies begin where few bytes cross; this may drop one copy."""
    periodic_end = repeat.end
    while periodic_end < end and labels[periodic_end] == labels[periodic_end - repeat.period]:
        periodic_end += 1
    candidates: list[tuple[int, int, int]] = []  # (cost, copies, start)
    for start in range(repeat.start, repeat.start + repeat.period):
        fits = start + repeat.period * repeat.copies <= periodic_end
        copies = repeat.copies if fits else repeat.copies - 1
        if copies >= 2:
            cost = max(live[start + repeat.period * copy] for copy in range(copies + 1))
            candidates.append((cost, copies, start))
    cheapest = min(cost for cost, _, _ in candidates)
    copies, negated_start = max(
        (copies, -start) for cost, copies, start in candidates if cost <= BOUNDARY_TOLERANCE * cheapest
    )
    return _Repeat(-negated_start, repeat.period, copies)


def _cheapest_boundaries(
    weights_before: np.ndarray, live: Sequence[int], start: int, end: int, max_weight_bytes: float
) -> list[int]:
    """Return boundaries that cut [start, end) into layers within a limit, with the fewest crossing bytes.

    Candidates are local minima of the crossing bytes; a layer with none inside it may exceed the limit.

    Returns:
        The boundaries in descending order, with `end`, without `start`.
    """
    if start >= end:
        return [end]
    minima = [at for at in range(start + 1, end) if live[at] <= min(live[at - 1], live[at + 1])]
    candidates = [start, *minima, end]
    cost, previous = {start: 0.0}, {start: start}
    for index, boundary in enumerate(candidates[1:], 1):
        options = [
            begin
            for begin in candidates[:index]
            if weights_before[boundary] - weights_before[begin] <= max_weight_bytes
            or begin == candidates[index - 1]
        ]
        best = min(options, key=lambda begin: cost[begin])
        cost[boundary] = cost[best] + (live[boundary] if boundary < end else 0)
        previous[boundary] = best
    boundaries = []
    while end != start:
        boundaries.append(end)
        end = previous[end]
    return boundaries
