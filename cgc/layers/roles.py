"""Roles of the ops of a step: sent with a layer, computed on the wafer, or updated by MemoryX.

The update begins at the cheapest cut between gradients and new state: about one gradient for each weight
crosses from the wafer to MemoryX. Casts, scaling, clipping and the optimizer are after the cut; sums of
gradients of one weight that is used twice are before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from cgc.layers.graph import StepGraph

# Flows are counted in 32 bits: in units of this many bytes they reach to 500 GB.
_UNIT_BYTES = 256

_SOURCE, _SINK = 0, 1
_INFINITE = np.iinfo(np.int32).max


class Role(Enum):
    """Where an op is computed with weight streaming."""

    DUPLICATED = auto()
    """In every layer that reads it: it depends on constants, only on weights, or only on the batch."""
    CONTROL = auto()
    """Once before a step: small values of schedules and scales."""
    FORWARD = auto()
    """In the forward part of a layer."""
    PENALTY = auto()
    """In the forward part as well: a regularization term, which is a small value of weights only."""
    BACKWARD = auto()
    """In the backward part of a layer."""
    UPDATE = auto()
    """At MemoryX, after the gradients have arrived."""


_BEFORE_LAYERS = (Role.DUPLICATED, Role.CONTROL)
_CONTROL, _WEIGHT, _DATA, _OPTIMIZER = 1, 2, 4, 8


def roles(graph: StepGraph) -> list[Role]:
    """Return the role of every op."""
    depends = dependencies(graph)
    if graph.totals:
        updated = graph.descendants(graph.totals)
    else:
        # Ops that MemoryX has to compute, because they depend on state that never leaves it.
        updated = update_side(graph, frozenset(op for op, kinds in enumerate(depends) if kinds & _OPTIMIZER))
    op_roles: list[Role] = []
    for op in range(len(graph.operands)):
        is_early = all(op_roles[producer] in _BEFORE_LAYERS for producer in graph.producers(op))
        op_roles.append(_role(graph, op, depends, updated, is_early))
    return op_roles


def dependencies(graph: StepGraph) -> list[int]:
    """Return for every op the kinds of arguments that it depends on, as bits."""
    value_kinds = dict.fromkeys(graph.inputs, _DATA) | dict.fromkeys(graph.whole_inputs, 0)
    for value in graph.state:
        large = _OPTIMIZER if value in graph.optimizer_state else _WEIGHT
        value_kinds[value] = _CONTROL if graph.is_small(value) else large
    if graph.number is not None:
        value_kinds[graph.number] = _DATA
    op_kinds = []
    for op, read in enumerate(graph.operands):
        kinds = 0
        for value in read:
            kinds |= value_kinds[value]
        value_kinds.update(dict.fromkeys(graph.results[op], kinds))
        op_kinds.append(kinds)
    return op_kinds


def _role(graph: StepGraph, op: int, depends: list[int], updated: frozenset[int], is_early: bool) -> Role:
    """Return the role of an op from its dependencies, its size and its pass."""
    kinds, is_small = depends[op], graph.has_small_results(op)
    # Optimizer state never leaves MemoryX; schedules and constants are needed on both sides.
    if (op in updated and kinds not in (0, _CONTROL)) or kinds & _OPTIMIZER:
        return Role.UPDATE
    if kinds == 0:
        return Role.DUPLICATED
    if kinds == _CONTROL and is_small and is_early:
        return Role.CONTROL
    # An op of weights only, such as a cast, is cheaper to duplicate than to send.
    mixes = bool(kinds & _DATA and kinds & (_WEIGHT | _CONTROL))
    if op not in graph.forward:
        return Role.BACKWARD if mixes else Role.DUPLICATED
    if mixes or kinds == _CONTROL:
        return Role.FORWARD
    return Role.PENALTY if is_small and not kinds & _DATA else Role.DUPLICATED


class Reads:
    """Arguments, and values of ops that are computed once, that each op of a step reads."""

    def __init__(self, graph: StepGraph, op_roles: Sequence[Role]) -> None:
        self._graph = graph
        self._duplicated_reads: dict[int, frozenset[int]] = {}
        for op, role in enumerate(op_roles):  # in order: the operands of an op are known
            if role is Role.DUPLICATED:
                self._duplicated_reads[op] = self.values(op)

    def values(self, op: int) -> frozenset[int]:
        """Return the arguments that an op reads, and the values of ops that are computed once."""
        return frozenset().union(*[self._sources(value) for value in self._graph.operands[op]])

    def _sources(self, value: int) -> frozenset[int]:
        producer = self._graph.producer.get(value)
        if producer is None or producer not in self._duplicated_reads:
            return frozenset((value,))
        return self._duplicated_reads[producer]

    def weights(self, op: int) -> frozenset[int]:
        """Return the state that an op reads and that comes with a layer."""
        graph = self._graph
        return frozenset(v for v in self.values(op) if v in graph.state and not graph.is_small(v))


def update_side(graph: StepGraph, fixed: frozenset[int]) -> frozenset[int]:
    """Return the ops after the cut: with an op all that depend on it.

    Of equally cheap cuts it is the one next to the gradients.

    Args:
        graph: the step.
        fixed: ops that have to be after the cut, with all that depend on them.
    """
    after = graph.descendants(fixed) - graph.forward
    backward = [op for op in range(len(graph.operands)) if op not in graph.forward]
    sources = graph.ancestors(op for op in backward if op in graph.contractions and op not in after)
    network = _Network(graph, sources | graph.forward, after)
    network.add_reads(backward)
    for value in graph.replacements.values():
        network.add_read(value, _SINK)
    before = network.cut() | sources
    return frozenset(op for op in backward if op not in before)


class _Network:
    """A flow network of bytes from the wafer to MemoryX, through the values that may cross.

    Source and sink represent all ops that have to be before the cut and after it. Node 2 + i is op i; nodes
    for values follow those of all ops.
    """

    def __init__(self, graph: StepGraph, before: frozenset[int], after: frozenset[int]) -> None:
        self._graph = graph
        self._fixed = dict.fromkeys(before, _SOURCE) | dict.fromkeys(after, _SINK)
        self._capacity: dict[tuple[int, int], int] = {}
        self._movable: list[int] = []
        self._first_value_node = 2 + len(graph.operands)

    def add_reads(self, ops: Iterable[int]) -> None:
        """Add the reads of ops: the values have to be on the side of the op."""
        for op in ops:
            node = self._fixed.get(op, 2 + op)
            if node == _SOURCE:
                continue
            if node != _SINK:
                self._movable.append(op)
            for value in self._graph.operands[op]:
                self.add_read(value, node)

    def add_read(self, value: int, node: int) -> None:
        """Add the read of a value by a node; its bytes count once for all its users."""
        # State is at MemoryX already, and small values cost nothing.
        if value in self._graph.state:
            return
        producer = self._graph.producer.get(value)
        producer_node = _SOURCE if producer is None else self._fixed.get(producer, 2 + producer)
        if producer_node == _SINK:
            return
        value_node = self._first_value_node + value
        cost = 0 if self._graph.is_small(value) else -(-self._graph.size_bytes[value] // _UNIT_BYTES)
        self._capacity.setdefault((producer_node, value_node), cost)
        self._capacity[value_node, node] = _INFINITE
        if node != _SINK and producer_node != _SOURCE:
            self._capacity[node, producer_node] = _INFINITE

    def cut(self) -> frozenset[int]:
        """Return the ops before the cheapest cut, except those of a fixed side."""
        size = self._first_value_node + len(self._graph.size_bytes)
        rows, columns = zip(*self._capacity, strict=True) if self._capacity else ((), ())
        capacity = csr_array(
            (np.fromiter(self._capacity.values(), np.int32), (rows, columns)), shape=(size, size)
        )
        flow = maximum_flow(capacity, _SOURCE, _SINK).flow
        residual = csr_array(capacity - flow)
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, _SOURCE, return_predecessors=False).tolist())
        return frozenset(op for op in self._movable if 2 + op in reached)
