"""Count and measure the batches of any framework: arrays, and text that no CS system can be fed with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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


DTYPE = "text"


@dataclass(frozen=True, slots=True)
class Texts:
    """Strings of a batch, with what a measurement asks an array for.

    Attributes:
        shape: of the array of strings.
        nbytes: of all strings together, in UTF-8.
    """

    shape: tuple[int, ...]
    nbytes: int

    @property
    def dtype(self) -> str:
        """As that of an array."""
        return DTYPE

    def __getitem__(self, key: None) -> Texts:
        """`texts[None]`: a batch of this one."""
        return Texts((1, *self.shape), self.nbytes)


def texts_of(values: Any) -> Texts | None:
    """Of a string, a list, tuple or array of strings; None for anything else."""
    if isinstance(values, str | bytes):
        return Texts((), _size(values))
    if isinstance(values, np.ndarray):
        flat: Sequence[Any] = values.ravel().tolist() if values.dtype.kind in "OSU" else ()
        return Texts(values.shape, sum(map(_size, flat))) if _are_texts(flat) else None
    if isinstance(values, list | tuple) and _are_texts(values):
        return Texts((len(values),), sum(map(_size, values)))
    return None


def text_notes(components: Iterable[tuple[str, str]]) -> list[str]:
    """What a reader must know of components, given as (name, dtype)."""
    names = [name for name, dtype in components if dtype == DTYPE]
    if not names:
        return []
    which = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
    return [
        f"{which} text, with which a CS system cannot be fed: leave it out of the batches, or make numbers "
        "of it, before a training there."
    ]


def _are_texts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str | bytes) for value in values)


def _size(text: str | bytes) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else len(text)
