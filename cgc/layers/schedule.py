"""The calls of a step in layers, and the functions that they call; values are numbered as in the graph.

Norms for clipping and checks for infinities need the gradients of all layers before the first weight can
change. They come in rounds: a small value of each layer, then what follows from all of them. A second round
is needed where the contributions depend on the decision of an earlier round, such as a norm of gradients
that were zeroed after an overflow. Large values between gradient and state are recomputed in each call.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cgc.cirh.random import SeededRandomOp
from cgc.cirh.text import print_module
from cgc.cirh.types import dtype_name, tensor_of
from cgc.kernels.program import Program
from cgc.layers.cut import Cut
from cgc.layers.functions import Function, extract_function, random_ops, structure_key
from cgc.layers.micro_batches import MicroStep
from cgc.layers.pieces import SweptUpdates, build_piece_module, find_swept_updates
from cgc.layers.roles import Reads, Role
from cgc.lowering.random import op_keys
from cs_toolkit.layered_step import Call, LayerCalls, MicroBatches, Round, Schedule, Sweep
from cs_toolkit.step import TensorSpec


@dataclass(frozen=True)
class ScheduledStep:
    """The schedule of a step in layers.

    Attributes:
        schedule: the calls.
        functions: the functions that they call, each once for all layers that use it.
    """

    schedule: Schedule
    functions: tuple[Function, ...]


def schedule(
    step: Cut,
    program: Program,
    recomputed: frozenset[int] = frozenset(),
    micro: MicroStep | None = None,
) -> ScheduledStep:
    """Schedule the calls of a step.

    Args:
        step: the cut.
        program: the step that was cut.
        recomputed: layers whose backward part recomputes the forward part, instead of storing its values.
        micro: the rewrite of the step for micro-batches.
    """
    return _Scheduler(step, program, recomputed, micro).schedule()


class _Scheduler:
    """Builds calls and functions of a step; functions of equal structure are one executable."""

    def __init__(
        self, step: Cut, program: Program, recomputed: frozenset[int], micro: MicroStep | None
    ) -> None:
        self._cut, self._graph, self._program, self._ops = step, step.graph, program, program.ops
        self._recomputed, self._micro = recomputed, micro
        self._functions: list[Function] = []
        self._known: dict[Hashable, int] = {}
        self._plan = update_plan(step)
        self._piece_texts: dict[Hashable, str | None] = {}
        self._swept = find_swept_updates(
            self._graph,
            program.values,
            self._plan.states,
            lambda op: op in self._large_updates or self._cut.roles[op] is Role.DUPLICATED,
            self._piece_text,
        )
        self._step_results = {*step.graph.outputs, *step.graph.replacements.values()}

    def schedule(self) -> ScheduledStep:
        """Return all calls, and the functions that they call."""
        graph, micro = self._graph, self._micro
        control = frozenset(op for op, role in enumerate(self._cut.roles) if role is Role.CONTROL)
        before = self._call(control, self._results(control, control))
        layers = tuple(self._schedule_layer(index) for index in range(len(self._cut.layers)))
        rounds = []
        for plan in self._plan.rounds:
            partial = [
                self._call(self._large_updates | set(ops), self._results(frozenset(ops), frozenset(ops)))
                for ops in plan.partial
            ]
            joined = frozenset(plan.joined)
            rounds.append(Round(tuple(partial), self._call(joined, self._results(joined, joined))))
        micro_batches = MicroBatches()
        if micro is not None:
            micro_batches = MicroBatches(
                count=micro.count,
                parts=tuple(sorted(graph.inputs)[position] for position in micro.cut_inputs),
                whole=dict(zip(graph.whole_inputs, micro.whole_inputs, strict=True)),
                number=graph.number,
                totals={graph.operands[op][0]: kind for op, kind in graph.totals.items()},
            )
        scheduled = Schedule(
            inputs=tuple(sorted(graph.inputs)),
            state={name: number for number, name in enumerate(self._program.state.values())},
            replacements=dict(graph.replacements),
            outputs=graph.outputs,
            values={},
            before=before,
            layers=layers,
            rounds=tuple(rounds),
            micro=micro_batches,
        )
        used = {number for call in scheduled.calls() for number in (*call.arguments, *call.results)}
        used |= {*scheduled.arguments, *scheduled.state.values()}
        values, types = self._program.values, graph.types
        # Types repeat, and reading a tensor type is slow: once per type.
        tensors = {types[number]: tensor_of(values[number]) for number in used}
        kinds = {kind: (dtype_name(tensor), tensor.get_shape()) for kind, tensor in tensors.items()}
        specs = {number: TensorSpec(str(number), *kinds[types[number]]) for number in sorted(used)}
        return ScheduledStep(replace(scheduled, values=specs), tuple(self._functions))

    def _schedule_layer(self, index: int) -> LayerCalls:
        """Return the calls of a layer and its update."""
        forward = frozenset(self._cut.layers[index].forward)
        backward = frozenset(self._cut.layers[index].backward)
        whole = forward | backward
        swept = {value for found in self._swept[index] for part in found.parts for value in part.results}
        whole_states = [value for value in self._plan.states[index] if value not in swept]
        update = self._call(self._large_updates, whole_states)
        sweeps = tuple(map(self._schedule_sweep, self._swept[index]))
        # The backward part of the last layer follows its forward part: one call, and no stored activations.
        if index == len(self._cut.layers) - 1:
            kept = (*self._results(whole, whole), *self._uncomputed_results())
            return LayerCalls(self._call(whole, kept), None, update, sweeps)
        # A recomputed backward part contains the forward part, so it reads only the input of the layer.
        is_recomputed = index in self._recomputed
        backward_ops = whole if is_recomputed else backward
        return LayerCalls(
            self._call(forward, self._results(forward, whole if is_recomputed else forward)),
            self._call(backward_ops, self._results(backward, backward_ops)),
            update,
            sweeps,
        )

    def _schedule_sweep(self, swept: SweptUpdates) -> Sweep:
        """Return the sweep over the tensors of equal updates."""
        first = swept.parts[0]
        number = self._add_function(swept.text, replace(first, in_pieces=True))
        arguments = tuple(
            (value,)
            if self._graph.is_small(value)
            else tuple(part.arguments[position] for part in swept.parts)
            for position, value in enumerate(first.arguments)
        )
        return Sweep(number, arguments, tuple(zip(*(part.results for part in swept.parts), strict=True)))

    def _piece_text(self, part: Function) -> str | None:
        """Return the text of a part in pieces, built once for parts of one structure."""
        seeds = [op.op_seed for op in random_ops(part, self._ops)]
        key = structure_key(part, self._graph), part.weights, *seeds
        if key not in self._piece_texts:
            values, like = self._program.values, self._program.function
            module = build_piece_module(part, self._graph, self._ops, values, like)
            self._piece_texts[key] = None if module is None else print_module(module)
        return self._piece_texts[key]

    @cached_property
    def _large_updates(self) -> frozenset[int]:
        """Ops of the update with large results, which are computed by each call that reads them."""
        return frozenset(
            op
            for op, role in enumerate(self._cut.roles)
            if role is Role.UPDATE and not self._graph.has_small_results(op)
        )

    def _results(self, ops: frozenset[int], inside: frozenset[int]) -> list[int]:
        """Return the values of some ops that ops outside read, or that the step returns."""
        return [
            value
            for op in sorted(ops)
            for value in self._graph.results[op]
            if value in self._step_results or not inside.issuperset(self._graph.users.get(value, ()))
        ]

    def _uncomputed_results(self) -> list[int]:
        """Return the values that the step returns and no call computes; the last layer returns them."""
        graph = self._graph
        return [
            value
            for value in dict.fromkeys((*graph.outputs, *graph.replacements.values()))
            if value not in graph.state
            and ((op := graph.producer.get(value)) is None or self._cut.roles[op] is Role.DUPLICATED)
        ]

    def _call(self, inside: frozenset[int], results: Sequence[int]) -> Call | None:
        """Return a call that computes some results, or None for no results."""
        if not results:
            return None
        part = extract_function(
            self._graph, lambda op: op in inside or self._cut.roles[op] is Role.DUPLICATED, results
        )
        number = self._add_function(structure_key(part, self._graph), part)
        keys = tuple([self._keys[op.seed, op.op_seed] for op in random_ops(part, self._ops)])
        return Call(number, part.arguments, keys, part.results)

    @cached_property
    def _keys(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Random keys by the seeds of the ops that draw numbers."""
        seeds = [(op.seed, op.op_seed) for op in self._ops if isinstance(op, SeededRandomOp)]
        return dict(zip(seeds, op_keys(seeds), strict=True))

    def _add_function(self, key: Hashable, part: Function) -> int:
        """Return the number of a function, added unless one with this key is known."""
        number = self._known.setdefault(key, len(self._functions))
        if number == len(self._functions):
            self._functions.append(part)
        return number


@dataclass(frozen=True)
class UpdateRound:
    """Ops of the update whose results are small.

    Attributes:
        partial: of each layer, those that read large values.
        joined: those that read only small ones.
    """

    partial: tuple[tuple[int, ...], ...]
    joined: tuple[int, ...]


@dataclass(frozen=True)
class UpdatePlan:
    """The update of a step.

    Attributes:
        rounds: in order.
        states: of each layer, the new values of its state that the update computes.
    """

    rounds: tuple[UpdateRound, ...]
    states: tuple[tuple[int, ...], ...]


def update_plan(step: Cut) -> UpdatePlan:
    """Plan the update of a step."""
    return _Planner(step).plan()


class _Planner:
    """Assigns ops of the update to rounds and layers."""

    def __init__(self, step: Cut) -> None:
        self._graph, self._roles, self._count = step.graph, step.roles, len(step.layers)
        self._layers: dict[int, int] = {}
        self._reads = Reads(step.graph, step.roles)
        self._layer_of = {
            op: index for index, layer in enumerate(step.layers) for op in (*layer.forward, *layer.backward)
        }

    def plan(self) -> UpdatePlan:
        """Return rounds and states."""
        round_of = self._assign_rounds()
        rounds = []
        for number in range(max(round_of.values(), default=-1) + 1):
            ops = [op for op, op_round in round_of.items() if op_round == number]
            partial = [(op, self._update_layer(op)) for op in ops if self._reads_large(op)]
            joined = tuple(op for op in ops if not self._reads_large(op))
            rounds.append(UpdateRound(self._by_layer(partial), joined))
        new = [value for value in self._graph.replacements.values() if self._is_large_update(value)]
        states = [(value, self._update_layer(self._graph.producer[value])) for value in new]
        return UpdatePlan(tuple(rounds), self._by_layer(states))

    def _by_layer(self, items: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        found: list[dict[int, None]] = [{} for _ in range(self._count)]
        for item, layer in items:
            found[layer][item] = None
        return tuple(map(tuple, found))

    def _assign_rounds(self) -> dict[int, int]:
        """Return the round of each op of the update with small results."""
        graph = self._graph
        rounds: dict[int, int] = {}
        # First round in which the results of an op are available.
        available: dict[int, int] = {}
        for op, role in enumerate(self._roles):
            if role is not Role.UPDATE:
                continue
            is_small = graph.has_small_results(op)
            is_joined = is_small and not self._reads_large(op)
            first = 0
            for producer in graph.producers(op):
                if producer in available:
                    # Only joined ops read a small value in the round that computes it.
                    waits = graph.has_small_results(producer) and not is_joined
                    first = max(first, available[producer] + waits)
            available[op] = first
            if is_small:
                rounds[op] = first
        return rounds

    def _update_layer(self, op: int) -> int:
        """Return the layer whose gradients arrive last of those that an op needs.

        An op that needs no gradients has the first layer that reads its state.
        """
        if op not in self._layers:
            values = self._sources(op)
            producers = (self._graph.producer.get(value) for value in values)
            gradients = [self._layer_of[producer] for producer in producers if producer in self._layer_of]
            states = [self._first_user[value] for value in values if value in self._first_user]
            self._layers[op] = min(gradients or states, default=0)
        return self._layers[op]

    def _sources(self, op: int) -> set[int]:
        """Return the values of other parts that an op reads, through large values of the update."""
        found: set[int] = set()
        pending, seen = list(self._graph.operands[op]), set[int]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            producer = self._graph.producer.get(value)
            if producer is not None and (
                self._is_large_update(value) or self._roles[producer] is Role.DUPLICATED
            ):
                pending += self._graph.operands[producer]
            else:
                found.add(value)
        return found

    @cached_property
    def _first_user(self) -> dict[int, int]:
        """For each state argument, the first layer whose forward part reads it."""
        found: dict[int, int] = {}
        for op in sorted(self._layer_of, key=self._layer_of.__getitem__):
            for value in self._reads.values(op) & self._graph.state:
                found.setdefault(value, self._layer_of[op])
        return found

    def _reads_large(self, op: int) -> bool:
        return not all(map(self._graph.is_small, self._graph.operands[op]))

    def _is_large_update(self, value: int) -> bool:
        producer = self._graph.producer.get(value)
        return (
            producer is not None
            and self._roles[producer] is Role.UPDATE
            and not self._graph.has_small_results(producer)
        )
