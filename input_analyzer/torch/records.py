"""Records by their content: digests of what a dataset delivers, in this process.

All random numbers are begun anew before, of records with indices before each of them: what is left of a
difference is another record.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import torch

from input_analyzer.torch import global_random
from input_analyzer.torch.batch_parts import values_in
from input_analyzer.torch.generators import SEED, begin_anew, generators_of
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


def read_part(records: Any, seconds: float, most: int | None = None, batched: bool = False) -> Part:
    """Reads records for so long, and no more than `most`, of batches as many as come with the last one.

    Args:
        records: In their order.
        seconds: For so long.
        most: So many digests are enough; None: any number.
        batched: See `digests_in`.
    """
    end = time.monotonic() + seconds
    found: list[str] = []
    for record in records:
        found += digests_in(record, batched)
        if (most is not None and len(found) >= most) or time.monotonic() > end:
            return Part(tuple(found), False)
    return Part(tuple(found), True)


def first_digests(dataset: Any, seed: int = SEED, batched: bool = False) -> tuple[str, ...]:
    """Digests of the first records of an iterable dataset, twice as many as a worker reads."""
    with global_random.anew(seed):
        return first_of(dataset, 2 * RECORDS, batched)


def first_of(dataset: Any, most: int, batched: bool = False) -> tuple[str, ...]:
    """Digests of so many first records of an iterable dataset, with the random numbers that there are."""
    found = (one for record in iter(dataset) for one in digests_in(record, batched))
    return tuple(within_time(found, most))


def whole_epoch(dataset: Any, seed: int = SEED, batched: bool = False) -> tuple[str, ...] | None:
    """Digests of all records of an iterable dataset; None where an epoch takes longer than `EPOCH_S`."""
    with global_random.anew(seed):
        part = read_part(dataset, EPOCH_S, batched=batched)
    return part.digests if part.whole else None


def digests_in(record: Any, batched: bool) -> list[str]:
    """The digest of a record; where a dataset makes batches, those of the rows.

    Records that are shuffled before a dataset batches them never make two batches alike.

    Args:
        record: What a dataset delivers.
        batched: Whether the loader leaves it to the dataset to make batches.
    """
    leaves = [leaf for _, leaf in values_in(record)] if batched else []
    sizes = {len(leaf) if getattr(leaf, "shape", ()) or isinstance(leaf, list) else None for leaf in leaves}
    vector = len(leaves) == 1 and len(getattr(leaves[0], "shape", ())) < 2  # more likely one record
    if len(sizes) != 1 or None in sizes or vector:
        return [digest(record)]
    return [digest(tuple(row)) for row in zip(*leaves, strict=True)]


def chosen_by_chance(dataset: Any, batched: bool = False) -> bool:
    """Whether random numbers of the process decide which records of an iterable dataset come.

    They do not where something in the records, as a label, comes in one order whatever the random numbers:
    then these only change records. Where an epoch is read in a second, and has the same records whatever the
    numbers, these decide about the order alone.
    """
    found = []
    for seed in (SEED, SEED + 1):
        with global_random.anew(seed):
            found.append(by_parts(iter(dataset), RECORDS))
    if has_common_part(*found):
        return False
    epoch = whole_epoch(dataset, batched=batched)
    if epoch is None:
        return True
    other = whole_epoch(dataset, SEED + 1, batched)
    return other is None or Counter(epoch) != Counter(other)


def by_parts(records: Iterator[Any], most: int) -> list[tuple[str, ...]]:
    """Of each of so many first records the digests of what is in it."""
    read = within_time(records, most)
    return [tuple(digest(value) for _, value in values_in(record)) for record in read]


def has_common_part(one: list[tuple[str, ...]], other: list[tuple[str, ...]]) -> bool:
    """Whether records, of which `by_parts` tells, are the same, or have a part that comes in the same order.

    A part that is the same in all records says nothing.
    """
    first, second = as_long(tuple(one), tuple(other))
    pairs = zip(zip(*first, strict=False), zip(*second, strict=False), strict=False)
    return first == second or any(ours == theirs and len(set(ours)) > 1 for ours, theirs in pairs)


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
        with global_random.anew(SEED):
            for index in indices:
                global_random.begin(SEED)
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
    """A hash of all values in a record, also in the attributes of objects; of what has none, of its text."""
    content = hashlib.blake2b(digest_size=16)
    for name, leaf in _leaves(record):
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
            content.update(_ADDRESS.sub("", repr(leaf)).encode())
    return content.hexdigest()


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DEEPEST, _MOST_INSIDE = 4, 1000  # objects within objects; what they refer to may be all of the data


def _leaves(record: Any) -> Iterator[tuple[str, Any]]:
    """What is in a record by its name: in containers, and in the attributes of objects."""
    waiting = deque([("", record, 0)])
    inside = 0
    while waiting:
        whose, thing, depth = waiting.popleft()
        for name, leaf in values_in(thing, whose):
            attributes = _attributes(leaf) if depth < _DEEPEST else {}
            if attributes:
                waiting.append((f"{name}.", attributes, depth + 1))
            else:
                yield name, leaf
            inside += depth > 0
            if inside > _MOST_INSIDE:
                return


def _attributes(thing: Any) -> dict[str, Any]:
    if isinstance(thing, torch.Tensor | np.ndarray | type | ModuleType) or hasattr(thing, "tobytes"):
        return {}
    return getattr(thing, "__dict__", {})
