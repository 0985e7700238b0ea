"""What MemoryX computes of a step: schedules before it, norms and new weights after it."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cs_system.engine.device import compiler_options, computing_threads
from cs_system.engine.executable import Executables, Function, OneDevice, load_step
from cs_system.memoryx.protocol import aligned_empty, views
from cs_system.memoryx.store import MappedTensors, file_layouts, replaced_state
from cs_system.messages import dtype_named
from cs_toolkit.layered_step import Call, Schedule, Shard, Sweep, is_small
from cs_toolkit.step import StepInterface, device_dtype

Values = dict[int, np.ndarray]
Exchange = Callable[[int, list[np.ndarray]], list[np.ndarray]]
Changes = Callable[[frozenset[int]], None]

_ShapeDtypeStruct: Callable[..., Any] = jax.ShapeDtypeStruct

_zeros: Callable[..., Any] = jax.numpy.zeros

_device_put: Callable[[np.ndarray], Any] = jax.device_put


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
        state, arrived = file_layouts(shard)
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
        old = replaced_state(self.schedule, sweep)
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


def compile_functions(
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


class PieceFunction:
    """A function of pieces that puts its results into memory that it is given.

    Args:
        data: What `cgc.executable.export_step` wrote of it.
        interface: Of the executable: weights are its state.

    Raises:
        ExecutableError: the bytes are no executable, or one that cannot run here.
    """

    def __init__(self, data: bytes, interface: StepInterface) -> None:
        weights = len(interface.state)
        self.interface = interface
        self.elements: int = interface.outputs[0].shape[0]
        specs = (*interface.state, *interface.inputs)
        step = load_step(data)

        def body(*values: Any) -> Any:
            return tuple(step(values[:weights], values[weights : len(specs)])[1])

        given = range(len(specs), len(specs) + len(interface.outputs))
        jit: Callable[..., Any] = jax.jit
        shapes = [
            _ShapeDtypeStruct(spec.shape, dtype_named(device_dtype(spec.dtype)))
            for spec in (*specs, *interface.outputs)
        ]
        # Memory for results is an argument that nothing reads, and that they may take.
        jitted = jit(body, donate_argnums=tuple(given), keep_unused=True)
        self._spare: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()
        self._compiled = jitted.lower(*shapes).compile(compiler_options=compiler_options(computing_threads()))

    def __call__(self, arguments: Sequence[Any], memory: Sequence[Any]) -> Sequence[Any]:
        """Values of the device; `memory` is gone afterwards, its place is that of the results."""
        found: Sequence[Any] = self._compiled(*arguments, *memory)
        return found

    def memory(self) -> Sequence[Any]:
        """Memory for the results of a call, that of an earlier one where `give_back` had it."""
        with contextlib.suppress(queue.Empty):
            return self._spare.get_nowait()
        outputs = self.interface.outputs
        return [_zeros(s.shape, dtype_named(device_dtype(s.dtype))) for s in outputs]

    def give_back(self, results: Sequence[Any]) -> None:
        """Results that nobody reads any more."""
        self._spare.put(results)


@dataclass(frozen=True)
class _Piece:
    """Arguments of one call, None for small values; where results go; and what is copied in before."""

    arguments: tuple[Any, ...]
    targets: tuple[np.ndarray, ...]
    copied: tuple[tuple[np.ndarray, np.ndarray], ...] = ()


class PreparedSweep:
    """A sweep over tensors at their places.

    Attributes:
        replaced: Numbers of the state that it replaces.

    Args:
        sweep: Which.
        function: Of its pieces.
        columns: For each large argument its tensors, one behind the other; None for small values.
        targets: For each result what it replaces, as `columns`.
        replaced: See the attribute.
        pool: Threads that compute, and how many.
    """

    def __init__(
        self,
        sweep: Sweep,
        function: PieceFunction,
        columns: Sequence[np.ndarray | None],
        targets: Sequence[np.ndarray],
        replaced: frozenset[int],
        pool: tuple[ThreadPoolExecutor, int],
    ) -> None:
        self.replaced = replaced
        self._taken = sweep.taken
        self._function, (self._pool, threads) = function, pool
        self._is_small = [column is None for column in columns]
        self._pieces = list(_pieces(function, columns, targets))
        shares = min(threads, len(self._pieces))
        self._shares = [self._pieces[share::shares] for share in range(shares)]

    def run(self, small: Mapping[int, np.ndarray]) -> None:
        """Replaces all tensors; `small` has the small arguments by number. Waits for the end."""
        scalars = [
            _device_put(small[numbers[0]]) if is_small else None
            for numbers, is_small in zip(self._taken, self._is_small, strict=True)
        ]
        for _ in self._pool.map(lambda share: self._run(share, scalars), self._shares):
            pass

    def _run(self, share: Sequence[_Piece], scalars: Sequence[Any]) -> None:
        memory: Sequence[Any] = self._function.memory()
        for piece in share:
            for place, source in piece.copied:
                np.copyto(place, source)
            arguments = [
                scalar if large is None else large
                for large, scalar in zip(piece.arguments, scalars, strict=True)
            ]
            memory = self._function(arguments, memory)
            for target, result in zip(piece.targets, memory, strict=True):
                np.copyto(target, np.asarray(result)[: target.size])
        self._function.give_back(memory)


def _pieces(
    function: PieceFunction, columns: Sequence[np.ndarray | None], targets: Sequence[np.ndarray]
) -> Any:
    size = function.elements
    total = targets[0].size
    for start in range(0, total - size + 1, size):
        span = slice(start, start + size)
        arguments = (None if column is None else _device_put(column[span]) for column in columns)
        yield _Piece(tuple(arguments), tuple(target[span] for target in targets))
    if rest := total % size:
        yield _last_piece(function, columns, targets, rest)


def _last_piece(
    function: PieceFunction, columns: Sequence[np.ndarray | None], targets: Sequence[np.ndarray], rest: int
) -> _Piece:
    """A piece of which only the beginning is there: it is copied."""
    specs = (*function.interface.state, *function.interface.inputs)
    arguments: list[Any] = []
    copied = []
    for column, spec in zip(columns, specs, strict=True):
        if column is None:
            arguments.append(None)
            continue
        memory = aligned_empty(function.elements * column.itemsize)
        memory[:] = 0
        (place,) = views(memory, [spec])
        arguments.append(_device_put(place))
        copied.append((place[:rest], column[-rest:]))
    return _Piece(tuple(arguments), tuple(target[-rest:] for target in targets), tuple(copied))
