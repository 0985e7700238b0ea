"""What a batch is to a measurement: its samples, its bytes, its shapes."""

from __future__ import annotations

from collections import Counter
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
    then those of an array that has as many rows; of one that has as many columns, if all arrays have
    (sequences whose first dimension is time); else the first size that all arrays with sizes have in common.
    Where there is none, or every record has arrays of its own, as the images of a detection, all batches have
    as many as a whole one.

    Args:
        batch_size: Records of a whole batch; None: nobody knows.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        self._batch_size = batch_size
        self._at: tuple[int, int] | None = None
        self._sought = False

    def __call__(self, batch: Batch) -> int:
        """Samples of a batch; the first one tells where they are to be seen."""
        if not self._sought:
            self._sought, self._at = True, self._place(batch)
        if self._at is not None:
            array, axis = self._at
            if array < len(batch) and axis < len(batch[array].shape):
                return int(batch[array].shape[axis])
        return sample_count(batch) if self._batch_size is None else self._batch_size

    def _place(self, batch: Batch) -> tuple[int, int] | None:
        size = self._batch_size
        if size is None:
            return None
        shapes = [tuple(array.shape) for array in batch]
        rows = [index for index, shape in enumerate(shapes) if shape[:1] == (size,)]
        if rows:
            return rows[0], 0
        columns = [index for index, shape in enumerate(shapes) if shape[1:2] == (size,)]
        if columns and len(columns) == len(shapes):
            return columns[0], 1
        sized = [(index, shape[0]) for index, shape in enumerate(shapes) if shape]
        if size > 1 and not any(count % size for count in Counter(filter(None, shapes)).values()):
            return None  # tuples of arrays, one for each record
        return (sized[0][0], 0) if len({rows for _, rows in sized}) == 1 else None


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
