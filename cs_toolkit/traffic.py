"""What goes between the wafer and MemoryX in a step.

It follows from the schedule, so both sides agree on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cs_toolkit.schedule import Call, Schedule
from cs_toolkit.step import TensorSpec, device_bytes

SMALL_BYTES = 64
"""Values up to this size go anywhere, and stay on the wafer for a whole step: schedules, loss scales, sums of
a layer's squares."""


@dataclass(frozen=True)
class Traffic:
    """Numbers of values, in the order in which they travel.

    Attributes:
        calls: what the wafer computes, in its order, for one micro-batch after the other.
        to_wafer: for each of these calls what comes from MemoryX before it.
        to_memory: for each of them which of its results go to MemoryX.
        inputs: tensors of the batch that MemoryX needs.
        answers: what the step puts out of what MemoryX computes in the update.
        dropped: for each call the values that the wafer needs no longer after it.
    """

    calls: tuple[Call, ...]
    to_wafer: tuple[tuple[int, ...], ...]
    to_memory: tuple[tuple[int, ...], ...]
    inputs: tuple[int, ...]
    answers: tuple[int, ...]
    dropped: tuple[tuple[int, ...], ...]


def traffic(schedule: Schedule) -> Traffic:
    """The traffic of a step in layers."""
    once = tuple(schedule.wafer_calls())
    calls = once * schedule.micro.count
    inputs, state = set(schedule.arguments), set(schedule.state.values())
    on_wafer = {value for call in calls for value in call.results} - inputs - state
    update = list(schedule.update_calls())
    updated = {value for call in update for value in call.results}
    at_memory = {value for call in update for value in call.arguments} | set(schedule.replacements.values())
    answers = tuple(value for value in dict.fromkeys(schedule.outputs) if value in updated)
    to_wafer = _to_wafer(schedule, calls, inputs | on_wafer, set(answers))
    return Traffic(
        calls=calls,
        to_wafer=to_wafer,
        to_memory=tuple(_first(call.results, at_memory & on_wafer) for call in calls),
        inputs=tuple(value for value in schedule.arguments if value in at_memory),
        answers=answers,
        dropped=_dropped(schedule, once, to_wafer),
    )


def is_small(spec: TensorSpec) -> bool:
    """Whether a value lies on every part of the system."""
    return device_bytes((spec,)) <= SMALL_BYTES


def _to_wafer(
    schedule: Schedule, calls: Sequence[Call], there: set[int], answers: set[int]
) -> tuple[tuple[int, ...], ...]:
    """Weights come with every call that reads them, small values and what is only put out once."""
    kept: set[int] = set()
    found = []
    for index, call in enumerate(calls):
        wanted = [value for value in call.arguments if value not in there]
        if index == 0:
            wanted += [value for value in schedule.outputs if value not in there | answers]
        coming = tuple(dict.fromkeys(value for value in wanted if value not in kept))
        kept |= {value for value in coming if is_small(schedule.values[value])} | set(schedule.outputs)
        found.append(coming)
    return tuple(found)


def _dropped(
    schedule: Schedule, calls: Sequence[Call], to_wafer: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """A value of a micro-batch goes with its last reader there, what came once with that of all."""
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


def _first(values: Iterable[int], wanted: set[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(value for value in values if value in wanted))
