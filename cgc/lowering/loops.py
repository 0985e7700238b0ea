"""Find the loops of a step: repeated ops that carry a state, such as the time steps of a recurrent network.

A program unrolls its recurrences, and XLA compiles each time step separately, which takes two thirds of the
time until a small LSTM trains. Here the time steps become one body again. A stretch is a range of ops whose
classes repeat with a period: it is cut into copies, and a family is an op of a copy together with the same op
of all other copies. A family is in the loop if its ops are equal and have the same kind of operands: shared
by all copies, of the same copy, of an earlier copy (carried), or one value from outside for each copy
(stacked). Other ops, such as the slice of a time step, are computed before or after the loop.

Layers of a network repeat as well, but with separate weights. Stacking these would copy all weights in every
step, so layers are not turned into loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from cgc.cirh.op_table import Ints, OpTable
from cgc.cirh.ops import CastOp, ReshapeOp, TransposeOp
from cgc.cirh.random import SeededRandomOp

# Fewer copies compile as fast without a loop.
MIN_COPIES = 4

# A loop with fewer ops runs slower than its unrolled copies, which XLA fuses.
MIN_OPS = 4

# A loop takes XLA as long to compile as about a dozen ops.
MIN_SAVED_OPS = 32

# Number of stretches to examine, the longest first.
_MAX_STRETCHES = 32

_SAME_ELEMENTS = (CastOp, ReshapeOp, TransposeOp)


class Read(NamedTuple):
    """Source of an operand in the body of a loop.

    Attributes:
        kind: `shared` by all copies, `stacked` with one value for each copy, `carried` from an earlier copy,
            or of the `same` copy.
        number: of the shared value, of the stack, of the carry, or of the family.
        result: index of the result of the family.
    """

    kind: Literal["shared", "stacked", "carried", "same"]
    number: int
    result: int = 0


class Carry(NamedTuple):
    """A value that a later copy reads.

    Attributes:
        family: of its producer.
        result: index of the op's result.
        initial: the values that the first copies read instead, as many as the distance in copies.
    """

    family: int
    result: int
    initial: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """Ops that are computed by a loop; values and ops are numbers in an `OpTable`.

    Attributes:
        start: position of the first op of the stretch that the loop replaces.
        end: position after its last op.
        positions: of the ops in the loop, by family and copy.
        reads: sources of the operands, by family.
        carries: targets of `carried` reads.
        stacks: targets of `stacked` reads: a value for each copy.
        stacked: families and results of which ops outside read any copy.
        last: families and results of which ops outside read only the last copy, and their carries.
        before: other ops of the stretch that do not depend on the loop.
        after: other ops of the stretch that depend on the loop.
    """

    start: int
    end: int
    positions: Ints
    reads: tuple[tuple[Read, ...], ...]
    carries: tuple[Carry, ...]
    stacks: tuple[tuple[int, ...], ...]
    stacked: tuple[tuple[int, int], ...]
    last: tuple[tuple[int, int, int], ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def copies(self) -> int:
        """Number of iterations."""
        return int(self.positions.shape[1])


def find_loops(step: OpTable, weights: Sequence[int]) -> list[Loop]:
    """Return the loops of a step in order; their stretches do not overlap.

    Args:
        step: the ops.
        weights: numbers of the arguments that are state.
    """
    whole_weights = _whole_weights(step, weights)
    found: list[Loop] = []
    for positions in _candidates(step):
        start, end = int(positions[0, 0]), int(positions[-1, -1]) + 1
        if all(end <= other.start or other.end <= start for other in found):
            loop = _Copies(step, positions).loop()
            if loop is not None and whole_weights.isdisjoint(chain(*loop.stacks)):
                found.append(loop)
    return sorted(found, key=lambda loop: loop.start)


def _whole_weights(step: OpTable, weights: Sequence[int]) -> set[int]:
    """Return the weights and their casts, reshapes and transposes."""
    found = set(weights)
    for position, op in enumerate(step.ops):
        if isinstance(op, _SAME_ELEMENTS) and step.operands(position)[0] in found:
            found.update(step.results(position))
    return found


def _candidates(step: OpTable) -> Iterator[Ints]:
    """Yield positions, by family and copy, of stretches in which op classes repeat, the longest first."""
    # A stretch repeats with multiples of its period as well; these are skipped.
    numbers: dict[type, int] = {}
    kinds = np.array([numbers.setdefault(type(op), len(numbers)) for op in step.ops], np.int64)
    runs = []
    for period in range(MIN_OPS, len(kinds) // MIN_COPIES + 1):
        is_same = kinds[period:] == kinds[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], is_same, [False]))))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        for run_index in np.flatnonzero(lengths >= (MIN_COPIES - 1) * period).tolist():
            runs.append((int(starts[run_index]), period, int(lengths[run_index]) // period + 1))
    runs.sort(key=lambda run: (-run[1] * run[2], run[1]))
    chosen: list[tuple[int, int, int]] = []
    for start, period, copies in runs:
        if not any(start >= s and period % p == 0 and start < s + p * c for s, p, c in chosen):
            chosen.append((start, period, copies))
    for start, period, copies in chosen[:_MAX_STRETCHES]:
        yield start + np.arange(period)[:, None] + period * np.arange(copies)[None, :]


class _Copies:
    """The copies in a stretch, without the ops that cannot be in a loop."""

    def __init__(self, step: OpTable, positions: Ints) -> None:
        self._step = step
        is_equal = (step.labels[positions] == step.labels[positions[:, :1]]).all(axis=1)
        is_drawn = [isinstance(step.ops[position], SeededRandomOp) for position in positions[:, 0].tolist()]
        self._positions = positions[is_equal & ~np.array(is_drawn)]

    def loop(self) -> Loop | None:
        """Return the loop of all ops that can be in one; None if the loop would not be profitable."""
        while self._is_profitable():
            self._start, self._end = int(self._positions.min()), int(self._positions.max()) + 1
            self._copy = {
                position: (family, copy)
                for family, row in enumerate(self._positions.tolist())
                for copy, position in enumerate(row)
            }
            excluded = self._families_between_copies()
            if not excluded:
                reads = self._reads()
                if isinstance(reads, Loop):
                    return reads if reads.carries else None
                first, last, excluded = reads
                self._positions = self._positions[:, first:last]
            self._positions = np.delete(self._positions, sorted(excluded), axis=0)
        return None

    def _is_profitable(self) -> bool:
        families, copies = self._positions.shape
        is_long = families >= MIN_OPS and copies >= MIN_COPIES
        return bool(is_long and families * (copies - 1) >= MIN_SAVED_OPS)

    def _families_between_copies(self) -> set[int]:
        """Return families to exclude because an op outside of the loop reads copies and is read by copies."""
        after, before = self._dependents(()), self._dependencies(())
        between = (after & before) - self._copy.keys()
        if not between:
            return set()
        directions = (self._dependents(between), self._dependencies(between))
        return min(
            ({self._copy[op][0] for op in direction & self._copy.keys()} for direction in directions), key=len
        )

    def _dependents(self, sources: Iterable[int]) -> set[int]:
        """Return the ops of the stretch that depend on `sources`, by default on the ops of the copies."""
        found = set(sources) or set(self._copy)
        producer = self._step.producer
        for op in range(self._start, self._end):
            if op not in found and any(int(producer[v]) in found for v in self._step.operands(op)):
                found.add(op)
        return found

    def _dependencies(self, sinks: Iterable[int]) -> set[int]:
        """Return the ops of the stretch that `sinks` depend on, by default the ops of the copies."""
        found = set(sinks) or set(self._copy)
        producer = self._step.producer
        for op in range(self._end - 1, self._start - 1, -1):
            if op in found:
                found.update(int(producer[value]) for value in self._step.operands(op))
        return {op for op in found if op >= self._start}

    def _reads(self) -> Loop | tuple[int, int, set[int]]:
        """Return the loop; or the range of copies with consistent reads, and families without any."""
        first, last, excluded = 0, self._positions.shape[1], set[int]()
        table = _Table()
        reads = []
        for family, row in enumerate(self._positions.tolist()):
            of_family = []
            for values in zip(*map(self._step.operands, row), strict=True):
                read = table.read(values, [self._distance(v, copy) for copy, v in enumerate(values)])
                if isinstance(read, Read):
                    of_family.append(read)
                elif read is None:
                    excluded.add(family)
                else:
                    first, last = max(first, read[0]), min(last, read[1])
            reads.append(tuple(of_family))
        if excluded or (first, last) != (0, self._positions.shape[1]):
            return first, last, excluded
        after = self._dependents(())
        stacked, last_copies = self._results_read_outside(list(table.carries))
        return Loop(
            start=self._start,
            end=self._end,
            positions=self._positions,
            reads=tuple(reads),
            carries=tuple(table.carries),
            stacks=tuple(table.stacks),
            stacked=stacked,
            last=last_copies,
            before=tuple(op for op in range(self._start, self._end) if op not in after),
            after=tuple(op for op in sorted(after) if op not in self._copy),
        )

    def _distance(self, value: int, copy: int) -> _Source | None:
        """Return the producer of a value in the copies, and the distance to its reader in copies."""
        producer = int(self._step.producer[value])
        if producer not in self._copy:
            return None
        family, producer_copy = self._copy[producer]
        return _Source(family, value - int(self._step.first_result[producer]), copy - producer_copy)

    def _results_read_outside(
        self, carries: Sequence[Carry]
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]]:
        """Return the results that ops outside read: `Loop.stacked` and `Loop.last`."""
        step = self._step
        is_copy = np.zeros(len(step.ops), bool)
        is_copy[self._positions.ravel()] = True
        is_outside = ~np.repeat(is_copy, np.diff(step.first_read))
        read = {*step.read[is_outside].tolist(), *step.returned}
        carry_index = {(carry.family, carry.result): index for index, carry in enumerate(carries)}
        stacked, last = [], []
        for family, row in enumerate(self._positions.tolist()):
            for result in range(len(step.results(row[0]))):
                is_read = [int(step.first_result[position]) + result in read for position in row]
                if any(is_read[:-1]) or (is_read[-1] and (family, result) not in carry_index):
                    stacked.append((family, result))
                elif is_read[-1]:
                    last.append((family, result, carry_index[family, result]))
        return tuple(stacked), tuple(last)


class _Source(NamedTuple):
    family: int
    result: int
    distance: int


class _Table:
    """Numbers the distinct stacks and carries of a loop."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[int, ...], int] = {}
        self.carries: dict[Carry, int] = {}

    def read(
        self, values: tuple[int, ...], sources: Sequence[_Source | None]
    ) -> Read | tuple[int, int] | None:
        """Return how the copies read an operand.

        Args:
            values: the operand of each copy.
            sources: the producers in the copies; None for values from outside.

        Returns:
            The read; the range of copies with consistent reads if some at the ends differ; or None.
        """
        common = Counter(sources).most_common(1)[0][0]
        distance = 0 if common is None else common.distance
        is_consistent = [
            source == common or (source is None and copy < distance) for copy, source in enumerate(sources)
        ]
        if not all(is_consistent):
            first, last = is_consistent.index(True), len(values) - is_consistent[::-1].index(True)
            return (first, last) if all(is_consistent[first:last]) else None
        if common is None:
            if len(set(values)) == 1:
                return Read("shared", values[0])
            return Read("stacked", self.stacks.setdefault(values, len(self.stacks)))
        if distance == 0:
            return Read("same", common.family, common.result)
        carry = Carry(common.family, common.result, values[:distance])
        return Read("carried", self.carries.setdefault(carry, len(self.carries)))
