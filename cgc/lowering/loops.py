"""Find the loops of a step: repeated ops that carry a state, such as the time steps of a recurrent network.

A program unrolls its recurrences, and XLA compiles each time step separately: two thirds of the time until a
small LSTM trains. Here its time steps become one body again. Ops are taken by place: a stretch of ops whose
classes repeat with a period is cut into copies, and a family is one op of a copy with all its copies. A
family is in the loop if its ops are equal and read alike: values that all copies share, of the same copy, of
an earlier copy (carried), or of no copy (stacked, one for each). Differences between copies, such as the
slice of a time step, are computed before the loop or after it.

Layers of a network repeat as well, each with its own weights. To stack those would copy all weights in
every step, so they are no loop.
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
LEAST_COPIES = 4

# A loop with fewer ops takes longer to run than its copies, which XLA fuses.
LEAST_OPS = 4

# Ops that a loop must save: a loop costs XLA about as much as a dozen ops.
LEAST_SAVED = 32

# Number of stretches to examine, the longest first.
_CANDIDATES = 32

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
        family: of the op that makes it.
        result: index of the op's result.
        initial: the values that the first copies read instead; as many as the distance to the reader.
    """

    family: int
    result: int
    initial: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """Ops that are computed by a loop; all values and ops are numbers of a `Scan`.

    Attributes:
        start: the first place of the stretch of ops that the loop replaces.
        end: the place after it.
        places: of the ops in the loop, by family and copy.
        reads: of each family, the sources of its operands.
        carries: targets of `carried` reads.
        stacks: targets of `stacked` reads: a value for each copy.
        stacked: families and results of which ops outside read copies.
        last: families and results of which ops outside read only the last copy, and a carry that ends with
            it.
        before: the other ops of the stretch that do not depend on the loop.
        after: those that do.
    """

    start: int
    end: int
    places: Ints
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
        return int(self.places.shape[1])


def find_loops(step: OpTable, weights: Sequence[int]) -> list[Loop]:
    """Return the loops of a step in the order of their places; their stretches do not overlap.

    Args:
        step: the ops.
        weights: numbers of the arguments that are state.
    """
    whole_weights = _whole_weights(step, weights)
    found: list[Loop] = []
    for places in _candidates(step):
        start, end = int(places[0, 0]), int(places[-1, -1]) + 1
        if all(end <= other.start or other.end <= start for other in found):
            loop = _Copies(step, places).loop()
            if loop is not None and whole_weights.isdisjoint(chain(*loop.stacks)):
                found.append(loop)
    return sorted(found, key=lambda loop: loop.start)


def _whole_weights(step: OpTable, weights: Sequence[int]) -> set[int]:
    """Return the weights, and values with all elements of one in another type or order."""
    found = set(weights)
    for place, op in enumerate(step.ops):
        if isinstance(op, _SAME_ELEMENTS) and step.operands(place)[0] in found:
            found.update(step.results(place))
    return found


def _candidates(step: OpTable) -> Iterator[Ints]:
    """Yield places by family and copy of stretches in which the classes of ops repeat, the longest first."""
    # Several copies of a stretch are copies of a longer one; those are left out.
    numbers: dict[type, int] = {}
    kinds = np.array([numbers.setdefault(type(op), len(numbers)) for op in step.ops], np.int64)
    runs = []
    for period in range(LEAST_OPS, len(kinds) // LEAST_COPIES + 1):
        same = kinds[period:] == kinds[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False]))))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        for at in np.flatnonzero(lengths >= (LEAST_COPIES - 1) * period).tolist():
            runs.append((int(starts[at]), period, int(lengths[at]) // period + 1))
    runs.sort(key=lambda run: (-run[1] * run[2], run[1]))
    chosen: list[tuple[int, int, int]] = []
    for start, period, copies in runs:
        if not any(start >= s and period % p == 0 and start < s + p * c for s, p, c in chosen):
            chosen.append((start, period, copies))
    for start, period, copies in chosen[:_CANDIDATES]:
        yield start + np.arange(period)[:, None] + period * np.arange(copies)[None, :]


class _Copies:
    """A stretch of ops as copies of one, without the ops that cannot be in a loop."""

    def __init__(self, step: OpTable, places: Ints) -> None:
        self._step = step
        is_equal = (step.labels[places] == step.labels[places[:, :1]]).all(axis=1)
        is_drawn = [isinstance(step.ops[place], SeededRandomOp) for place in places[:, 0].tolist()]
        self._places = places[is_equal & ~np.array(is_drawn)]

    def loop(self) -> Loop | None:
        """Return the loop of all ops that can be in one; None if that is not worth it."""
        while self._is_worth_it():
            self._start, self._end = int(self._places.min()), int(self._places.max()) + 1
            self._copy = {
                place: (family, copy)
                for family, row in enumerate(self._places.tolist())
                for copy, place in enumerate(row)
            }
            wrong = self._between_copies()
            if not wrong:
                reads = self._reads()
                if isinstance(reads, Loop):
                    return reads if reads.carries else None
                first, last, wrong = reads
                self._places = self._places[:, first:last]
            self._places = np.delete(self._places, sorted(wrong), axis=0)
        return None

    def _is_worth_it(self) -> bool:
        families, copies = self._places.shape
        is_long = families >= LEAST_OPS and copies >= LEAST_COPIES
        return bool(is_long and families * (copies - 1) >= LEAST_SAVED)

    def _between_copies(self) -> set[int]:
        """Return families to leave out: an op outside of all copies reads copies and is read by copies."""
        after, before = self._depending(()), self._dependencies(())
        between = (after & before) - self._copy.keys()
        if not between:
            return set()
        ways = (self._depending(between), self._dependencies(between))
        return min(({self._copy[op][0] for op in way & self._copy.keys()} for way in ways), key=len)

    def _depending(self, sources: Iterable[int]) -> set[int]:
        """Return the ops of the stretch that depend on some; on those of the copies if none are given."""
        found = set(sources) or set(self._copy)
        producer = self._step.producer
        for op in range(self._start, self._end):
            if op not in found and any(int(producer[v]) in found for v in self._step.operands(op)):
                found.add(op)
        return found

    def _dependencies(self, sinks: Iterable[int]) -> set[int]:
        """Return the ops of the stretch that some depend on; those of the copies if none are given."""
        found = set(sinks) or set(self._copy)
        producer = self._step.producer
        for op in range(self._end - 1, self._start - 1, -1):
            if op in found:
                found.update(int(producer[value]) for value in self._step.operands(op))
        return {op for op in found if op >= self._start}

    def _reads(self) -> Loop | tuple[int, int, set[int]]:
        """Return the loop; or the range of copies that read alike, and families that never do."""
        first, last, wrong = 0, self._places.shape[1], set[int]()
        table = _Table()
        reads = []
        for family, row in enumerate(self._places.tolist()):
            of_family = []
            for values in zip(*map(self._step.operands, row), strict=True):
                read = table.read(values, [self._distance(v, copy) for copy, v in enumerate(values)])
                if isinstance(read, Read):
                    of_family.append(read)
                elif read is None:
                    wrong.add(family)
                else:
                    first, last = max(first, read[0]), min(last, read[1])
            reads.append(tuple(of_family))
        if wrong or (first, last) != (0, self._places.shape[1]):
            return first, last, wrong
        after = self._depending(())
        stacked, last_copies = self._read_outside(list(table.carries))
        return Loop(
            start=self._start,
            end=self._end,
            places=self._places,
            reads=tuple(reads),
            carries=tuple(table.carries),
            stacks=tuple(table.stacks),
            stacked=stacked,
            last=last_copies,
            before=tuple(op for op in range(self._start, self._end) if op not in after),
            after=tuple(op for op in sorted(after) if op not in self._copy),
        )

    def _distance(self, value: int, copy: int) -> _Source | None:
        """Return the op of the copies that makes a value, and how many copies it is before a reader."""
        producer = int(self._step.producer[value])
        if producer not in self._copy:
            return None
        family, made = self._copy[producer]
        return _Source(family, value - int(self._step.first_result[producer]), copy - made)

    def _read_outside(
        self, carries: Sequence[Carry]
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]]:
        """Return families and results that others read: by copy, and the last copy only with its carry."""
        step = self._step
        is_copy = np.zeros(len(step.ops), bool)
        is_copy[self._places.ravel()] = True
        of_others = ~np.repeat(is_copy, np.diff(step.first_read))
        read = {*step.read[of_others].tolist(), *step.returned}
        carry = {(made.family, made.result): index for index, made in enumerate(carries)}
        stacked, last = [], []
        for family, row in enumerate(self._places.tolist()):
            for result in range(len(step.results(row[0]))):
                is_read = [int(step.first_result[place]) + result in read for place in row]
                if any(is_read[:-1]) or (is_read[-1] and (family, result) not in carry):
                    stacked.append((family, result))
                elif is_read[-1]:
                    last.append((family, result, carry[family, result]))
        return tuple(stacked), tuple(last)


class _Source(NamedTuple):
    family: int
    result: int
    distance: int


class _Table:
    """Numbers the stacks and the carries of a loop; equal ones are one."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[int, ...], int] = {}
        self.carries: dict[Carry, int] = {}

    def read(
        self, values: tuple[int, ...], sources: Sequence[_Source | None]
    ) -> Read | tuple[int, int] | None:
        """Return how the copies read an operand.

        Args:
            values: the operand of each copy.
            sources: the ops of copies that make them; None for values of no copy.

        Returns:
            The read; the range of copies that read alike if some at the ends do not; or None.
        """
        common = Counter(sources).most_common(1)[0][0]
        distance = 0 if common is None else common.distance
        is_alike = [
            source == common or (source is None and copy < distance) for copy, source in enumerate(sources)
        ]
        if not all(is_alike):
            first, last = is_alike.index(True), len(values) - is_alike[::-1].index(True)
            return (first, last) if all(is_alike[first:last]) else None
        if common is None:
            if len(set(values)) == 1:
                return Read("shared", values[0])
            return Read("stacked", self.stacks.setdefault(values, len(self.stacks)))
        if distance == 0:
            return Read("same", common.family, common.result)
        carry = Carry(common.family, common.result, values[:distance])
        return Read("carried", self.carries.setdefault(carry, len(self.carries)))
