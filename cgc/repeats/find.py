"""Find the block that repeats in a step: ops with equal labels at a constant stride, which read alike.

The blocks of a deep network are copies of one block, in the forward pass, the backward pass and the update. A
family is all copies of one op of the block, at a constant stride in the step; it may be negative in the
backward pass. A long run of equal ops is found by its period. The other families are found through it: ops
that read ops of a known family, and ops that these read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cgc.cirh.op_table import Ints, OpTable

MIN_COPIES = 5  # below this, rewriting each copy separately is just as fast
_WINDOW = 8  # equal ops in a row that are compared to find periods
_MAX_PERIODS = 8  # number of the most common periods that are tried
_MAX_RUNS = 2  # number of the longest runs that are tried
_MAX_COPY_DISTANCE = 3  # an op reads copies that are at most this far from its own


@dataclass(frozen=True)
class OperandSource:
    """Where an operand comes from, in every copy.

    Attributes:
        family: family of the op, or of the argument.
        is_argument: True for an argument of the step, False for a result of an op.
        result: index among the results of the op; 0 for an argument.
        distance: copy of the source minus copy of the reader.
    """

    family: int
    is_argument: bool
    result: int
    distance: int


@dataclass(frozen=True)
class Repeats:
    """Consistent copies of a block: they have equal ops, whose operands follow one pattern.

    Only reads from other copies may differ: the first copy may read anything from copies before it, and the
    last one from copies after it.

    Attributes:
        ops: index of each op of the block, by family and copy.
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

    def value(self, step: OpTable, source: OperandSource, copy: int) -> int:
        """Return the number of the value that an operand reads.

        Args:
            step: the step.
            source: of the operand.
            copy: copy of the source, not of the reader.
        """
        if source.is_argument:
            return int(self.arguments[source.family, copy])
        return int(step.first_result[self.ops[source.family, copy]]) + source.result


class CopiesDifferError(Exception):
    """Copies cannot be rewritten as one: they, or the results of passes on them, follow no common pattern."""


def find_repeats(step: OpTable) -> Repeats | None:
    """Return the block that repeats in a step, found from one of the runs that cover most ops; else None.

    Raises:
        CopiesDifferError: an op reads copies that are too far from its own.
    """
    runs: list[tuple[int, int, int]] = []
    for period in _common_periods(step.labels):
        is_equal = (step.labels[period:] == step.labels[:-period]).astype(np.int8)
        edges = np.flatnonzero(np.diff(np.concatenate(([0], is_equal, [0]))))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            copies = (end - start) // period + 1
            if copies >= MIN_COPIES:
                runs.append((start, period, copies))
    runs.sort(key=lambda run: (-run[1] * run[2], run[1]))
    for start, period, copies in runs[:_MAX_RUNS]:
        repeats = _Families(step).grow(start + copies // 2 * period, period)
        if repeats is not None:
            return repeats
    return None


def _common_periods(labels: Ints) -> list[int]:
    """Return the most common distances between a window of labels and its next occurrence."""
    if len(labels) < 2 * _WINDOW:
        return []
    factors = np.uint64(0x9E3779B97F4A7C15) ** np.arange(_WINDOW, dtype=np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(labels.astype(np.uint64), _WINDOW)
    hashes = (windows * factors).sum(axis=1, dtype=np.uint64)
    order = np.argsort(hashes, kind="stable")
    is_equal = hashes[order[1:]] == hashes[order[:-1]]
    distances = (order[1:] - order[:-1])[is_equal]
    return [period for period, _ in Counter(distances.tolist()).most_common(_MAX_PERIODS)]


class _Families:
    """Families of the ops of a block, found from two consecutive copies in the middle of a run.

    The first of the two is the middle copy. The offset of a copy is its number minus that of the middle.
    """

    def __init__(self, step: OpTable) -> None:
        self._step = step
        # Index of an op near the middle -> (family, offset).
        self._families: dict[int, tuple[int, int]] = {}
        # By family: index of its op in the middle copy, and the distance to its op in the next copy.
        self._middle_ops: list[int] = []
        self._strides: list[int] = []
        # (reader, producer) of reads by ops of the middle.
        self._reads: list[tuple[int, int]] = []

    def grow(self, start: int, period: int) -> Repeats | None:
        """Find all families around a run.

        Args:
            start: index of the first op of the middle copy.
            period: distance to the next copy.
        """
        for op in range(start, start + period):
            self._add(op, op + period)
        family = 0
        while family < len(self._middle_ops):
            op = self._middle_ops[family]
            if not self._follow(op, op + self._strides[family]):
                return None
            family += 1
        self._align_sections()
        return self._consistent_repeats()

    def _add(self, op: int, next_op: int) -> None:
        self._middle_ops.append(op)
        self._strides.append(next_op - op)
        self._index_family(len(self._middle_ops) - 1)

    def _index_all(self) -> None:
        self._families.clear()
        for family in range(len(self._middle_ops)):
            self._index_family(family)

    def _index_family(self, family: int) -> None:
        for offset in range(-_MAX_COPY_DISTANCE, _MAX_COPY_DISTANCE + 1):
            op = self._middle_ops[family] + offset * self._strides[family]
            self._families.setdefault(op, (family, offset))

    def _follow(self, op: int, next_op: int) -> bool:
        """Add the producers and users of an op; return False if the next copy of the op reads differently."""
        step = self._step
        for value, next_value in zip(step.operands(op), step.operands(next_op), strict=True):
            if value == next_value:
                continue
            producer, next_producer = int(step.producer[value]), int(step.producer[next_value])
            if producer == next_producer:
                if producer >= 0:  # different results of the same op
                    return False
                self._follow_users(value, next_value)
                continue
            if min(producer, next_producer) < 0 or step.labels[producer] != step.labels[next_producer]:
                return False
            if producer not in self._families:
                self._add(producer, next_producer)
            family, _ = self._families[producer]
            if next_producer != producer + self._strides[family]:
                return False
            self._reads.append((op, producer))
        for value, next_value in zip(step.results(op), step.results(next_op), strict=True):
            self._follow_users(value, next_value)
        return True

    def _follow_users(self, value: int, next_value: int) -> None:
        users, next_users = self._step.users(value), self._step.users(next_value)
        if len(users) != len(next_users):
            return
        for user, next_user in zip(users, next_users, strict=True):
            is_new = user not in self._families and user != next_user
            if is_new and self._step.labels[user] == self._step.labels[next_user]:
                self._add(user, next_user)

    def _align_sections(self) -> None:
        """Choose the middle ops so that they are one block, whose ops read each other."""
        # A run may begin anywhere in a block, and an op found through reads may belong to another copy.
        section_of = self._align_within_sections()
        self._index_all()
        # Count the distances over which sections read each other, and make the most common one 0.
        distances: dict[int, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
        for op, producer in self._reads:
            reader_family, reader_copy = self.find_copy(op)
            producer_family, producer_copy = self.find_copy(producer)
            reader, read = section_of[reader_family], section_of[producer_family]
            distances[reader][read][producer_copy - reader_copy] += 1
            distances[read][reader][reader_copy - producer_copy] += 1
        shifts = {0: 0}
        pending = [0]
        while pending:
            section = pending.pop(0)
            for other, counts in distances[section].items():
                if other not in shifts:
                    shifts[other] = shifts[section] + counts.most_common(1)[0][0]
                    pending.append(other)
        for family, section in enumerate(section_of):
            self._middle_ops[family] += shifts.get(section, 0) * self._strides[family]
        self._index_all()

    def _align_within_sections(self) -> list[int]:
        """Move the middle ops of each section into one block, and return the section of each family.

        A section is a part of the step where copies are in sequence at one stride, such as the forward pass.
        """
        sections: list[tuple[int, int, list[int]]] = []
        for family, (op, stride) in enumerate(zip(self._middle_ops, self._strides, strict=True)):
            for start, section_stride, families in sections:
                if section_stride == stride and abs(op - start) < 2 * abs(stride):
                    families.append(family)
                    break
            else:
                sections.append((op, stride, [family]))
        section_of = [0] * len(self._middle_ops)
        for section, (start, stride, families) in enumerate(sections):
            size = abs(stride)
            # The first block ends with the family that begins last, so that this block is complete.
            second_block = max(self._first_op(family) for family in families) + 1
            start -= (start - second_block) % size
            for family in families:
                self._middle_ops[family] -= (self._middle_ops[family] - start) // size * size
                section_of[family] = section
        return section_of

    def _first_op(self, family: int) -> int:
        """Return the index of the first op of a family in the step."""
        labels, size, op = self._step.labels, abs(self._strides[family]), self._middle_ops[family]
        candidates = np.arange(op % size, op + 1, size)
        others = np.flatnonzero(labels[candidates] != labels[op])
        return int(candidates[others[-1] + 1 if len(others) else 0])

    def find_copy(self, op: int) -> tuple[int, int]:
        """Return (family, offset) of an op near the middle.

        Raises:
            CopiesDifferError: it is in none of the copies near the middle.
        """
        found = self._families.get(op)
        if found is None:
            raise CopiesDifferError(f"an op reads from more than {_MAX_COPY_DISTANCE} copies away")
        return found

    def _consistent_repeats(self) -> Repeats | None:
        """Return the consistent copies around the middle; None if they are too few."""
        # After alignment, the middle op of a family with fewer copies than others may be outside the step.
        if not all(0 <= op < len(self._step.labels) for op in self._middle_ops):
            return None
        low, high = self._extents()
        if high - low + 1 < MIN_COPIES:
            return None
        middle, strides = np.array(self._middle_ops), np.array(self._strides)
        ops = middle[:, None] + strides[:, None] * np.arange(low, high + 1)
        if len(np.unique(ops)) < ops.size:  # an op belongs to one copy of one family
            return None
        finder = _SourceFinder(self._step, ops, -low, self.find_copy)
        reads = finder.find()
        first, end = finder.consistent_copies()
        if end - first < MIN_COPIES:
            return None
        arguments = np.array(finder.arguments, np.int64).reshape(len(finder.arguments), ops.shape[1])
        return Repeats(ops[:, first:end], arguments[:, first:end], reads)

    def _extents(self) -> tuple[int, int]:
        """Return the offsets of the first and the last copy whose ops all have the labels of the middle."""
        labels = self._step.labels.tolist()
        count = len(labels)
        low, high = -count, count
        for middle_op, stride in zip(self._middle_ops, self._strides, strict=True):
            label, offset, op = labels[middle_op], 0, middle_op - stride
            while offset > low and 0 <= op < count and labels[op] == label:
                offset, op = offset - 1, op - stride
            low = offset
            offset, op = 0, middle_op + stride
            while offset < high and 0 <= op < count and labels[op] == label:
                offset, op = offset + 1, op + stride
            high = offset
        return low, high


class _SourceFinder:
    """Finds the sources of operands in the middle copy, and the copies for which they hold.

    Attributes:
        arguments: by family and copy, the arguments that belong to a copy.
    """

    def __init__(
        self, step: OpTable, ops: Ints, middle: int, find_copy: Callable[[int], tuple[int, int]]
    ) -> None:
        self._step, self._ops, self._middle, self._find_copy = step, ops, middle, find_copy
        # Argument -> its (family, copy).
        self._argument_copies: dict[int, tuple[int, int]] = {}
        # True for each copy that reads as the middle does: from earlier copies, itself, and later copies.
        self._consistent = np.ones((3, ops.shape[1]), bool)
        self.arguments: list[Ints] = []

    def find(self) -> tuple[tuple[OperandSource | None, ...], ...]:
        """Return the source of each operand of each family."""
        step, ops = self._step, self._ops
        first, end = step.first_read[ops], step.first_read[ops + 1]
        counts = (end - first)[:, self._middle]
        sources: list[list[OperandSource | None]] = [[] for _ in ops]
        for operand in range(int(counts.max(initial=0))):
            families = np.flatnonzero(counts > operand)
            values = step.read[first[families] + operand]
            for family, source in zip(families.tolist(), self._operand_sources(values), strict=True):
                sources[family].append(source)
        return tuple(map(tuple, sources))

    def consistent_copies(self) -> tuple[int, int]:
        """Return (first, end) of the copies around the middle that are consistent.

        The first may read differently from the copies before it, and the last from the copies after it.
        """
        middle, copies = self._middle, range(self._consistent.shape[1])
        first = 0
        for copy in copies:
            earlier, own, later = self._consistent[:, copy]
            if copy < middle and not (own and later):
                first = copy + 1
            elif copy < middle and not earlier:
                first = copy
            if copy > middle and not (own and earlier):
                return first, copy
            if copy > middle and not later:
                return first, copy + 1
        return first, len(copies)

    def _operand_sources(self, values: Ints) -> list[OperandSource | None]:
        """Return the sources of one operand of some families, and record the copies for which they hold.

        Args:
            values: read by the operand, by family and copy.
        """
        step, middle = self._step, self._middle
        is_shared = values[:, middle] == values[:, middle + 1]
        self._consistent[1] &= (values[is_shared] == values[is_shared, middle][:, None]).all(axis=0)
        producers = step.producer[values[:, middle]]
        sources: list[OperandSource | None] = []
        of_ops: list[OperandSource] = []
        for row, shared, producer in zip(values, is_shared.tolist(), producers.tolist(), strict=True):
            if shared:
                sources.append(None)
            elif producer < 0:
                sources.append(self._argument_source(row))
            else:
                family, distance = self._find_copy(producer)
                result = int(row[middle] - step.first_result[producer])
                of_ops.append(OperandSource(family, False, result, distance))
                sources.append(of_ops[-1])
        if of_ops:
            self._record_op_reads(values[~is_shared & (producers >= 0)], of_ops)
        return sources

    def _record_op_reads(self, values: Ints, sources: list[OperandSource]) -> None:
        """Record the copies that read results of ops as the middle does."""
        step, ops, middle = self._step, self._ops, self._middle
        families = np.array([source.family for source in sources])
        results = np.array([source.result for source in sources])
        distances = np.array([source.distance for source in sources])
        start = ops[families, middle]
        strides = ops[families, middle + 1] - start
        offsets = distances[:, None] + np.arange(ops.shape[1]) - middle
        producers = start[:, None] + strides[:, None] * offsets
        is_inside = (producers >= 0) & (producers < len(step.ops))
        expected = step.first_result[np.where(is_inside, producers, 0)] + results[:, None]
        self._record_consistency(distances, is_inside & (values == expected))

    def _argument_source(self, values: Ints) -> OperandSource:
        """Return the source of an operand that is an argument of each copy, and record where it holds."""
        known = self._argument_copies.get(int(values[self._middle]))
        copies = np.arange(len(values))
        if known is not None:
            family, copy = known
            distance = copy - self._middle
            source_copies = copies + distance
            is_inside = (source_copies >= 0) & (source_copies < len(copies))
            expected = self.arguments[family][np.where(is_inside, source_copies, 0)]
            self._record_consistency(np.array([distance]), (is_inside & (expected == values))[None])
            return OperandSource(family, True, 0, distance)
        family = len(self.arguments)
        self.arguments.append(values)
        for copy, value in enumerate(values.tolist()):
            is_new = self._argument_copies.setdefault(value, (family, copy)) == (family, copy)
            self._consistent[1, copy] &= is_new and value < self._step.arguments
        return OperandSource(family, True, 0, 0)

    def _record_consistency(self, distances: Ints, is_consistent: np.ndarray) -> None:
        """Record which copies read as the middle does.

        Args:
            distances: distance of each read.
            is_consistent: by read and copy, True if the copy reads as the middle does.
        """
        for side in (-1, 0, 1):
            self._consistent[side + 1] &= is_consistent[np.sign(distances) == side].all(axis=0)
