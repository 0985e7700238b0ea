"""A step in layers, for weight streaming: schedule, traffic between wafer and MemoryX, and shards.

A step runs `before`, the forward parts in order, the backward parts in reverse order, then the rounds of the
update, and the update of each layer. Values are identified by numbers, among them the arguments of the step.

Compiler and system compute traffic and shards from the schedule with the same code, so neither is
transferred.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from cs_toolkit.errors import ToolkitError
from cs_toolkit.step import DtypeError, TensorSpec, device_bytes

Key = tuple[int, int]
Numbers = tuple[int, ...]

# Values up to this size go to all parts of the system and remain on the wafer for a whole step: learning
# rates, loss scales, sums of squares of a layer.
SMALL_BYTES = 64

# Limits of a schedule from an untrusted peer. A batch has no more samples, a device no larger tensor.
MAX_MICRO_BATCHES = 1 << 16
_MAX_TENSOR_BYTES = 1 << 48


class ScheduleError(ToolkitError):
    """A text is not a schedule, or the schedule is inconsistent."""


@dataclass(frozen=True)
class Call:
    """One call of a function.

    Attributes:
        function: index of the function.
        arguments: numbers of its arguments.
        keys: of its random ops, its last arguments, as pairs of unsigned 32-bit integers.
        results: numbers of its results.
    """

    function: int
    arguments: tuple[int, ...]
    keys: tuple[Key, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """Elementwise update of state: an element depends on elements at its index and on small values.

    The tensors are contiguous, and the function replaces them in blocks that fit a cache, whatever their
    shapes.

    Attributes:
        function: index of the function; its large arguments and its results are one-dimensional blocks of the
            same length.
        taken: for each large argument the numbers of the tensors, for a small value its own number.
        made: for each result the numbers of the new values, in the order of the tensors.
    """

    function: int
    taken: tuple[tuple[int, ...], ...]
    made: tuple[tuple[int, ...], ...]

    @property
    def arguments(self) -> tuple[int, ...]:
        """Numbers of all arguments."""
        return tuple(number for numbers in self.taken for number in numbers)

    @property
    def results(self) -> tuple[int, ...]:
        """Numbers of all results."""
        return tuple(number for numbers in self.made for number in numbers)


Update = Call | Sweep
"""Computes new values of state."""


@dataclass(frozen=True)
class LayerCalls:
    """The calls of one layer.

    Attributes:
        forward: its forward part, in the last layer with its backward part; None if it has no results.
        backward: None in the last layer, and without training.
        update: of state that needs whole tensors; None for none.
        sweeps: of all other state.
    """

    forward: Call | None
    backward: Call | None
    update: Call | None
    sweeps: tuple[Sweep, ...] = ()

    def updates(self) -> Iterator[Update]:
        """Yield the updates of its state, in order."""
        yield from _present((self.update,))
        yield from self.sweeps


@dataclass(frozen=True)
class Round:
    """Small values of the update that depend on all gradients, such as their norm.

    Attributes:
        partial: contribution of each layer's gradients; None for none.
        joined: combines the contributions; None for nothing.
    """

    partial: tuple[Call | None, ...]
    joined: Call | None


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of a batch; `before` and the update are computed once per step.

    Attributes:
        count: of micro-batches; number *i* has the samples from `i * size` on.
        parts: numbers of the tensors of a batch that are divided.
        whole: position in the batch of each tensor that is not divided, by its number.
        number: of the value that is the index of the current micro-batch; None if it is not used.
        totals: how partial results of micro-batches are combined, by their numbers: "sum", "min" or "max".
    """

    count: int = 1
    parts: tuple[int, ...] = ()
    whole: dict[int, int] = field(default_factory=dict)
    number: int | None = None
    totals: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """A step in layers.

    Attributes:
        inputs: numbers of the tensors of a batch, or of a micro-batch, in order.
        state: number of each state tensor, by its name.
        replacements: number of the new value, by the number of each state tensor that the step replaces.
        outputs: numbers of the outputs, in the order of the interface.
        values: name (the number), dtype and shape of every argument and result of a call.
        before: small values, such as learning rates and loss scales; None for none.
        layers: in the order of the forward pass.
        rounds: of the update, before any layer is updated.
        micro: micro-batches of the step.
    """

    inputs: tuple[int, ...]
    state: dict[str, int]
    replacements: dict[int, int]
    outputs: tuple[int, ...]
    values: dict[int, TensorSpec]
    before: Call | None
    layers: tuple[LayerCalls, ...]
    rounds: tuple[Round, ...]
    micro: MicroBatches = field(default_factory=MicroBatches)

    @property
    def arguments(self) -> tuple[int, ...]:
        """Numbers of the values of a batch: divided and whole tensors, and the index of a micro-batch."""
        number = () if self.micro.number is None else (self.micro.number,)
        return (*self.inputs, *self.micro.whole, *number)

    def parts_of(self, number: int) -> int:
        """Return the number of parts into which a tensor of a batch is divided."""
        return self.micro.count if number in self.micro.parts else 1

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Size of every value on the device in bytes."""
        return {number: device_bytes((spec,)) for number, spec in self.values.items()}

    def wafer_calls(self) -> Iterator[Call]:
        """Yield the calls of the wafer for each micro-batch, in order."""
        yield from _present(layer.forward for layer in self.layers)
        yield from _present(layer.backward for layer in reversed(self.layers))

    def update_calls(self) -> Iterator[Update]:
        """Yield the calls of MemoryX after all gradients have arrived, in order."""
        for step in self.rounds:
            yield from _present((*step.partial, step.joined))
        for layer in self.layers:
            yield from layer.updates()

    def sweeps(self) -> Iterator[Sweep]:
        """Yield the blocked updates of MemoryX, in order."""
        for layer in self.layers:
            yield from layer.sweeps

    def memory_calls(self) -> Iterator[Update]:
        """Yield all calls of MemoryX, in order."""
        yield from _present((self.before,))
        yield from self.update_calls()

    def calls(self) -> Iterator[Update]:
        """Yield all calls of a step, in order."""
        yield from _present((self.before,))
        yield from self.wafer_calls()
        yield from self.update_calls()

    def to_json(self) -> str:
        """Serialize the schedule; equal schedules have equal texts."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        own["values"] = {number: [spec.dtype, spec.shape] for number, spec in self.values.items()}
        return json.dumps(own, separators=(",", ":"), default=vars)


# Errors of code that reads JSON of another form than expected.
_INVALID = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def schedule_from_json(text: str) -> Schedule:
    """Parse the text of `Schedule.to_json`.

    Raises:
        ScheduleError: the text is not a schedule, or a call reads a value before it is computed.
    """
    try:
        schedule = _schedule(json.loads(text))
        _check(schedule)
        _check_values(schedule)
    except (*_INVALID, RecursionError, DtypeError) as error:
        raise ScheduleError(
            f"this is not a schedule of a step in layers ({error!r}); compile the step again"
        ) from error
    return schedule


def _present(calls: Any) -> Iterator[Call]:
    return (call for call in calls if call is not None)


def _schedule(fields: dict[str, Any]) -> Schedule:
    layers = tuple(
        LayerCalls(
            _call(layer["forward"]),
            _call(layer["backward"]),
            _call(layer["update"]),
            tuple(map(_sweep, layer["sweeps"])),
        )
        for layer in fields["layers"]
    )
    rounds = tuple(
        Round(tuple(map(_call, step["partial"])), _call(step["joined"])) for step in fields["rounds"]
    )
    if any(len(step.partial) != len(layers) for step in rounds):
        raise ValueError(f"a round has not one part for each of the {len(layers)} layers")
    return Schedule(
        inputs=_numbers(fields["inputs"]),
        state=dict(zip(fields["state"], _numbers(fields["state"].values()), strict=True)),
        replacements={int(old): new for old, new in fields["replacements"].items()},
        outputs=_numbers(fields["outputs"]),
        values={
            int(number): TensorSpec(str(int(number)), dtype, _numbers(shape))
            for number, (dtype, shape) in fields["values"].items()
        },
        before=_call(fields["before"]),
        layers=layers,
        rounds=rounds,
        micro=_micro_batches(**fields["micro"]),
    )


def _numbers(values: Iterable[Any]) -> Numbers:
    found = tuple(values)
    if not all(type(number) is int for number in found):  # not isinstance: True is not a number here
        raise TypeError(f"got {reprlib.repr(found)}, expected whole numbers")
    return found


def _micro_batches(
    count: int, parts: list[int], whole: dict[str, int], number: int | None, totals: dict[str, str]
) -> MicroBatches:
    if not 1 <= count <= MAX_MICRO_BATCHES or not set(totals.values()) <= {"sum", "min", "max"}:
        raise ValueError(f"{count} micro-batches, combined by {reprlib.repr(set(totals.values()))}")
    _numbers((count, *whole.values(), *(() if number is None else (number,))))
    return MicroBatches(
        count,
        _numbers(parts),
        {int(value): position for value, position in whole.items()},
        number,
        {int(value): kind for value, kind in totals.items()},
    )


def _call(fields: dict[str, Any] | None) -> Call | None:
    if fields is None:
        return None
    left_right = tuple((int(left), int(right)) for left, right in fields["keys"])
    (function,) = _numbers([fields["function"]])
    return Call(function, _numbers(fields["arguments"]), left_right, _numbers(fields["results"]))


def _sweep(fields: dict[str, Any]) -> Sweep:
    (function,) = _numbers([fields["function"]])
    taken, made = (tuple(map(_numbers, fields[name])) for name in ("taken", "made"))
    if not all((*taken, *made)):
        raise ValueError(f"function {function} has an argument or a result without tensors")
    return Sweep(function, taken, made)


def _check_values(schedule: Schedule) -> None:
    """Check that all values are known, and that those which are stored together can be.

    Raises:
        ValueError, DtypeError: they do not.
    """
    for spec in schedule.values.values():
        if any(size < 0 for size in spec.shape) or device_bytes((spec,)) > _MAX_TENSOR_BYTES:
            raise ValueError(f"value {spec.name} has the shape {reprlib.repr(spec.shape)}")
    state, new = set(schedule.state.values()), _numbers(schedule.replacements.values())
    used = {*state, *schedule.replacements, *new, *schedule.outputs}
    for call in schedule.calls():
        used.update(call.arguments, call.results)
    unknown = used - schedule.values.keys()
    if unknown:
        raise ValueError(f"value {min(unknown)} has no type")
    if not state.issuperset(schedule.replacements):
        raise ValueError(f"value {min(schedule.replacements.keys() - state)} is replaced, and is no state")
    made = [number for layer in schedule.layers for number in _update_results(layer)]
    if len(made) != len(set(made)):
        raise ValueError("two layers compute the same new value of state")
    from_wafer = {value for call in schedule.wafer_calls() for value in call.results}
    for sweep in schedule.sweeps():
        for numbers in sweep.taken:
            if any(0 < len(group.intersection(numbers)) < len(set(numbers)) for group in (state, from_wafer)):
                raise ValueError(f"the tensors {reprlib.repr(numbers)} are not all of one kind")
        if not set(sweep.results) <= set(new):
            raise ValueError(f"function {sweep.function} computes more than new values of state")


def _check(schedule: Schedule) -> None:
    known = {*schedule.arguments, *schedule.state.values()}
    for call in schedule.calls():
        missing = [number for number in call.arguments if number not in known]
        if missing:
            raise ScheduleError(
                f"function {call.function} reads value {missing[0]} before it is computed; "
                f"compile the step again"
            )
        known |= set(call.results)
    lost = {*schedule.outputs, *schedule.replacements.values()} - known
    if lost:
        raise ScheduleError(
            f"no function computes value {min(lost)}, an output of the step; compile the step again"
        )


@dataclass(frozen=True)
class Traffic:
    """Transfers between wafer and MemoryX, as numbers of values in the order of their transfer.

    Attributes:
        calls: of the wafer, for all micro-batches in sequence.
        to_wafer: for each call, the values from MemoryX before it.
        to_memory: for each call, the results that go to MemoryX.
        inputs: tensors of the batch that MemoryX needs.
        answers: outputs of the step that MemoryX computes in the update.
        dropped: for each call, the values that the wafer does not need after it.
    """

    calls: tuple[Call, ...]
    to_wafer: tuple[tuple[int, ...], ...]
    to_memory: tuple[tuple[int, ...], ...]
    inputs: tuple[int, ...]
    answers: tuple[int, ...]
    dropped: tuple[tuple[int, ...], ...]


def traffic(schedule: Schedule) -> Traffic:
    """Compute the traffic of a step in layers."""
    once = tuple(schedule.wafer_calls())
    calls = once * schedule.micro.count
    inputs, state = set(schedule.arguments), set(schedule.state.values())
    on_wafer = {value for call in calls for value in call.results} - inputs - state
    update = list(schedule.update_calls())
    updated = {value for call in update for value in call.results}
    at_memory = {value for call in update for value in call.arguments} | set(schedule.replacements.values())
    sent = at_memory & on_wafer
    answers = tuple(value for value in dict.fromkeys(schedule.outputs) if value in updated)
    to_wafer = _to_wafer(schedule, calls, inputs | on_wafer, set(answers))
    return Traffic(
        calls=calls,
        to_wafer=to_wafer,
        to_memory=tuple(
            tuple(dict.fromkeys(value for value in call.results if value in sent)) for call in calls
        ),
        inputs=tuple(value for value in schedule.arguments if value in at_memory),
        answers=answers,
        dropped=_drop_values(schedule, once, to_wafer),
    )


def is_small(spec: TensorSpec) -> bool:
    """Return True if a value goes to every part of the system."""
    return device_bytes((spec,)) <= SMALL_BYTES


def _to_wafer(
    schedule: Schedule, calls: Sequence[Call], on_wafer: set[int], answers: set[int]
) -> tuple[tuple[int, ...], ...]:
    """Send weights with every call that reads them; small values and outputs only once."""
    kept: set[int] = set()
    found = []
    for index, call in enumerate(calls):
        wanted = [value for value in call.arguments if value not in on_wafer]
        if index == 0:
            wanted += [value for value in schedule.outputs if value not in on_wafer | answers]
        coming = tuple(dict.fromkeys(value for value in wanted if value not in kept))
        kept |= {value for value in coming if is_small(schedule.values[value])} | set(schedule.outputs)
        found.append(coming)
    return tuple(found)


def _drop_values(
    schedule: Schedule, calls: Sequence[Call], to_wafer: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Drop a value after its last reader in the micro-batch, or in the last one if it was sent only once."""
    last: dict[int, int] = {}
    for index, call in enumerate(calls):
        last.update(dict.fromkeys((*call.arguments, *call.results), index))
    kept = {*schedule.outputs, *schedule.arguments}
    made = {value for call in calls for value in call.results}
    dropped: list[dict[int, None]] = [{} for _ in to_wafer]
    rest = len(to_wafer) - len(calls)
    for value, index in last.items():
        if value not in kept:
            for first in range(0 if value in made else rest, len(to_wafer), max(len(calls), 1)):
                dropped[first + index][value] = None
    for index, coming in enumerate(to_wafer):
        weights = (value for value in coming if value not in kept and not is_small(schedule.values[value]))
        dropped[index].update(dict.fromkeys(weights))
    return tuple(tuple(values) for values in dropped)


@dataclass(frozen=True)
class Shard:
    """The part of one MemoryX process in the state and the update of a step.

    Attributes:
        index: from 0; process 0 sends small values to the wafer.
        count: number of processes.
        schedule: with the state and the updates of this process, and all calls of the wafer.
        traffic: between the wafer and this process.
        given: for each round of the update, the small values that this process computes for the others.
        taken: for each round, those that it needs from the others.
    """

    index: int
    count: int
    schedule: Schedule
    traffic: Traffic
    given: tuple[Numbers, ...]
    taken: tuple[Numbers, ...]


def shards(schedule: Schedule, count: int) -> tuple[Shard, ...]:
    """Divide a step into shards, at most `count` and as many as have state."""
    home = _homes(schedule)
    places = _places(schedule, home, count)
    found = max(places.values(), default=0) + 1
    whole = traffic(schedule)
    return tuple(_shard(schedule, whole, index, found, home, places) for index in range(found))


def owner(parts: Sequence[Shard], number: int) -> int:
    """Return the process that reads and sends a state; the first one for state that all have."""
    return next(part.index for part in parts if number in part.schedule.state.values())


def _homes(schedule: Schedule) -> dict[int, int]:
    """Return the layer of each large state: the one that updates it, or reads it first."""
    found: dict[int, int] = {}
    made = {number: index for index, layer in enumerate(schedule.layers) for number in _update_results(layer)}
    state = [number for number in schedule.state.values() if not is_small(schedule.values[number])]
    for old, new in schedule.replacements.items():
        if new in made:
            found[old] = made[new]
    for index, layer in enumerate(schedule.layers):
        reads = [call for call in (layer.forward, layer.backward, *layer.updates()) if call is not None]
        for number in (number for call in reads for number in call.arguments):
            found.setdefault(number, index)
    return {number: found.get(number, 0) for number in state}


def _places(schedule: Schedule, home: Mapping[int, int], count: int) -> dict[int, int]:
    """Return the process of each layer, with balanced sizes of state."""
    group = list(range(len(schedule.layers)))

    def join(layers: Iterable[int]) -> None:
        wanted = {group[layer] for layer in layers}
        group[:] = [min(wanted) if at in wanted else at for at in group]

    for index, layer in enumerate(schedule.layers):
        partial = [step.partial[index] for step in schedule.rounds]
        calls = [call for call in (*layer.updates(), *partial) if call is not None]
        join([index, *(home[number] for call in calls for number in call.arguments if number in home)])
    for old, new in schedule.replacements.items():
        join(home[number] for number in (old, new) if number in home)
    weight = dict.fromkeys(group, 0)
    for number, at in home.items():
        weight[group[at]] += device_bytes((schedule.values[number],))
    loads = [0] * max(1, min(count, sum(map(bool, weight.values()))))
    places: dict[int, int] = {}
    for first in sorted(weight, key=lambda first: (-weight[first], first)):
        places[first] = loads.index(min(loads))
        loads[places[first]] += weight[first]
    return {layer: places[group[layer]] for layer in range(len(group))}


def _shard(
    schedule: Schedule,
    whole: Traffic,
    index: int,
    count: int,
    home: Mapping[int, int],
    places: Mapping[int, int],
) -> Shard:
    def is_here(number: int) -> bool:
        return places[home[number]] == index if number in home else index == 0

    mine = [layer for layer in range(len(schedule.layers)) if places[layer] == index]
    layers = tuple(
        layer if at in mine else LayerCalls(layer.forward, layer.backward, None)
        for at, layer in enumerate(schedule.layers)
    )
    rounds = tuple(
        Round(tuple(call if at in mine else None for at, call in enumerate(step.partial)), step.joined)
        for step in schedule.rounds
    )
    state = {name: n for name, n in schedule.state.items() if n not in home or is_here(n)}
    replacements = {old: new for old, new in schedule.replacements.items() if old in state.values()}
    part = replace(schedule, state=state, replacements=replacements, layers=layers, rounds=rounds)
    needed = {number for call in part.update_calls() for number in call.arguments}
    needed |= set(replacements.values())
    made = {number for layer in layers for number in _update_results(layer)}
    elsewhere = {number for layer in schedule.layers for number in _update_results(layer)} - made

    def kept(numbers: Iterable[int], wanted: Iterable[int]) -> Numbers:
        return tuple(number for number in numbers if number in wanted)

    return Shard(
        index,
        count,
        part,
        replace(
            whole,
            to_wafer=tuple(tuple(filter(is_here, numbers)) for numbers in whole.to_wafer),
            to_memory=tuple(kept(numbers, needed) for numbers in whole.to_memory),
            inputs=kept(whole.inputs, needed),
            answers=tuple(n for n in whole.answers if n in made or (index == 0 and n not in elsewhere)),
        ),
        tuple(_results(step.partial) for step in rounds),
        tuple(
            kept(_results(step.partial), set(_results(step.partial)) - set(_results(own.partial)))
            for step, own in zip(schedule.rounds, rounds, strict=True)
        ),
    )


def _update_results(layer: LayerCalls) -> set[int]:
    return {number for update in layer.updates() for number in update.results}


def _results(calls: Iterable[Call | None]) -> Numbers:
    return tuple(dict.fromkeys(number for call in calls if call is not None for number in call.results))
