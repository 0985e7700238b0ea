"""Where a sequence of ops is cut into layers: what repeats first, the rest by the bytes that cross."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

NEAR_CHEAPEST = 1.05
"""A repeat begins at its first place that costs at most this much of its cheapest."""

LEAST_SHARE = 0.02
"""A repeat with a smaller share of all weights is no reason for a cut."""

LEAST_COPY = 0.5
"""Nor is one whose copies have less than this of the weights of the largest copies: parts of a layer."""

LARGEST_LAYER = 1.25
"""The rest is cut so that no layer has more weights than this multiple of the largest unit."""


@dataclass(frozen=True)
class Sequenced:
    """What the cut asks of a sequence of n ops.

    Attributes:
        labels: of each op, equal for ops that may be the same op of two copies of a layer.
        weight_bytes: of each op, the weights that no op before it reads.
        live_bytes: of each of the n + 1 places, what crosses there.
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
    """The places where layers begin, from 0, and the end; at least [0, n]."""
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
    """Repeats between two places, in order: the longest, then those on both sides of it."""
    run = _longest(labels[start:end])
    if run is None:
        return []
    run = _rotated(_Run(start + run.start, run.period, run.copies), end, labels, live)
    left = _runs(labels, weights, live, start, run.start)
    right = _runs(labels, weights, live, run.end, end)
    share = (weights[run.end] - weights[run.start]) / max(1, weights[-1])
    return [*left, *([run] if share >= LEAST_SHARE else []), *right]


def _longest(labels: np.ndarray) -> _Run | None:
    """The periodic run that covers most ops; of several the one with the shortest period."""
    best: _Run | None = None
    for period in range(1, len(labels) // 2 + 1):
        start, length = _longest_true(labels[period:] == labels[:-period])
        copies = length // period + 1
        if copies >= 2 and (best is None or copies * period > best.copies * best.period):
            best = _Run(start, period, copies)
    return best


def _longest_true(mask: np.ndarray) -> tuple[int, int]:
    """(first, length) of the longest stretch of true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    at = int(lengths.argmax())
    return int(edges[2 * at]), int(lengths[at])


def _rotated(run: _Run, end: int, labels: np.ndarray, live: Sequence[int]) -> _Run:
    """The same run with copies that begin where little crosses."""
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
    """Places that cut [start, end) into layers within a limit of weights, with the least that crosses.

    Where a single op has more, it is a layer. The end is among the places.
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
