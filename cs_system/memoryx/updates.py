"""The update of a step in MemoryX: schedules before the step, norms and new weights after it.

Sweeps are blocked in-place updates over contiguous tensors, parallel across cores: memory bandwidth limits an
update. A piece is read from the mapped state, its results are written to memory that stays in the cache, and
are copied over the old values, which are still in the cache too. With n threads, each takes every n-th piece;
the numbers do not depend on n.
"""

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

from cs_system.engine.base import Executables
from cs_system.engine.device import compiler_options
from cs_system.engine.executable import Function, OneDevice, load_step
from cs_system.engine.machine import computing_threads
from cs_system.memoryx.protocol import aligned_empty, split_views
from cs_system.memoryx.store import (
    Changes,
    Exchange,
    MappedTensors,
    ModelMemory,
    SharedFiles,
    Values,
    file_layouts,
    replaced_state,
)
from cs_system.messages import dtype_named
from cs_toolkit.layered_step import Call, Schedule, Shard, Sweep, is_small
from cs_toolkit.step import StepInterface, device_dtype

_ShapeDtypeStruct: Callable[..., Any] = jax.ShapeDtypeStruct
_zeros: Callable[..., Any] = jax.numpy.zeros
_device_put: Callable[[np.ndarray], Any] = jax.device_put


class Memory(ModelMemory):
    """State and gradients of a model whose update this process computes.

    Args:
        shard: Part of the step that is stored here.
        functions: Compiled functions of its calls, by number.
        pieces: Compiled functions of its sweeps, by number.
        directory: Where state and gradients are stored.
        threads: Number of threads that compute, each function on one of them.

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
        state, arrived = (MappedTensors.in_directory(directory, layout) for layout in file_layouts(shard))
        super().__init__(shard, state, arrived, SharedFiles.of(state, arrived))
        schedule = self.schedule
        self._functions = functions
        # A function runs on one thread: functions that used several themselves would wait for each other,
        # which costs a fifth of the rate of sweeps.
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "memoryx update")
        self._updates: list[PreparedSweep | Call] = [
            self._prepare_sweep(update, pieces[update.function]) if isinstance(update, Sweep) else update
            for layer in schedule.layers
            for update in layer.updates()
        ]
        self._commits = _plan_commits(schedule)

    def abort(self) -> None:
        """Do nothing: the update ends with this process, which serves a single system."""

    def close(self) -> None:
        """End the threads, after their current work, and close the files."""
        self._pool.shutdown()
        self._updates, self._functions = [], {}  # prepared sweeps have views of the files
        super().close()

    def begin_step(self) -> Values:
        """Return the small values of a step's start: state, and schedules and scales computed from it."""
        known = {number: np.array(self.state[number]) for number in self.small}
        if self.schedule.before is not None:
            self._run(self.schedule.before, known)
        return known

    def update(
        self,
        known: Values,
        exchange: Exchange,
        before_change: Changes | None,
        after_change: Changes,
    ) -> list[np.ndarray]:
        """Compute the update of a step whose results have all arrived; see `ModelMemory.update`."""
        for index, step in enumerate(self.schedule.rounds):
            partial = [call for call in step.partial if call is not None]
            # A list, so that all calls have read `known` before it changes.
            for found in list(self._pool.map(lambda call: self._results(call, known), partial)):
                known.update(found)
            if self.shard.count > 1:
                given = [known[number] for number in self.shard.given[index]]
                known.update(zip(self.shard.taken[index], exchange(index, given), strict=True))
            if step.joined is not None:
                self._run(step.joined, known)
        answers = dict.fromkeys(self.traffic.answers)
        kept: Values = {}
        # The first commits are due before all updates.
        for update, commits in zip((None, *self._updates), self._commits, strict=True):
            if isinstance(update, PreparedSweep):
                if before_change is not None:
                    before_change(update.replaced)
                update.run(known)
                after_change(update.replaced)
            elif update is not None:
                self._run(update, known)
            # Before the commits, which drop the new values of large state.
            kept.update((number, known[number]) for number in answers if number in known)
            replaced = frozenset(old for old, _ in commits)
            if before_change is not None:
                before_change(replaced)
            self._commit(commits, known)
            after_change(replaced)
        return [kept[number] for number in answers]

    def _commit(self, commits: list[tuple[int, int]], known: Values) -> None:
        # Read all values first: a state that replaces another one may itself be replaced.
        values = [
            np.array(self.state[new]) if new in self.state else self.value(new, known) for _, new in commits
        ]
        for (old, new), value in zip(commits, values, strict=True):
            np.copyto(self.state[old], value)
            if not is_small(self.schedule.values[old]):
                known.pop(new, None)

    def _prepare_sweep(self, sweep: Sweep, function: PieceFunction) -> PreparedSweep:
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
        arguments = [self.value(number, known) for number in call.arguments]
        results = function(arguments, call.keys)
        # np.asarray waits for the call: its arguments are views of memory that will change.
        return dict(zip(call.results, map(np.asarray, results), strict=True))


def compile_functions(
    schedule: Schedule, executables: Executables
) -> tuple[dict[int, Function], dict[int, PieceFunction]]:
    """Compile the functions of a step's calls at MemoryX, and those of its sweeps; both by number.

    Raises:
        ExecutableError: the bytes are no executable, or one that cannot run here.
    """
    swept = {sweep.function for sweep in schedule.sweeps()}
    named = {n: (*e, f"function {n}") for n, e in executables.items()}
    functions = {
        n: Function(data, interface, OneDevice(), name=name)
        for n, (data, interface, name) in named.items()
        if n not in swept
    }
    return functions, {n: PieceFunction(*e) for n, e in named.items() if n in swept}


def _plan_commits(schedule: Schedule) -> list[list[tuple[int, int]]]:
    """Plan which (old state, new value) pairs to commit before the updates and after each of them.

    A value is committed as soon as the old one has no reader left. Results of sweeps are written in place.
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
        # Small state is read from the copies made at the start of the step.
        last_read = 0 if is_small(schedule.values[old]) else read.get(old, 0)
        ready = max(made.get(new, 0), last_read)
        commits[len(updates) if old in sources or new in sources else ready].append((old, new))
    return commits


class PieceFunction:
    """A function of pieces that writes its results into given memory.

    Args:
        data: Bytes written by `cgc.lowering.interpret.export_step`.
        interface: Interface of the executable: weights are its state.
        name: Name of the executable in errors.

    Raises:
        ExecutableError: the bytes are no executable, or one that cannot run here.
    """

    def __init__(self, data: bytes, interface: StepInterface, name: str) -> None:
        weights = len(interface.state)
        self.interface = interface
        self.elements: int = interface.outputs[0].shape[0]
        specs = (*interface.state, *interface.inputs)
        step = load_step(data, name)

        def body(*values: Any) -> Any:
            return tuple(step(values[:weights], values[weights : len(specs)])[1])

        given = range(len(specs), len(specs) + len(interface.outputs))
        jit: Callable[..., Any] = jax.jit
        shapes = [
            _ShapeDtypeStruct(spec.shape, dtype_named(device_dtype(spec.dtype)))
            for spec in (*specs, *interface.outputs)
        ]
        # Memory for the results is passed as unused, donated arguments, which XLA reuses for them.
        jitted = jit(body, donate_argnums=tuple(given), keep_unused=True)
        self._spare: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()
        self._compiled = jitted.lower(*shapes).compile(compiler_options=compiler_options(computing_threads()))

    def __call__(self, arguments: Sequence[Any], memory: Sequence[Any]) -> Sequence[Any]:
        """Start the function; `memory` is donated, and its place is that of the results."""
        found: Sequence[Any] = self._compiled(*arguments, *memory)
        return found

    def memory(self) -> Sequence[Any]:
        """Return memory for the results of a call, that of an earlier one if it was given back."""
        with contextlib.suppress(queue.Empty):
            return self._spare.get_nowait()
        outputs = self.interface.outputs
        return [_zeros(s.shape, dtype_named(device_dtype(s.dtype))) for s in outputs]

    def give_back(self, results: Sequence[Any]) -> None:
        """Return the memory of results that are not read any more."""
        self._spare.put(results)


@dataclass(frozen=True)
class _Piece:
    """The arguments of a call (None for small values), the targets of its results, and copies before it."""

    arguments: tuple[Any, ...]
    targets: tuple[np.ndarray, ...]
    copied: tuple[tuple[np.ndarray, np.ndarray], ...] = ()


class PreparedSweep:
    """A sweep over contiguous tensors.

    Attributes:
        replaced: Numbers of the state that it replaces.

    Args:
        sweep: The sweep.
        function: Function of its pieces.
        columns: For each large argument its contiguous tensors; None for small values.
        targets: For each result the contiguous tensors that it replaces.
        replaced: Numbers of the state that it replaces.
        pool: Compute threads, and their number.
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
        """Replace all tensors, and wait for the end; `small` has the small arguments by number."""
        scalars = [
            _device_put(small[numbers[0]]) if is_small else None
            for numbers, is_small in zip(self._taken, self._is_small, strict=True)
        ]
        for _ in self._pool.map(lambda share: self._run(share, scalars), self._shares):
            pass

    def _run(self, share: Sequence[_Piece], scalars: Sequence[Any]) -> None:
        memory: Sequence[Any] = self._function.memory()
        for piece in share:
            for target, source in piece.copied:
                np.copyto(target, source)
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
    """Return a piece of which only the beginning exists: its arguments are copied to padded memory."""
    specs = (*function.interface.state, *function.interface.inputs)
    arguments: list[Any] = []
    copied = []
    for column, spec in zip(columns, specs, strict=True):
        if column is None:
            arguments.append(None)
            continue
        memory = aligned_empty(function.elements * column.itemsize)
        memory[:] = 0
        (place,) = split_views(memory, [spec])
        arguments.append(_device_put(place))
        copied.append((place[:rest], column[-rest:]))
    return _Piece(tuple(arguments), tuple(target[-rest:] for target in targets), tuple(copied))
