"""The order in which a step in layers is computed, and by which functions: compiler and system agree on it.

A step runs `before`, the forward parts in order, the backward parts in the opposite order, then the rounds of
the update and the update of each layer. Values go from one call to another by numbers; arguments of the step
are values, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from cs_toolkit.errors import ToolkitError
from cs_toolkit.step import TensorSpec, device_bytes

Key = tuple[int, int]

_CURE = "compile the step again"


class ScheduleError(ToolkitError):
    """A text that is no schedule, or one that contradicts itself."""


@dataclass(frozen=True)
class Call:
    """One use of a function.

    Attributes:
        function: which one.
        arguments: numbers of the values that go in.
        keys: of the random ops in it, its last arguments, as pairs of unsigned 32-bit integers.
        results: numbers of the values that come out.
    """

    function: int
    arguments: tuple[int, ...]
    keys: tuple[Key, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """New values of state, each element of which follows from those at its place and from small values.

    Its function takes a piece of as many elements as a cache holds, whatever the shapes of the tensors: they
    lie one behind the other, and are replaced piece by piece.

    Attributes:
        function: which one; its large arguments and its results have one dimension, and one length.
        taken: for each argument the numbers of the tensors, as many for each; of a small value its own.
        made: for each result the numbers of the new values, in the order of the tensors.
    """

    function: int
    taken: tuple[tuple[int, ...], ...]
    made: tuple[tuple[int, ...], ...]

    @property
    def arguments(self) -> tuple[int, ...]:
        """Numbers of all that goes in."""
        return tuple(number for numbers in self.taken for number in numbers)

    @property
    def results(self) -> tuple[int, ...]:
        """Numbers of all that comes out."""
        return tuple(number for numbers in self.made for number in numbers)


Update = Call | Sweep
"""What computes new values of state."""


@dataclass(frozen=True)
class LayerCalls:
    """The calls of one layer.

    Attributes:
        forward: its forward part, in the last layer its backward part as well; None where it gives nothing.
        backward: None in the last layer, and where nothing is trained.
        update: new values of its state that need whole tensors, None where it has none.
        sweeps: all other new values of its state.
    """

    forward: Call | None
    backward: Call | None
    update: Call | None
    sweeps: tuple[Sweep, ...] = ()

    def updates(self) -> Iterator[Update]:
        """What computes new values of its state, in order."""
        yield from _present((self.update,))
        yield from self.sweeps


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
class MicroBatches:
    """In which parts a batch goes through the layers; `before` and the update are computed once a step.

    Attributes:
        count: of the parts; micro-batch *i* has the samples from `i * size` on.
        parts: numbers of the tensors of a batch that are cut.
        whole: for the numbers of tensors of the whole batch, their positions among those of a batch.
        number: of the value that says which micro-batch is computed, from 0; None where nobody asks.
        totals: for the numbers of what the wafer computes in shares, how they are combined: "sum", "min" or
            "max".
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
        inputs: numbers of the tensors of a batch, in their order; of a micro-batch where there are several.
        state: number of each state tensor, by its name.
        replacements: for the number of each state tensor that the step replaces, that of its new value.
        outputs: numbers of what the step gives, in the order of its interface.
        values: name (the number), dtype and shape of every value that goes into a call or comes out of one.
        before: small values of schedules and scales; None without any.
        layers: in the order of the forward pass.
        rounds: of the update, before any layer is updated.
        micro: the parts in which a batch goes through the layers.
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
        """Numbers of what comes with a batch: its tensors, in parts and whole, and the number of a part."""
        number = () if self.micro.number is None else (self.micro.number,)
        return (*self.inputs, *self.micro.whole, *number)

    def parts_of(self, number: int) -> int:
        """In how many parts a tensor of a batch goes through the layers."""
        return self.micro.count if number in self.micro.parts else 1

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Bytes of every value on the device."""
        return {number: device_bytes((spec,)) for number, spec in self.values.items()}

    def wafer_calls(self) -> Iterator[Call]:
        """What the wafer computes for each micro-batch, in its order."""
        yield from _present(layer.forward for layer in self.layers)
        yield from _present(layer.backward for layer in reversed(self.layers))

    def update_calls(self) -> Iterator[Update]:
        """What MemoryX computes when all gradients have come, in its order."""
        for step in self.rounds:
            yield from _present((*step.partial, step.joined))
        for layer in self.layers:
            yield from layer.updates()

    def sweeps(self) -> Iterator[Sweep]:
        """What MemoryX computes piece by piece, in its order."""
        for layer in self.layers:
            yield from layer.sweeps

    def memory_calls(self) -> Iterator[Update]:
        """All that MemoryX computes, in its order."""
        yield from _present((self.before,))
        yield from self.update_calls()

    def calls(self) -> Iterator[Update]:
        """All calls of a step in their order."""
        yield from _present((self.before,))
        yield from self.wafer_calls()
        yield from self.update_calls()

    def to_json(self) -> str:
        """As text; equal schedules give equal texts."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        own["values"] = {number: [spec.dtype, spec.shape] for number, spec in self.values.items()}
        return json.dumps(own, separators=(",", ":"), default=vars)


def schedule_from_json(text: str) -> Schedule:
    """The inverse of `Schedule.to_json`.

    Raises:
        ScheduleError: the text is no schedule, or a call reads a value that nothing has made before it.
    """
    try:
        schedule = _schedule(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise ScheduleError(
            f"this is no schedule of a step in layers ({error!r}); compile the step again"
        ) from error
    _check(schedule)
    return schedule


def _present(calls: Any) -> Iterator[Call]:
    return (call for call in calls if call is not None)


def _schedule(fields: dict[str, Any]) -> Schedule:
    return Schedule(
        inputs=tuple(fields["inputs"]),
        state=dict(fields["state"]),
        replacements={int(old): new for old, new in fields["replacements"].items()},
        outputs=tuple(fields["outputs"]),
        values={
            int(number): TensorSpec(number, dtype, tuple(shape))
            for number, (dtype, shape) in fields["values"].items()
        },
        before=_call(fields["before"]),
        layers=tuple(
            LayerCalls(
                _call(layer["forward"]),
                _call(layer["backward"]),
                _call(layer["update"]),
                tuple(map(_sweep, layer["sweeps"])),
            )
            for layer in fields["layers"]
        ),
        rounds=tuple(
            Round(tuple(map(_call, step["partial"])), _call(step["joined"])) for step in fields["rounds"]
        ),
        micro=_micro_batches(**fields["micro"]),
    )


def _micro_batches(
    count: int, parts: list[int], whole: dict[str, int], number: int | None, totals: dict[str, str]
) -> MicroBatches:
    if count < 1 or not set(totals.values()) <= {"sum", "min", "max"}:
        raise ValueError(f"{count} micro-batches, combined by {set(totals.values())}")
    return MicroBatches(
        count,
        tuple(parts),
        {int(value): position for value, position in whole.items()},
        number,
        {int(value): kind for value, kind in totals.items()},
    )


def _call(fields: dict[str, Any] | None) -> Call | None:
    if fields is None:
        return None
    left_right = tuple((int(left), int(right)) for left, right in fields["keys"])
    return Call(int(fields["function"]), tuple(fields["arguments"]), left_right, tuple(fields["results"]))


def _sweep(fields: dict[str, Any]) -> Sweep:
    return Sweep(
        int(fields["function"]), tuple(map(tuple, fields["taken"])), tuple(map(tuple, fields["made"]))
    )


def _check(schedule: Schedule) -> None:
    known = {*schedule.arguments, *schedule.state.values()}
    for call in schedule.calls():
        missing = [number for number in call.arguments if number not in known]
        if missing:
            raise ScheduleError(
                f"function {call.function} reads value {missing[0]} before it is made; compile the step again"
            )
        known |= set(call.results)
    lost = {*schedule.outputs, *schedule.replacements.values()} - known
    if lost:
        raise ScheduleError(
            f"no function makes value {min(lost)}, which the step gives; compile the step again"
        )
