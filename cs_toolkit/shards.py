"""A step whose weights lie in several MemoryX processes: which part of its state and update each has.

Whole layers are shared out, the largest first, each to the process with the fewest bytes so far. Layers
whose updates read each other's state stay together. Small state lies everywhere, and everybody computes what
follows from it: schedules, loss scales, what clipping decides. For that all give each other what their
gradients contribute, so every number is that of one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cs_toolkit.schedule import Call, LayerCalls, Round, Schedule
from cs_toolkit.step import device_bytes
from cs_toolkit.traffic import Traffic, is_small, traffic

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """One process's part.

    Attributes:
        index: from 0; the first one sends small values to the wafer.
        count: of processes.
        schedule: with its state, its part of the update, and all calls of the wafer.
        traffic: between the wafer and it.
        given: for each round of the update the small values that it computes for the others.
        taken: for each round those that it needs of the others.
    """

    index: int
    count: int
    schedule: Schedule
    traffic: Traffic
    given: tuple[Numbers, ...]
    taken: tuple[Numbers, ...]


def shards(schedule: Schedule, count: int) -> tuple[Shard, ...]:
    """The parts of a step; fewer than `count` where there is less to share out."""
    home = _homes(schedule)
    places = _places(schedule, home, count)
    found = max(places.values(), default=0) + 1
    whole = traffic(schedule)
    return tuple(_shard(schedule, whole, index, found, home, places) for index in range(found))


def owner(parts: Sequence[Shard], number: int) -> int:
    """Which process reads and sends a state: of what all have the first one."""
    return next(part.index for part in parts if number in part.schedule.state.values())


def _homes(schedule: Schedule) -> dict[int, int]:
    """Of each large state the layer that changes it or reads it first; of small state nothing."""
    found: dict[int, int] = {}
    made = {number: index for index, layer in enumerate(schedule.layers) for number in _made(layer)}
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
    """The process of each layer."""
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
    made = {number for layer in layers for number in _made(layer)}
    elsewhere = {number for layer in schedule.layers for number in _made(layer)} - made

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


def _made(layer: LayerCalls) -> set[int]:
    return {number for update in layer.updates() for number in update.results}


def _results(calls: Iterable[Call | None]) -> Numbers:
    return tuple(dict.fromkeys(number for call in calls if call is not None for number in call.results))
