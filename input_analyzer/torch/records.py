"""Records by their content: digests of what a dataset delivers, in this process.

All random numbers are begun anew before, of records with indices before each of them: what is left of a
difference is another record.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from input_analyzer.torch import chance
from input_analyzer.torch.generators import SEED, begin_anew, generators_of
from input_analyzer.torch.leaves import values_in
from input_analyzer.torch.loader import length_of

RECORDS = 32
"""So many records of an iterable dataset are compared."""

READ = 4
"""So many of a dataset with indices are read one after the other."""

LONGEST_S = 2.0
"""First records are read no longer."""

EPOCH_S = 1.0
"""An epoch that is read in that time is compared as a whole."""

_SPREAD, _SPREAD_S = 64, 0.25  # so many, spread over all of them, in so long, where tasks are compared


@dataclass(frozen=True)
class Part:
    """Records that a process reads in an epoch, by their digests, and whether these are all."""

    digests: tuple[str, ...]
    whole: bool


def read_part(records: Any, seconds: float, most: int | None = None) -> Part:
    """Reads records for so long, and no more than `most`."""
    end = time.monotonic() + seconds
    found: list[str] = []
    for record in records:
        found.append(digest(record))
        if len(found) == most or time.monotonic() > end:
            return Part(tuple(found), False)
    return Part(tuple(found), True)


def first_digests(dataset: Any, seed: int = SEED) -> tuple[str, ...]:
    """Digests of the first records of an iterable dataset, twice as many as a worker reads."""
    with chance.anew(seed):
        return tuple(digest(record) for record in within_time(iter(dataset), 2 * RECORDS))


def whole_epoch(dataset: Any) -> tuple[str, ...] | None:
    """Digests of all records of an iterable dataset; None where an epoch takes longer than `EPOCH_S`."""
    with chance.anew(SEED):
        part = read_part(dataset, EPOCH_S)
    return part.digests if part.whole else None


def begin_alike(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two sequences, cut off where their time was over, are the same as far as both were read.

    Sequences of which fewer than two records that differ are known say nothing, and are not.
    """
    first, second = as_long(one, other)
    return first == second and len(set(first)) > 1


def as_long(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """As many of both as there are of the shorter one."""
    common = min(len(one), len(other))
    return one[:common], other[:common]


def hangs_on_chance(dataset: Any) -> bool:
    """Whether the first records of an iterable dataset change with the random numbers of the process."""
    first = first_digests(dataset)
    return begin_alike(first_digests(dataset), first) and not begin_alike(
        first_digests(dataset, SEED + 1), first
    )


def within_time(records: Iterator[Any], most: int) -> Iterator[Any]:
    """The first of some records: no more than so many, and those that come in `LONGEST_S`."""
    end = time.monotonic() + LONGEST_S
    for record in islice(records, most):
        yield record
        if time.monotonic() > end:
            return


def records_at(dataset: Any, later: int) -> tuple[tuple[int, str], ...]:
    """Indices that are spread over a dataset, from one of them on, with digests of their records.

    As many as come in time; none where its indices are not numbers from 0 on.
    """
    indices = spread(length_of(dataset) or 0)
    later %= max(1, len(indices))
    indices = indices[later:] + indices[:later]
    return tuple(
        zip(indices, digests_at(dataset, indices, list(generators_of(dataset).values())), strict=False)
    )


def digests_at(dataset: Any, indices: list[int], own: list[Any]) -> tuple[str, ...]:
    """Of as many records as come in time, all random numbers begun anew before each of them.

    Args:
        dataset: One with indices.
        indices: Which records.
        own: Random generators that it has.
    """
    end = time.monotonic() + _SPREAD_S
    found: list[str] = []
    try:
        with chance.anew(SEED):
            for index in indices:
                chance.begin(SEED)
                for generator in own:
                    begin_anew(generator)
                found.append(digest(dataset[index]))
                if time.monotonic() > end:
                    break
    except (LookupError, TypeError):
        return ()  # its indices are not numbers from 0 on
    return tuple(found)


def spread(length: int) -> list[int]:
    """Indices in an order in which any number of the first ones is spread over all."""
    first = list(range(min(READ, length)))
    return list(dict.fromkeys(first + random.Random(SEED).sample(range(length), min(_SPREAD, length))))


def digest(record: Any) -> str:
    """A hash of all values in a record; of what has none, of its text."""
    content = hashlib.blake2b(digest_size=16)
    for name, leaf in values_in(record):
        content.update(name.encode())
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu()
            leaf = leaf.view(torch.uint8).numpy() if leaf.dtype is torch.bfloat16 else leaf.numpy()
        if isinstance(leaf, np.ndarray):
            content.update(f"{leaf.dtype}{leaf.shape}".encode())
            content.update(np.ascontiguousarray(leaf).tobytes())
        elif hasattr(leaf, "tobytes"):
            content.update(leaf.tobytes())
        else:
            content.update(repr(leaf).encode())
    return content.hexdigest()
