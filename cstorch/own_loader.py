"""What input functions return that is no torch DataLoader: a list, a generator, a class with `__iter__`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset


class OwnLoader(DataLoader[Any]):
    """A DataLoader that iterates an object of the user's in this process.

    Attributes:
        iterated: The object.
    """

    def __init__(self, iterated: Iterable[Any]) -> None:
        self.iterated = iterated
        super().__init__(_Batches(iterated), batch_size=None, collate_fn=_unchanged)


class _Batches(IterableDataset[Any]):
    def __init__(self, iterated: Iterable[Any]) -> None:
        self.iterated = iterated

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterated)


def _unchanged(batch: Any) -> Any:
    return batch


def data_loader_of(made: Any) -> DataLoader[Any]:
    """Return the DataLoader that stands for what an input function returns.

    Args:
        made: Something that can be iterated for batches.

    Returns:
        Itself where it is a DataLoader, the DataLoader among its attributes where it reads one, else an
        `OwnLoader`.
    """
    if isinstance(made, DataLoader):
        return made
    attributes = getattr(made, "__dict__", {}).values()
    return next((one for one in attributes if isinstance(one, DataLoader)), None) or OwnLoader(made)
