"""What a batch is to a measurement: its samples, its bytes, its shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from input_analyzer.errors import VaryingShapesError

Batch = tuple[Any, ...]


def sample_count(batch: Batch) -> int:
    """The first size of its first array; 1 for scalars."""
    first = batch[0] if batch else None
    return int(first.shape[0]) if first is not None and len(first.shape) else 1


class SampleCount:
    """Counts the samples of batches.

    They are the first size of the first array, unless somebody else knows how many records a whole batch has:
    then those of the first array that has as many rows. Where none has, as of sequences whose first size is
    time, all batches have as many as a whole one.

    Args:
        batch_size: Records of a whole batch; None: nobody knows.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        self._batch_size = batch_size
        self._at: int | None = None
        self._sought = False

    def __call__(self, batch: Batch) -> int:
        """Samples of a batch; the first one tells where they are to be seen."""
        if self._batch_size is None:
            return sample_count(batch)
        if not self._sought:
            rows = (index for index, array in enumerate(batch) if array.shape[:1] == (self._batch_size,))
            self._sought, self._at = True, next(rows, None)
        if self._at is None or self._at >= len(batch):
            return self._batch_size
        return sample_count(batch[self._at :])


def size_bytes(batch: Batch) -> int:
    """Bytes of all its arrays."""
    return sum(int(array.nbytes) for array in batch)


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
