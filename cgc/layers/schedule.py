"""The order in which a step in layers is computed, and by which functions.

A step runs `before`, the forward parts in order, the backward parts in the opposite order, then the rounds of
the update and the update of each layer. Values go from one call to another by their numbers in the graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.ir import Attribute

from cgc.cirh.base import CirhOp
from cgc.layers.cut import Cut
from cgc.layers.functions import Function, function, random_ops, structure
from cgc.layers.roles import Role
from cgc.layers.update_plan import UpdateRound, update_plan
from cgc.lowering.counter_random import op_key

Key = tuple[int, int]


@dataclass(frozen=True)
class Call:
    """One use of a function.

    Attributes:
        function: which of the schedule's.
        arguments: numbers of the values that go in.
        keys: of the random ops in it, its last arguments.
        results: numbers of the values that come out.
    """

    function: int
    arguments: tuple[int, ...]
    keys: tuple[Key, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class LayerCalls:
    """The calls of one layer.

    Attributes:
        forward: its forward part, in the last layer its backward part as well; None where it gives nothing.
        backward: None in the last layer, and where nothing is trained.
        update: new values of its state, None where it has none.
    """

    forward: Call | None
    backward: Call | None
    update: Call | None


@dataclass(frozen=True)
class Round:
    """Small values of the update that need all gradients, such as their norm.

    Attributes:
        partial: for each layer what its own gradients contribute, None where they do not.
        joined: what follows from the contributions; None where nothing does.
    """

    partial: tuple[Call | None, ...]
    joined: Call | None


@dataclass(frozen=True)
class Schedule:
    """A step in layers.

    Attributes:
        functions: each once, however many layers use it.
        before: small values of schedules and scales; None without any.
        layers: in the order of the forward pass.
        rounds: of the update, before any layer is updated.
    """

    functions: tuple[Function, ...]
    before: Call | None
    layers: tuple[LayerCalls, ...]
    rounds: tuple[Round, ...]


def schedule(
    step: Cut,
    ops: Sequence[CirhOp],
    types: Sequence[Attribute],
    recomputed: frozenset[int] = frozenset(),
) -> Schedule:
    """The calls of a step.

    Args:
        step: the cut.
        ops: of the step.
        types: of its values.
        recomputed: layers whose backward part computes the forward part again, instead of keeping its values.
    """
    return _Scheduler(step, ops, types, recomputed).schedule()


class _Scheduler:
    def __init__(
        self, step: Cut, ops: Sequence[CirhOp], types: Sequence[Attribute], recomputed: frozenset[int]
    ) -> None:
        self._cut, self._graph, self._ops, self._types = step, step.graph, ops, types
        self._recomputed = recomputed
        self._functions: list[Function] = []
        self._known: dict[Hashable, int] = {}
        self._plan = update_plan(step)
        self._last = {*step.graph.outputs, *step.graph.replacements.values()}

    def schedule(self) -> Schedule:
        """All calls."""
        control = frozenset(op for op, role in enumerate(self._cut.roles) if role is Role.CONTROL)
        before = self._call(control, self._results(control, control))
        layers = [self._layer(index) for index in range(len(self._cut.layers))]
        rounds = [self._round(plan) for plan in self._plan.rounds]
        return Schedule(tuple(self._functions), before, tuple(layers), tuple(rounds))

    def _layer(self, index: int) -> LayerCalls:
        forward = frozenset(self._cut.layers[index].forward)
        backward = frozenset(self._cut.layers[index].backward)
        whole = forward | backward
        update = self._call(self._large_updates, self._plan.states[index])
        if index == len(self._cut.layers) - 1:
            kept = (*self._results(whole, whole), *self._repeated_results())
            return LayerCalls(self._call(whole, kept), None, update)
        again = index in self._recomputed
        return LayerCalls(
            self._call(forward, self._results(forward, whole if again else forward)),
            self._call(whole if again else backward, self._results(backward, whole if again else backward)),
            update,
        )

    def _round(self, plan: UpdateRound) -> Round:
        partial = [
            self._call(self._large_updates | set(ops), self._results(frozenset(ops), frozenset(ops)))
            for ops in plan.partial
        ]
        joined = frozenset(plan.joined)
        return Round(tuple(partial), self._call(joined, self._results(joined, joined)))

    @cached_property
    def _large_updates(self) -> frozenset[int]:
        graph = self._graph
        return frozenset(
            op
            for op, role in enumerate(self._cut.roles)
            if role is Role.UPDATE and not all(map(graph.is_small, graph.results[op]))
        )

    def _results(self, ops: frozenset[int], inside: frozenset[int]) -> list[int]:
        """The values of some ops that others than those inside read, or that the step gives."""
        return [
            value
            for op in sorted(ops)
            for value in self._graph.results[op]
            if value in self._last or not inside.issuperset(self._graph.users.get(value, ()))
        ]

    def _repeated_results(self) -> list[int]:
        """What the step gives of values that no call makes: the last layer does."""
        graph = self._graph
        return [
            value
            for value in dict.fromkeys((*graph.outputs, *graph.replacements.values()))
            if value not in graph.state
            and ((made := graph.producer.get(value)) is None or self._cut.roles[made] is Role.REPEATED)
        ]

    def _call(self, inside: frozenset[int], results: Sequence[int]) -> Call | None:
        if not results:
            return None
        part = function(self._graph, lambda op: op in inside or self._cut.roles[op] is Role.REPEATED, results)
        shape = structure(part, self._graph, self._ops, self._types)
        number = self._known.setdefault(shape, len(self._functions))
        if number == len(self._functions):
            self._functions.append(part)
        keys = tuple(op_key(op.seed, op.op_seed) for op in random_ops(part, self._ops))
        return Call(number, part.arguments, keys, part.results)
