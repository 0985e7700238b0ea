"""Checks that all batches that a measurement meets are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from input_analyzer.errors import VaryingShapesError
from input_rules.batches import Batch, SampleCount, size_bytes


class Shapes:
    """Checks that all batches are alike.

    A batch with fewer samples than the first is let pass: the last of an epoch is, without drop_remainder,
    which is for a finding to say.

    Args:
        names: What the user calls the arrays; called when one is to be named.
        batch_size: Records of a whole batch, see SampleCount.
    """

    def __init__(self, names: Callable[[], Sequence[str]] = tuple, batch_size: int | None = None) -> None:
        self._names = names
        self._count = SampleCount(batch_size)
        self._first: tuple[tuple[str, tuple[int, ...]], ...] | None = None
        self._usual: list[tuple[Any, Any]] | None = None
        self._counts = (0, 0)
        self._seen = 0
        self.samples = 0
        """Those of the first batch; 0 before it."""

    @property
    def first(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(dtype, shape) of every array of the first batch; empty before it."""
        return self._first or ()

    def name(self, index: int) -> str:
        """What the user calls an array."""
        names = self._names()
        return names[index] if index < len(names) else f"component {index}"

    def check(self, batch: Batch) -> tuple[int, int]:
        """Compares with the first batch; returns the samples and bytes of this one.

        Raises:
            VaryingShapesError: another number of arrays, other types, or other shapes.
        """
        self._seen += 1
        # A batch may take 100 us in all: nearly always this comparison, of a microsecond, is enough.
        plain = [(array.dtype, array.shape) for array in batch]
        if plain != self._usual:
            counts = self._count(batch), size_bytes(batch)
            if not self._compare(batch):
                return counts
            self._usual, self._counts = plain, counts
        return self._counts

    def _compare(self, batch: Batch) -> bool:
        """Whether it is just like the first one."""
        now = tuple((_type(array), tuple(map(int, array.shape))) for array in batch)
        if self._first is None:
            self._first, self.samples = now, self._count(batch)
        if now == self._first:
            return True
        if len(now) != len(self._first):
            raise VaryingShapesError(
                "the batch", f"{len(self._first)} arrays", f"{len(now)} arrays", self._seen
            )
        for index, (before, after) in enumerate(zip(self._first, now, strict=True)):
            if not _alike(before, after):
                raise VaryingShapesError(self.name(index), _shown(before), _shown(after), self._seen)
        return False


def _type(array: Any) -> str:
    """NumPy's name of a type, that of torch's tensors too."""
    return str(array.dtype).removeprefix("torch.")


def _alike(first: tuple[str, tuple[int, ...]], other: tuple[str, tuple[int, ...]]) -> bool:
    (dtype, shape), (other_dtype, other_shape) = first, other
    if dtype != other_dtype or len(shape) != len(other_shape):
        return False
    return shape[1:] == other_shape[1:] and (shape[:1] >= other_shape[:1])


def _shown(array: tuple[str, tuple[int, ...]]) -> str:
    dtype, shape = array
    return f"{dtype}{list(shape)}"
