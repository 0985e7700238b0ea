"""The update in calls: what gradients of a layer contribute, what all of them decide, what a layer becomes.

Norms for clipping and checks for infinities need the gradients of all layers before the first weight can
change. They come in rounds: a small value of each layer, then what follows from all of them. A second round
is needed where the contributions depend on what an earlier round has decided, such as a norm of gradients
that were zeroed after an overflow. Large values between gradient and state are computed again in each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cgc.layers.cut import Cut
from cgc.layers.reads import Reads
from cgc.layers.roles import Role


@dataclass(frozen=True)
class UpdateRound:
    """Ops whose results are small.

    Attributes:
        partial: of each layer, those that read large values.
        joined: those that read only small ones.
    """

    partial: tuple[tuple[int, ...], ...]
    joined: tuple[int, ...]


@dataclass(frozen=True)
class UpdatePlan:
    """The update.

    Attributes:
        rounds: in order.
        states: of each layer, the new values of its state that the update computes.
    """

    rounds: tuple[UpdateRound, ...]
    states: tuple[tuple[int, ...], ...]


def update_plan(step: Cut) -> UpdatePlan:
    """Plans the update of a step."""
    return _Planner(step).plan()


class _Planner:
    def __init__(self, step: Cut) -> None:
        self._graph, self._roles, self._count = step.graph, step.roles, len(step.layers)
        self._layers: dict[int, int] = {}
        self._reads = Reads(step.graph, step.roles)
        self._made_in = {
            op: index for index, layer in enumerate(step.layers) for op in (*layer.forward, *layer.backward)
        }

    def plan(self) -> UpdatePlan:
        """Rounds and states."""
        round_of = self._rounds()
        rounds = []
        for number in range(max(round_of.values(), default=-1) + 1):
            ops = [op for op, at in round_of.items() if at == number]
            partial = [op for op in ops if self._reads_large(op)]
            joined = tuple(op for op in ops if not self._reads_large(op))
            rounds.append(UpdateRound(self._by_layer([(op, self._layer(op)) for op in partial]), joined))
        new = [value for value in self._graph.replacements.values() if self._is_large_update(value)]
        states = self._by_layer([(value, self._layer(self._graph.producer[value])) for value in new])
        return UpdatePlan(tuple(rounds), states)

    def _by_layer(self, items: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        found: list[dict[int, None]] = [{} for _ in range(self._count)]
        for item, layer in items:
            found[layer][item] = None
        return tuple(map(tuple, found))

    def _rounds(self) -> dict[int, int]:
        """The round of each op of the update with small results."""
        found: dict[int, int] = {}
        ready: dict[int, int] = {}
        for op, role in enumerate(self._roles):
            if role is not Role.UPDATE:
                continue
            is_joined = self._graph.makes_small(op) and not self._reads_large(op)
            ready[op] = max(
                (self._ready(ready, near, is_joined) for near in self._graph.producers(op)), default=0
            )
            if self._graph.makes_small(op):
                found[op] = ready[op]
        return found

    def _ready(self, ready: dict[int, int], producer: int, is_joined: bool) -> int:
        """The first round in which the results of an op can be read: a small one by others in the next."""
        if producer not in ready:
            return 0
        return ready[producer] + (1 if self._graph.makes_small(producer) and not is_joined else 0)

    def _layer(self, op: int) -> int:
        """The layer whose gradients arrive last of those an op needs, else the first to read its state."""
        if op not in self._layers:
            self._layers[op] = self._found_layer(op)
        return self._layers[op]

    def _found_layer(self, op: int) -> int:
        values = self._needed(op)
        arrived = [
            self._made_in[made] for v in values if (made := self._graph.producer.get(v)) in self._made_in
        ]
        homes = [self._first_reader[value] for value in values if value in self._first_reader]
        return min(arrived or homes, default=0)

    def _needed(self, op: int) -> set[int]:
        """Values that an op reads of other parts of the step, through large values of the update."""
        found: set[int] = set()
        pending, seen = list(self._graph.operands[op]), set[int]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            producer = self._graph.producer.get(value)
            if producer is not None and (
                self._is_large_update(value) or self._roles[producer] is Role.REPEATED
            ):
                pending += self._graph.operands[producer]
            else:
                found.add(value)
        return found

    @cached_property
    def _first_reader(self) -> dict[int, int]:
        """Of each state argument, the first layer whose forward part reads it."""
        found: dict[int, int] = {}
        for op in sorted(self._made_in, key=self._made_in.__getitem__):
            for value in self._reads.values(op) & self._graph.state:
                found.setdefault(value, self._made_in[op])
        return found

    def _reads_large(self, op: int) -> bool:
        return not all(map(self._graph.is_small, self._graph.operands[op]))

    def _is_large_update(self, value: int) -> bool:
        producer = self._graph.producer.get(value)
        return (
            producer is not None
            and self._roles[producer] is Role.UPDATE
            and not self._graph.makes_small(producer)
        )
