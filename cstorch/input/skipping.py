"""Skips the first batches of a loader, without making them if that changes nothing.

A loader over a dataset with `__getitem__` chooses the indices of a batch before it reads the samples, so
batches are skipped by skipping their indices; a shuffled order is drawn as always. This is correct unless
making a batch draws random numbers, as augmentation and masking do, which is tested by making samples twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

# Samples that are made twice: a dataset that flips a coin for each, from a generator that is not visible
# from outside, passes the test once in 2**64 times.
_TESTED_SAMPLES = 64


def why_made(loader: Any) -> str:
    """Return the reason why skipped batches have to be made all the same; "" if they need not.

    Args:
        loader: Return value of the input function, separate from the one that is read: it makes a batch here.
    """
    if type(loader) is not torch.utils.data.DataLoader:
        return f"a loader of the class {type(loader).__name__}"
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return "a dataset without indices"
    if loader.batch_sampler is None:
        return "a loader that forms no batches"
    indices = list(next(iter(loader.batch_sampler), []))[:_TESTED_SAMPLES]
    before = _numbers()
    first = _batch(loader, indices)
    for _ in range(-(-_TESTED_SAMPLES // max(1, len(indices)))):
        if _numbers() != before or not _equal(first, _batch(loader, indices)):
            return "batches that draw random numbers"
    return ""


def later(loader: Any, count: int) -> tuple[Iterator[Any], Callable[[], int]]:
    """Iterate over one epoch of a loader without its first `count` batches.

    Returns:
        The batches, and a function that returns the number of batches skipped so far, which is below `count`
        if the epoch is shorter.
    """
    sampler = loader.batch_sampler
    skipping = _SkippingSampler(sampler, count)
    # A loader refuses another sampler because it may have workers already; this one has not started.
    object.__setattr__(loader, "batch_sampler", skipping)
    try:
        return iter(loader), lambda: skipping.skipped
    finally:
        object.__setattr__(loader, "batch_sampler", sampler)


class _SkippingSampler:
    """A batch sampler without the first batches of indices."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler, self._count, self.skipped = sampler, count, 0

    def __iter__(self) -> Iterator[Any]:
        for indices in self._sampler:
            if self.skipped < self._count:
                self.skipped += 1
            else:
                yield indices

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._count)


def _batch(loader: Any, indices: list[Any]) -> Any:
    dataset = loader.dataset
    get_items = getattr(dataset, "__getitems__", None)
    return loader.collate_fn(get_items(indices) if get_items else [dataset[index] for index in indices])


def _numbers() -> tuple[Any, bytes, bytes]:
    """Return the states of the random number generators of this process."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return (
        (random.getstate(), name, rest),
        np.asarray(keys).tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    )


def _equal(first: Any, second: Any) -> bool:
    leaves, others = pytree.tree_leaves(first), pytree.tree_leaves(second)
    return len(leaves) == len(others) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else bool(np.array_equal(x, y))
        for x, y in zip(leaves, others, strict=True)
    )
