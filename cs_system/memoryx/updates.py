"""What MemoryX computes of a step: schedules before it, norms and new weights after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cs_system.engine.executable import Executables, Function, OneDevice
from cs_system.memoryx.layout import layouts, replaced_by
from cs_system.memoryx.store import MappedTensors
from cs_system.memoryx.sweeps import PieceFunction, PreparedSweep
from cs_toolkit.schedule import Call, Schedule, Sweep
from cs_toolkit.shards import Shard
from cs_toolkit.traffic import is_small

Values = dict[int, np.ndarray]
Exchange = Callable[[int, list[np.ndarray]], list[np.ndarray]]
Changes = Callable[[frozenset[int]], None]


class Memory:
    """State and gradients of a model, and the calls that change them.

    Args:
        shard: Of the step that is here.
        functions: What its calls need, by number.
        pieces: What its sweeps need, by number.
        directory: Where state and gradients lie.
        threads: That compute, each by itself: where functions used several themselves, they would wait for
            each other (a fifth of the rate of sweeps).

    Raises:
        StorageFullError: there is no room for them.
    """

    def __init__(
        self,
        shard: Shard,
        functions: Mapping[int, Function],
        pieces: Mapping[int, PieceFunction],
        directory: Path,
        threads: int,
    ) -> None:
        self.shard, self.schedule, self.traffic = shard, shard.schedule, shard.traffic
        schedule = self.schedule
        state, arrived = layouts(shard)
        self.state = MappedTensors.in_directory(directory, state)
        self.arrived = MappedTensors.in_directory(directory, arrived)
        self.small = frozenset(n for n in schedule.state.values() if is_small(schedule.values[n]))
        self._functions = functions
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "memoryx update")
        self._updates = [
            self._prepared(update, pieces[update.function]) if isinstance(update, Sweep) else update
            for layer in schedule.layers
            for update in layer.updates()
        ]
        self._commits = _commits(schedule)

    def close(self) -> None:
        """Ends the threads, after what they do, and closes the files."""
        self._pool.shutdown()
        self.state.close()
        self.arrived.close()

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

    def values(self, numbers: Sequence[int], known: Values) -> list[np.ndarray]:
        """What the wafer needs, some of it in `known`, which `before` has given."""
        return [self._value(number, known) for number in numbers]

    def update(
        self, known: Values, exchange: Exchange, changing: Changes, changed: Changes
    ) -> list[np.ndarray]:
        """Computes the update of a step whose results have all arrived.

        Args:
            known: What `before` has given; gets all small values of the update.
            exchange: Gives the others what this part contributes to a round, and gets what they do; not
                called where there are no others.
            changing: Told which state is about to change; may wait.
            changed: Told which state has its new value, as soon as it has.

        Returns:
            What the step puts out of it, in the order of the traffic.
        """
        for index, step in enumerate(self.schedule.rounds):
            partial = [call for call in step.partial if call is not None]
            for found in list(self._pool.map(lambda call: self._results(call, known), partial)):
                known.update(found)
            if self.shard.count > 1:
                given = [known[number] for number in self.shard.given[index]]
                known.update(zip(self.shard.taken[index], exchange(index, given), strict=True))
            if step.joined is not None:
                self._run(step.joined, known)
        answers = dict.fromkeys(self.traffic.answers)
        kept: Values = {}
        for update, commits in zip((None, *self._updates), self._commits, strict=True):
            if isinstance(update, PreparedSweep):
                changing(update.replaced)
                update.run(known)
                changed(update.replaced)
            elif update is not None:
                self._run(update, known)
            kept.update((number, known[number]) for number in answers if number in known)
            replaced = frozenset(old for old, _ in commits)
            changing(replaced)
            self._commit(commits, known)
            changed(replaced)
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

    def _prepared(self, sweep: Sweep, function: PieceFunction) -> PreparedSweep:
        old = replaced_by(self.schedule, sweep)
        taken = [
            None if is_small(self.schedule.values[numbers[0]]) else self._column(numbers)
            for numbers in sweep.taken
        ]
        state = frozenset(number for numbers in old for number in numbers)
        targets = [self._column(numbers) for numbers in old]
        return PreparedSweep(sweep, function, taken, targets, state, (self._pool, self._threads))

    def _column(self, numbers: tuple[int, ...]) -> np.ndarray:
        return (self.arrived if numbers[0] in self.arrived else self.state).column(numbers)

    def _run(self, call: Call, known: Values) -> None:
        known.update(self._results(call, known))

    def _results(self, call: Call, known: Values) -> Values:
        function = self._functions[call.function]
        arguments = [self._value(number, known) for number in call.arguments]
        results = function(arguments, call.keys)
        # Waits for the call, whose arguments are memory that changes.
        return dict(zip(call.results, map(np.asarray, results), strict=True))


def compiled_functions(
    schedule: Schedule, executables: Executables
) -> tuple[dict[int, Function], dict[int, PieceFunction]]:
    """What the calls of a step at MemoryX need, and what its sweeps need, by number.

    Raises:
        ExecutableError: bytes are no executable, or one that cannot run here.
    """
    swept = {sweep.function for sweep in schedule.sweeps()}
    functions = {n: Function(*e, OneDevice()) for n, e in executables.items() if n not in swept}
    return functions, {n: PieceFunction(*e) for n, e in executables.items() if n in swept}


def _commits(schedule: Schedule) -> list[list[tuple[int, int]]]:
    """Which state gets which value, before the update calls and after each: when nobody reads the old one.

    What sweeps make is in its place at once.
    """
    updates = [update for layer in schedule.layers for update in layer.updates()]
    made = {number: index for index, call in enumerate(updates, 1) for number in call.results}
    read = {number: index for index, call in enumerate(updates, 1) for number in call.arguments}
    swept = {number for sweep in schedule.sweeps() for number in sweep.results}
    sources = set(schedule.replacements.values()) & set(schedule.state.values())
    commits: list[list[tuple[int, int]]] = [[] for _ in range(len(updates) + 1)]
    for old, new in schedule.replacements.items():
        if new in swept:
            continue
        # Small state is read where the step has noted it before.
        last_read = 0 if is_small(schedule.values[old]) else read.get(old, 0)
        ready = max(made.get(new, 0), last_read)
        commits[len(updates) if old in sources or new in sources else ready].append((old, new))
    return commits
