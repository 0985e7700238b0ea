"""Names of `torch_xla` that programs of the original stack import."""

from __future__ import annotations

from typing import Any


def _xla_set_parameter_name(tensor: Any, name: str) -> None:
    """Do nothing: state has the names of the model here."""


class SampleGenerator:
    """Yields one batch a number of times in each iteration.

    Args:
        data: The batch.
        sample_count: The number of times.
    """

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count
        self._count = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data
