"""Updates in pieces: tensors that lie one behind the other are replaced where they are, on all cores.

What limits an update is memory. A piece is read where its state is mapped, its results come into memory that
stays in the cache, and are copied over the old values, which are still there. Several threads take every
second, third ... piece each; the numbers do not depend on that.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from cs_system.engine.device import compiler_options, computing_threads
from cs_system.engine.executable import load_step
from cs_system.memoryx.frames import aligned_empty, views
from cs_system.messages import dtype_named
from cs_toolkit.schedule import Sweep
from cs_toolkit.step import StepInterface, device_dtype

_ShapeDtypeStruct: Callable[..., Any] = jax.ShapeDtypeStruct
_zeros: Callable[..., Any] = jax.numpy.zeros
_device_put: Callable[[np.ndarray], Any] = jax.device_put


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
