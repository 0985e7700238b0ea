"""A loader without its first batches, reached without making them where its samples allow that.

A loader over a dataset with `__getitem__` says which samples make a batch before it reads them. So batches
are left out by leaving out their indices: the order of a shuffle is drawn as always. That holds where making
a batch draws no random numbers, as augmentation and masking do. Whether it does is tried out: with 64 samples
a coin that nobody sees from outside stays hidden once in 2**64 times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

_TRIED = 64
"""Samples that are made again."""


def why_made(loader: Any) -> str:
    """Why batches that are left out have to be made all the same; "" where they have not.

    Args:
        loader: what the input function returns; not the one that is read, for it makes a batch here.
    """
    if type(loader) is not torch.utils.data.DataLoader:
        return f"a loader of the class {type(loader).__name__}"
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return "a dataset without indices"
    if loader.batch_sampler is None:
        return "a loader without batches of its own"
    indices = list(next(iter(loader.batch_sampler), []))[:_TRIED]
    before = _numbers()
    first = _batch(loader, indices)
    for _ in range(-(-_TRIED // max(1, len(indices)))):
        if _numbers() != before or not _equal(first, _batch(loader, indices)):
            return "batches that draw random numbers"
    return ""


def later(loader: Any, count: int) -> tuple[Iterator[Any], Callable[[], int]]:
    """One epoch of a loader without its first `count` batches.

    Returns:
        The batches, and how many have been left out so far: fewer where the epoch has fewer.
    """
    sampler = loader.batch_sampler
    without = _Without(sampler, count)
    # A loader refuses another sampler, for it might have workers already; this one has not begun.
    object.__setattr__(loader, "batch_sampler", without)
    try:
        return iter(loader), lambda: without.left_out
    finally:
        object.__setattr__(loader, "batch_sampler", sampler)


class _Without:
    """Batches of indices without the first ones."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler, self._count, self.left_out = sampler, count, 0

    def __iter__(self) -> Iterator[Any]:
        for indices in self._sampler:
            if self.left_out < self._count:
                self.left_out += 1
            else:
                yield indices

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._count)


def _batch(loader: Any, indices: list[Any]) -> Any:
    dataset = loader.dataset
    several = getattr(dataset, "__getitems__", None)
    return loader.collate_fn(several(indices) if several else [dataset[index] for index in indices])


def _numbers() -> tuple[Any, bytes, bytes]:
    """The state of the random numbers of a process."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return (
        (random.getstate(), name, rest),
        np.asarray(keys).tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    )


def _equal(first: Any, second: Any) -> bool:
    ours, theirs = pytree.tree_leaves(first), pytree.tree_leaves(second)
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return bool(np.array_equal(first, second))
