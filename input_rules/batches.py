"""Count the samples and bytes of batches of any framework.

A measurement counts text like arrays, although it cannot be streamed to a CS system.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Batch = tuple[Any, ...]


def count_samples(batch: Batch) -> int:
    """Return the length of the first array; 1 for scalars."""
    first = batch[0] if batch else None
    return int(first.shape[0]) if first is not None and len(first.shape) else 1


class SampleCounter:
    """Counts the samples of batches.

    Without a known batch size, that is the length of the first array. With one, it is the length of the first
    array that has as many rows in a full batch. If no array has, as for sequences that are laid out time
    first, every batch counts as a full one.

    Args:
        batch_size: Records of a full batch; None if unknown.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        self._batch_size = batch_size
        self._at: int | None = None
        self._searched = False

    def __call__(self, batch: Batch) -> int:
        """Return the samples of a batch; the first batch decides which array is counted."""
        if self._batch_size is None:
            return count_samples(batch)
        if not self._searched:
            rows = (index for index, array in enumerate(batch) if array.shape[:1] == (self._batch_size,))
            self._searched, self._at = True, next(rows, None)
        if self._at is None or self._at >= len(batch):
            return self._batch_size
        return count_samples(batch[self._at :])


def batch_bytes(batch: Batch) -> int:
    """Return the bytes of all arrays of a batch."""
    return sum(int(array.nbytes) for array in batch)


DTYPE = "text"


@dataclass(frozen=True, slots=True)
class Texts:
    """Strings of a batch, with the attributes of an array that a measurement needs.

    Attributes:
        shape: shape of the array of strings.
        nbytes: bytes of all strings in UTF-8.
    """

    shape: tuple[int, ...]
    nbytes: int

    @property
    def dtype(self) -> str:
        """The name that text has among the types of arrays."""
        return DTYPE

    def __getitem__(self, key: None) -> Texts:
        """Support `texts[None]`: add a leading dimension of 1."""
        return Texts((1, *self.shape), self.nbytes)


def as_texts(values: Any) -> Texts | None:
    """Wrap a string, or a list, tuple or array of strings; return None for anything else."""
    if isinstance(values, str | bytes):
        return Texts((), _size(values))
    if isinstance(values, np.ndarray):
        flat: Sequence[Any] = values.ravel().tolist() if values.dtype.kind in "OSU" else ()
        return Texts(values.shape, sum(map(_size, flat))) if _are_texts(flat) else None
    if isinstance(values, list | tuple) and _are_texts(values):
        return Texts((len(values),), sum(map(_size, values)))
    return None


def text_notes(components: Iterable[tuple[str, str]]) -> list[str]:
    """Return a note about the text components, given as pairs of name and dtype."""
    names = [name for name, dtype in components if dtype == DTYPE]
    if not names:
        return []
    which = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
    return [
        f"{which} text, which cannot be streamed to a CS system: leave it out of the batches, or convert it "
        "to numbers, before you train there."
    ]


def _are_texts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str | bytes) for value in values)


def _size(text: str | bytes) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else len(text)
