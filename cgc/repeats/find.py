"""Find the block that repeats in a step: equal ops at equal distances that read each other alike.

The blocks of a deep network are copies of one block, in the forward pass, the backward pass and the update. A
family is one op of a block with all its copies. A long run of equal ops is found by its period; the other
families are those that read its ops and those that its ops read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cgc.cirh.op_table import Ints, OpTable

LEAST_COPIES = 5  # fewer copies are rewritten as fast one by one
_WINDOW = 8  # equal ops in a row that are compared to find periods
_PERIODS = 8  # number of the most common periods that are tried
_NEAR = 3  # an op reads copies that are at most this far from its own


@dataclass(frozen=True)
class OperandSource:
    """The value that an operand of all copies reads.

    Attributes:
        family: family of the op, or of the argument.
        is_argument: whether it is an argument of the step.
        result: index of the result of the op.
        distance: number of copies from the reader to it.
    """

    family: int
    is_argument: bool
    result: int
    distance: int


@dataclass(frozen=True)
class Repeats:
    """Copies of a block.

    Attributes:
        ops: index of each op of the block, by family and copy; these copies are consistent, those before the
            first and after the last need not be.
        arguments: index of each argument of the step that belongs to a copy, by family and copy.
        reads: sources of the operands of each family; None for a value that all copies share.
    """

    ops: Ints
    arguments: Ints
    reads: tuple[tuple[OperandSource | None, ...], ...]

    @property
    def copies(self) -> int:
        """Number of copies of the block."""
        return len(self.ops[0])

    def value(self, step: OpTable, read: OperandSource, copy: int) -> int:
        """Return the number of the value that an operand reads of this copy."""
        if read.is_argument:
            return int(self.arguments[read.family, copy])
        return int(step.first_result[self.ops[read.family, copy]]) + read.result


class CopiesDifferError(Exception):
    """Copies differ in something that the passes see, or in the result of the passes."""


def find_repeats(step: OpTable) -> Repeats | None:
    """Return the block of a step that repeats most, or None."""
    for start, period, copies in _runs(step.labels):
        found = _Families(step).grow(start + copies // 2 * period, period)
        if found is not None:
            return found
    return None


def _runs(labels: Ints) -> list[tuple[int, int, int]]:
    """Return (start, period, copies) of the longest runs of equal ops, the longest first."""
    found = []
    for period in _periods(labels):
        same = labels[period:] == labels[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.astype(np.int8), [0]))))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            copies = (end - start) // period + 1
            if copies >= LEAST_COPIES:
                found.append((start, period, copies))
    return sorted(found, key=lambda run: (-run[1] * run[2], run[1]))[:2]


def _periods(labels: Ints) -> list[int]:
    """Return the most common distances of equal windows."""
    if len(labels) < 2 * _WINDOW:
        return []
    factors = np.uint64(0x9E3779B97F4A7C15) ** np.arange(_WINDOW, dtype=np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(labels.astype(np.uint64), _WINDOW)
    sums = (windows * factors).sum(axis=1, dtype=np.uint64)
    order = np.argsort(sums, kind="stable")
    equal = sums[order[1:]] == sums[order[:-1]]
    distances = (order[1:] - order[:-1])[equal]
    return [period for period, _ in Counter(distances.tolist()).most_common(_PERIODS)]


class _Families:
    """Grows families from a copy of a block in the middle of a run, and the copy after it."""

    def __init__(self, step: OpTable) -> None:
        self._step = step
        # Indices of ops near the middle -> (family, distance to the middle).
        self._family: dict[int, tuple[int, int]] = {}
        self._middle: list[int] = []
        self._period: list[int] = []
        # Pairs of ops in the middle, one of which reads the other.
        self._reads: list[tuple[int, int]] = []

    def grow(self, start: int, period: int) -> Repeats | None:
        """Find all families around a run.

        Args:
            start: index of the first op of the copy in the middle.
            period: distance to the next copy.
        """
        for op in range(start, start + period):
            self._add(op, op + period)
        index = 0
        while index < len(self._middle):
            if not self._follow(self._middle[index], self._middle[index] + self._period[index]):
                return None
            index += 1
        self._align()
        return self._consistent_repeats()

    def _add(self, op: int, following: int) -> None:
        self._middle.append(op)
        self._period.append(following - op)
        self._index_family(len(self._middle) - 1)

    def _index_all(self) -> None:
        self._family.clear()
        for family in range(len(self._middle)):
            self._index_family(family)

    def _index_family(self, family: int) -> None:
        for distance in range(-_NEAR, _NEAR + 1):
            place = self._middle[family] + distance * self._period[family]
            self._family.setdefault(place, (family, distance))

    def _align(self) -> None:
        """Assign ops that are next to each other in the step to one copy."""
        # A run may begin anywhere in a block, and an op found by following reads may belong to the next copy.
        run_of = self._stretches()
        self._index_all()
        near: dict[int, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
        for op, made in self._reads:
            (reader, at), (family, copy) = self._copy_at(op), self._copy_at(made)
            first, second = run_of[reader], run_of[family]
            near[first][second][copy - at] += 1
            near[second][first][at - copy] += 1
        moved = {0: 0}
        pending = [0]
        while pending:
            run = pending.pop(0)
            for other, distances in near[run].items():
                if other not in moved:
                    moved[other] = moved[run] + distances.most_common(1)[0][0]
                    pending.append(other)
        for family, run in enumerate(run_of):
            self._middle[family] += moved.get(run, 0) * self._period[family]
        self._index_all()

    def _copy_at(self, place: int) -> tuple[int, int]:
        """Return (family, distance to the middle) of an op."""
        found = self._family.get(place)
        if found is None:
            raise CopiesDifferError("an op reads a copy that is far from its own")
        return found

    def _stretches(self) -> list[int]:
        """Return the stretch of each family; all families of a stretch get a middle in one block."""
        # Blocks are counted from the start of a stretch, so that as few as possible are incomplete.
        found: list[tuple[int, int, list[int]]] = []
        for family, (op, period) in enumerate(zip(self._middle, self._period, strict=True)):
            for start, same, families in found:
                if same == period and abs(op - start) < 2 * abs(period):
                    families.append(family)
                    break
            else:
                found.append((op, period, [family]))
        stretch_of = [0] * len(self._middle)
        for stretch, (start, period, families) in enumerate(found):
            size = abs(period)
            begin = max(self._first(family) for family in families) + 1
            start -= (start - begin) % size
            for family in families:
                self._middle[family] -= (self._middle[family] - start) // size * size
                stretch_of[family] = stretch
        return stretch_of

    def _first(self, family: int) -> int:
        """Return the index of the first op of a family in the step."""
        labels, size, op = self._step.labels, abs(self._period[family]), self._middle[family]
        same = labels[op % size : op + 1 : size] == labels[op]
        return op - size * (len(same) - 1 - int(max(np.flatnonzero(~same), default=-1)) - 1)

    def _follow(self, op: int, following: int) -> bool:
        """Add the producers and users of an op; return whether its next copy reads the same in its block."""
        step = self._step
        for value, other in zip(step.operands(op), step.operands(following), strict=True):
            if value == other:
                continue
            made, made_next = int(step.producer[value]), int(step.producer[other])
            if made == made_next:
                if made >= 0:  # other results of one op
                    return False
                self._follow_users(value, other)
                continue
            if min(made, made_next) < 0 or step.labels[made] != step.labels[made_next]:
                return False
            if made not in self._family:
                self._add(made, made_next)
            family, _ = self._family[made]
            if made_next != made + self._period[family]:
                return False
            self._reads.append((op, made))
        for value, other in zip(step.results(op), step.results(following), strict=True):
            self._follow_users(value, other)
        return True

    def _follow_users(self, value: int, other: int) -> None:
        readers, readers_next = self._step.users(value), self._step.users(other)
        if len(readers) != len(readers_next):
            return
        for user, following in zip(readers, readers_next, strict=True):
            is_new = user not in self._family and user != following
            if is_new and self._step.labels[user] == self._step.labels[following]:
                self._add(user, following)

    def _consistent_repeats(self) -> Repeats | None:
        """Return the copies on both sides of the middle that are consistent."""
        # Moved to one block, an op that repeats less often than the others may have no copy there.
        if not all(0 <= op < len(self._step.labels) for op in self._middle):
            return None
        low, high = self._extents()
        if high - low + 1 < LEAST_COPIES:
            return None
        middle, period = np.array(self._middle), np.array(self._period)
        ops = middle[:, None] + period[:, None] * np.arange(low, high + 1)
        if len(np.unique(ops)) < ops.size:  # an op belongs to one copy of one family
            return None
        reads = _SourceFinder(self._step, ops, -low, self._copy_at)
        found = reads.find()
        first, end = reads.consistent_copies()
        if end - first < LEAST_COPIES:
            return None
        arguments = np.array(reads.arguments, np.int64).reshape(len(reads.arguments), ops.shape[1])
        return Repeats(ops[:, first:end], arguments[:, first:end], found)

    def _extents(self) -> tuple[int, int]:
        """Return the first and the last copy whose ops all have the labels of the middle."""
        labels = self._step.labels.tolist()
        count = len(labels)
        low, high = -count, count
        for op, period in zip(self._middle, self._period, strict=True):
            own, at, place = labels[op], 0, op - period
            while at > low and 0 <= place < count and labels[place] == own:
                at, place = at - 1, place - period
            low = at
            at, place = 0, op + period
            while at < high and 0 <= place < count and labels[place] == own:
                at, place = at + 1, place + period
            high = at
        return low, high


class _SourceFinder:
    """Finds the sources of operands, and the copies for which these are true.

    Attributes:
        arguments: by family and copy, the arguments that belong to a copy.
    """

    def __init__(
        self, step: OpTable, ops: Ints, middle: int, copy_at: Callable[[int], tuple[int, int]]
    ) -> None:
        self._step, self._ops, self._middle, self._copy_at = step, ops, middle, copy_at
        self._copy_of: dict[int, tuple[int, int]] = {}
        # Whether each copy reads as expected from copies before it, itself, and copies after it.
        self._good = np.ones((3, ops.shape[1]), bool)
        self.arguments: list[Ints] = []

    def find(self) -> tuple[tuple[OperandSource | None, ...], ...]:
        """Return the source of each operand of each family."""
        step, ops = self._step, self._ops
        first, end = step.first_read[ops], step.first_read[ops + 1]
        counts = (end - first)[:, self._middle]
        found: list[list[OperandSource | None]] = [[] for _ in ops]
        for operand in range(int(counts.max(initial=0))):
            families = np.flatnonzero(counts > operand)
            values = step.read[first[families] + operand]
            for family, read in zip(families.tolist(), self._find_column(values), strict=True):
                found[family].append(read)
        return tuple(map(tuple, found))

    def consistent_copies(self) -> tuple[int, int]:
        """Return (first, end) of the copies around the middle that read alike.

        The first may read something else of the copies before it, and the last of those after it.
        """
        middle, copies = self._middle, range(self._good.shape[1])
        first = 0
        for copy in copies:
            before, own, after = self._good[:, copy]
            if copy < middle and not (own and after):
                first = copy + 1
            elif copy < middle and not before:
                first = copy
            if copy > middle and not (own and before):
                return first, copy
            if copy > middle and not after:
                return first, copy + 1
        return first, len(copies)

    def _note_consistency(self, distances: Ints, good: np.ndarray) -> None:
        """Record which copies read as expected.

        Args:
            distances: distances of some reads.
            good: by read and copy, whether the copy reads as expected.
        """
        for side in (-1, 0, 1):
            self._good[side + 1] &= good[np.sign(distances) == side].all(axis=0)

    def _find_column(self, values: Ints) -> list[OperandSource | None]:
        """Return the sources of one operand of some families.

        Args:
            values: by family and copy.
        """
        middle = self._middle
        shared = values[:, middle] == values[:, middle + 1]
        self._good[1] &= (values[shared] == values[shared, middle][:, None]).all(axis=0)
        made = self._step.producer[values[:, middle]]
        reads = [
            None if is_shared else self._op_source(value, op) if op >= 0 else self._argument_source(row)
            for is_shared, value, op, row in zip(
                shared.tolist(), values[:, middle].tolist(), made.tolist(), values, strict=True
            )
        ]
        self._check(
            values[~shared & (made >= 0)],
            [read for read in reads if read is not None and not read.is_argument],
        )
        return reads

    def _op_source(self, value: int, op: int) -> OperandSource:
        family, distance = self._copy_at(op)
        return OperandSource(family, False, value - int(self._step.first_result[op]), distance)

    def _check(self, values: Ints, reads: list[OperandSource]) -> None:
        """Record the copies that do not read as the middle does."""
        if not reads:
            return
        step, ops, middle = self._step, self._ops, self._middle
        families, results, distances = (
            np.array([getattr(read, name) for read in reads]) for name in ("family", "result", "distance")
        )
        start = ops[families, middle]
        period = ops[families, middle + 1] - start
        steps = distances[:, None] + np.arange(ops.shape[1]) - middle
        places = start[:, None] + period[:, None] * steps
        inside = (places >= 0) & (places < len(step.ops))
        expected = step.first_result[np.where(inside, places, 0)] + results[:, None]
        self._note_consistency(distances, inside & (values == expected))

    def _argument_source(self, values: Ints) -> OperandSource:
        known = self._copy_of.get(int(values[self._middle]))
        copies = np.arange(len(values))
        if known is not None:
            family, copy = known
            shifted = copies + copy - self._middle
            inside = (shifted >= 0) & (shifted < len(copies))
            good = inside & (self.arguments[family][np.where(inside, shifted, 0)] == values)
            self._note_consistency(np.array([copy - self._middle]), good[None])
            return OperandSource(family, True, 0, copy - self._middle)
        family = len(self.arguments)
        self.arguments.append(values)
        for copy, value in enumerate(values.tolist()):
            is_new = self._copy_of.setdefault(value, (family, copy)) == (family, copy)
            self._good[1, copy] &= is_new and value < self._step.arguments
        return OperandSource(family, True, 0, 0)
