"""What a batch is to whoever looks at it: its samples and its bytes."""

from __future__ import annotations

from typing import Any

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
