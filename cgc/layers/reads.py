"""What ops read, through the ops that are repeated wherever they are read."""

from __future__ import annotations

from collections.abc import Sequence

from cgc.layers.graph import StepGraph
from cgc.layers.roles import Role


class Reads:
    """What each op of a step reads of arguments, and of ops that are computed once."""

    def __init__(self, graph: StepGraph, found: Sequence[Role]) -> None:
        self._graph = graph
        self._behind: dict[int, frozenset[int]] = {}
        for op, role in enumerate(found):  # in order: what an op reads is known before it
            if role is Role.REPEATED:
                self._behind[op] = self.values(op)

    def values(self, op: int) -> frozenset[int]:
        """Arguments, and values of ops that are computed once."""
        return frozenset().union(*[self._sources(value) for value in self._graph.operands[op]])

    def _sources(self, value: int) -> frozenset[int]:
        producer = self._graph.producer.get(value)
        if producer is None or producer not in self._behind:
            return frozenset((value,))
        return self._behind[producer]

    def weights(self, op: int) -> frozenset[int]:
        """The state that comes with a layer, of what an op reads."""
        graph = self._graph
        return frozenset(v for v in self.values(op) if v in graph.state and not graph.is_small(v))
