"""What MemoryX computes of a step: schedules before it, norms and new weights after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from cs_system.engine.functions import Function
from cs_system.memoryx.store import MappedTensors
from cs_toolkit.schedule import Call, Schedule
from cs_toolkit.traffic import Traffic, is_small

_COMBINED: Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], object]] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
}
"""How shares of micro-batches are combined: two of them, and where the result goes."""

Values = dict[int, np.ndarray]


class Memory:
    """State and gradients of a model, and the calls that change them.

    Args:
        schedule: Of the step.
        traffic: Of the schedule.
        functions: What its calls need, by number.
        directory: Where state and gradients lie.

    Attributes:
        calls_of_micro_batch: How many calls of the wafer compute one.

    Raises:
        StorageFullError: there is no room for them.
    """

    def __init__(
        self, schedule: Schedule, traffic: Traffic, functions: Mapping[int, Function], directory: Path
    ) -> None:
        self.schedule, self.traffic = schedule, traffic
        specs = schedule.values
        self.state = MappedTensors(directory, {number: specs[number] for number in schedule.state.values()})
        arriving = dict.fromkeys((*traffic.inputs, *(v for values in traffic.to_memory for v in values)))
        self.arrived = MappedTensors(directory, {number: specs[number] for number in arriving})
        self.small = frozenset(n for n in schedule.state.values() if is_small(specs[n]))
        self.calls_of_micro_batch = len(traffic.calls) // schedule.micro.count
        self._functions = functions
        self._updates = _update_calls(schedule)
        self._commits = _commits(schedule, self._updates)

    @property
    def nbytes(self) -> int:
        """Of state and gradients."""
        return self.state.nbytes + self.arrived.nbytes

    def before(self) -> Values:
        """Small values that a step begins with: state, and the schedules and scales that follow from it."""
        known = {number: np.array(self.state[number]) for number in self.small}
        if self.schedule.before is not None:
            self._run(self.schedule.before, known)
        return known

    def weights(self, call: int, known: Values) -> list[np.ndarray]:
        """What the wafer needs before a call, in the order of the traffic."""
        return [self._value(number, known) for number in self.traffic.to_wafer[call]]

    def add(self, numbers: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        """Takes what a further micro-batch gives: its share of a total, else the value itself."""
        for number, array in zip(numbers, arrays, strict=True):
            total = self.arrived[number]
            combine = _COMBINED.get(self.schedule.micro.totals.get(number, ""))
            if combine is None:
                np.copyto(total, array)
            else:
                combine(total, array, total)

    def update(self, known: Values, committed: Callable[[frozenset[int]], None]) -> list[np.ndarray]:
        """Computes the update of a step whose results have all arrived.

        Args:
            known: What `before` has given; gets all small values of the update.
            committed: Told which state has its new value, as soon as it has.

        Returns:
            What the step puts out of it, in the order of the traffic.
        """
        for step in self.schedule.rounds:
            for call in (*step.partial, step.joined):
                if call is not None:
                    self._run(call, known)
        answers = dict.fromkeys(self.traffic.answers)
        kept: Values = {}
        for call, commits in zip((None, *self._updates), self._commits, strict=True):
            if call is not None:
                self._run(call, known)
            kept.update((number, known[number]) for number in answers if number in known)
            self._commit(commits, known)
            committed(frozenset(old for old, _ in commits))
        return [kept[number] for number in answers]

    def _commit(self, commits: list[tuple[int, int]], known: Values) -> None:
        # State that another state is replaced by may be replaced itself.
        values = [
            np.array(self.state[new]) if new in self.state else self._value(new, known) for _, new in commits
        ]
        for (old, new), value in zip(commits, values, strict=True):
            np.copyto(self.state[old], value)
            if not is_small(self.schedule.values[old]):
                known.pop(new, None)

    def _value(self, number: int, known: Values) -> np.ndarray:
        if number in known:
            return known[number]
        return self.arrived[number] if number in self.arrived else self.state[number]

    def _run(self, call: Call, known: Values) -> None:
        function = self._functions[call.function]
        arguments = [self._value(number, known) for number in call.arguments]
        results = function(arguments, call.keys)
        # Waits for the call, whose arguments are memory that changes.
        known.update(zip(call.results, map(np.asarray, results), strict=True))


def _update_calls(schedule: Schedule) -> list[Call]:
    return [layer.update for layer in schedule.layers if layer.update is not None]


def _commits(schedule: Schedule, updates: list[Call]) -> list[list[tuple[int, int]]]:
    """Which state gets which value, before the update calls and after each: when nobody reads the old one."""
    made = {number: index for index, call in enumerate(updates, 1) for number in call.results}
    read = {number: index for index, call in enumerate(updates, 1) for number in call.arguments}
    sources = set(schedule.replacements.values()) & set(schedule.state.values())
    commits: list[list[tuple[int, int]]] = [[] for _ in range(len(updates) + 1)]
    for old, new in schedule.replacements.items():
        # Small state is read where the step has noted it before.
        last_read = 0 if is_small(schedule.values[old]) else read.get(old, 0)
        ready = max(made.get(new, 0), last_read)
        commits[len(updates) if old in sources or new in sources else ready].append((old, new))
    return commits
