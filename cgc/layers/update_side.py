"""Which ops belong to the update of the weights: the cheapest cut between gradients and new state.

What crosses from the wafer to MemoryX is about one gradient for each weight. Casts, scaling, clipping and the
optimizer stay behind the cut; sums of gradients of one weight that is used twice stay before it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from cgc.layers.graph import StepGraph

_UNIT_BYTES = 256
"""Flows are counted in 32 bits: in units of this many bytes they reach to 500 GB."""

_SOURCE, _SINK = 0, 1
_INFINITE = np.iinfo(np.int32).max


def update_side(graph: StepGraph, fixed: frozenset[int]) -> frozenset[int]:
    """The ops after the cut: a set that holds with an op all that depend on it.

    Of equally cheap cuts it is the one next to the gradients.

    Args:
        graph: the step.
        fixed: ops that have to be after the cut; what depends on them is, too.
    """
    after = graph.descendants(fixed) - graph.forward
    backward = [op for op in range(len(graph.operands)) if op not in graph.forward]
    sources = graph.ancestors(op for op in backward if op in graph.contractions and op not in after)
    network = _Network(graph)
    for op in backward:
        network.add(op, is_before=op in sources, is_after=op in after)
    network.end_in(graph.replacements.values())
    before = network.cut()
    return frozenset(op for op in backward if op not in before)


class _Network:
    """A flow of bytes from the wafer to MemoryX, through the values that may cross.

    Behind source and sink, node 2 + i is op i; a value has the node behind its passage after all ops.
    """

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._capacity: dict[tuple[int, int], int] = {}
        self._added: list[int] = []
        self._first_value = 2 + len(graph.operands)

    def add(self, op: int, *, is_before: bool, is_after: bool) -> None:
        """An op that is not of the forward pass."""
        capacity, node, producers = self._capacity, 2 + op, self._graph.producer
        self._added.append(op)
        if is_before:
            capacity[_SOURCE, node] = _INFINITE
        if is_after:
            capacity[node, _SINK] = _INFINITE
        for value in self._graph.operands[op]:
            capacity[self._leaving(value), node] = _INFINITE
            if (producer := producers.get(value)) is not None:
                capacity[node, self._producer_node(producer)] = _INFINITE

    def end_in(self, values: Iterable[int]) -> None:
        """Values that MemoryX has to have."""
        for value in values:
            self._capacity[self._leaving(value), _SINK] = _INFINITE

    def cut(self) -> frozenset[int]:
        """The ops before the cheapest cut, of those that were added."""
        size = self._first_value + len(self._graph.size_bytes)
        rows, columns = zip(*self._capacity, strict=True) if self._capacity else ((), ())
        capacity = csr_array(
            (np.fromiter(self._capacity.values(), np.int32), (rows, columns)), shape=(size, size)
        )
        flow = maximum_flow(capacity, _SOURCE, _SINK).flow
        residual = csr_array(capacity - flow)
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, _SOURCE, return_predecessors=False).tolist())
        return frozenset(op for op in self._added if 2 + op in reached)

    def _producer_node(self, op: int) -> int:
        return _SOURCE if op in self._graph.forward else 2 + op

    def _leaving(self, value: int) -> int:
        """The node behind the passage of a value, which costs its bytes once however many read it.

        State is at MemoryX already, and small values cost nothing.
        """
        leaving = self._first_value + value
        if value not in self._graph.state:
            made = self._graph.producer.get(value)
            entering = _SOURCE if made is None else self._producer_node(made)
            cost = 0 if self._graph.is_small(value) else -(-self._graph.size_bytes[value] // _UNIT_BYTES)
            self._capacity.setdefault((entering, leaving), cost)
        return leaving
