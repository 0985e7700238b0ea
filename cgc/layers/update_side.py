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
    network = _Network(graph, sources | graph.forward, after)
    network.read_by(backward)
    network.end_in(graph.replacements.values())
    before = network.cut() | sources
    return frozenset(op for op in backward if op not in before)


class _Network:
    """A flow of bytes from the wafer to MemoryX, through the values that may cross.

    Source and sink stand for all ops that have to be before the cut and after it. Behind them, node 2 + i is
    op i; a value has the node behind its passage after all ops.
    """

    def __init__(self, graph: StepGraph, before: frozenset[int], after: frozenset[int]) -> None:
        self._graph = graph
        self._fixed = dict.fromkeys(before, _SOURCE) | dict.fromkeys(after, _SINK)
        self._capacity: dict[tuple[int, int], int] = {}
        self._open: list[int] = []
        self._first_value = 2 + len(graph.operands)

    def read_by(self, ops: Iterable[int]) -> None:
        """What these ops read has to be where they are."""
        for op in ops:
            node = self._fixed.get(op, 2 + op)
            if node == _SOURCE:
                continue
            if node != _SINK:
                self._open.append(op)
            for value in self._graph.operands[op]:
                self._read(value, node)

    def end_in(self, values: Iterable[int]) -> None:
        """Values that MemoryX has to have."""
        for value in values:
            self._read(value, _SINK)

    def _read(self, value: int, node: int) -> None:
        """A node reads a value, whose passage costs its bytes once however many read it.

        State is at MemoryX already, and small values cost nothing.
        """
        if value in self._graph.state:
            return
        made = self._graph.producer.get(value)
        entering = _SOURCE if made is None else self._fixed.get(made, 2 + made)
        if entering == _SINK:
            return
        leaving = self._first_value + value
        cost = 0 if self._graph.is_small(value) else -(-self._graph.size_bytes[value] // _UNIT_BYTES)
        self._capacity.setdefault((entering, leaving), cost)
        self._capacity[leaving, node] = _INFINITE
        if node != _SINK and entering != _SOURCE:
            self._capacity[node, entering] = _INFINITE

    def cut(self) -> frozenset[int]:
        """The ops before the cheapest cut, of those that are on no fixed side."""
        size = self._first_value + len(self._graph.size_bytes)
        rows, columns = zip(*self._capacity, strict=True) if self._capacity else ((), ())
        capacity = csr_array(
            (np.fromiter(self._capacity.values(), np.int32), (rows, columns)), shape=(size, size)
        )
        flow = maximum_flow(capacity, _SOURCE, _SINK).flow
        residual = csr_array(capacity - flow)
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, _SOURCE, return_predecessors=False).tolist())
        return frozenset(op for op in self._open if 2 + op in reached)
