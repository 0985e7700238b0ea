"""What two tasks have in common: found out by reading a few records as each of them does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from input_analyzer.torch import worker_probe
from input_analyzer.torch.generators import generators_of
from input_analyzer.torch.loader import batched_by_dataset, length_of, parts_of
from input_analyzer.torch.orders import Indices, indices_of, reads_all
from input_analyzer.torch.records import (
    RECORDS,
    as_long,
    begin_alike,
    digest,
    digests_at,
    first_digests,
    first_of,
    spread,
    whole_epoch,
)

_PADDING = 0.02  # part of its records that a task may share with another one, because they do not divide
_DRAWN = 16


@dataclass(frozen=True)
class Task:
    """What a task reads, as far as it takes to compare it with another one.

    Attributes:
        stream: Of an iterable dataset digests of its first records, read twice; else None.
        natural: Of an iterable dataset digests of its first records, with the random numbers that a reader of
            the loader has.
        epochs: Of one that changes by itself the digests of two whole epochs; None where that takes too long.
        length: Number of records of the dataset; None where it does not tell.
        data: Digests of records that are spread over its indices, read twice; as many as come in time.
        drawn: Where no index decides anything, and random numbers do: digests of the records that come
            first. Else empty.
        reads_all: It reads every record of its dataset once.
        indices: Of an epoch; None where there are none.
        kept: Records of an epoch.
        padded: Records that a sampler for several tasks repeats to fill up; None for another sampler.
    """

    stream: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    natural: tuple[str, ...] = ()
    epochs: tuple[Counter[str], Counter[str]] | None = None
    length: int | None = None
    data: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
    drawn: tuple[str, ...] = ()
    reads_all: bool = False
    indices: Indices | None = None
    kept: int | None = None
    padded: int | None = None


def task_of(loader: Any) -> Task:
    """Reads a few records of a task, each twice: what differs then changes by itself.

    Random numbers of the process that its order hangs on are to stand as they do in that task.
    """
    parts = parts_of(loader)
    dataset, order = loader.dataset, parts.order
    if parts.iterable:
        batched = batched_by_dataset(loader)
        stream = first_digests(dataset, batched=batched), first_digests(dataset, batched=batched)
        natural = _read_as_it_is(loader, partial(first_of, most=2 * RECORDS, batched=batched))
        if begin_alike(*stream) and not begin_alike(stream[0], natural):
            # Random numbers of the process, or others that happened to be alike: a third time tells.
            stream = stream[0], first_digests(dataset, batched=batched)
        epochs = None if begin_alike(*stream) else _two_epochs(dataset, batched)
        return Task(stream=stream, natural=natural, epochs=epochs, length=length_of(dataset))
    whole = reads_all(order)
    length = length_of(dataset)
    shown = spread(length or 0)
    own = list(generators_of(dataset).values())
    first = digests_at(dataset, shown, own)
    again = digests_at(dataset, shown[: len(first)], own)
    alike = len(first) > 1 and len(set(first)) == 1
    return Task(
        length=length,
        data=as_long(first, again),
        drawn=_drawn(loader) if alike else (),
        reads_all=whole,
        indices=None if whole else indices_of(parts),
        kept=length_of(order),
        padded=_padded(order, length),
    )


def _two_epochs(dataset: Any, batched: bool) -> tuple[Counter[str], Counter[str]] | None:
    """Digests of all records of two epochs; None where one takes too long, or has none."""
    epoch = whole_epoch(dataset, batched=batched)
    again = whole_epoch(dataset, batched=batched) if epoch else None
    return (Counter(epoch), Counter(again)) if epoch and again else None


def _drawn(loader: Any) -> tuple[str, ...]:
    """Digests of the records that come first, with the random numbers that a reader of the loader has then.

    () where these are all alike, too: then they are not random.
    """
    found = _read_as_it_is(loader, _as_they_come)
    return found if len(set(found)) > 1 else ()


def _read_as_it_is(loader: Any, read: Callable[[Any], tuple[str, ...]]) -> tuple[str, ...]:
    """What a function reads of a dataset with the random numbers that a reader of the loader has."""
    if loader.num_workers:
        return next(iter(worker_probe.in_workers(loader, 1, read)), ())
    return read(loader.dataset)


def _as_they_come(dataset: Any) -> tuple[str, ...]:
    return tuple(digest(dataset[index]) for index in islice(range(len(dataset)), _DRAWN))


def tasks_differ(ours: Task, theirs: Task) -> bool | None:
    """Whether two tasks read different records; None where that cannot be told."""
    if ours.stream is not None or theirs.stream is not None:
        return _streams_differ(ours, theirs)
    if ours.length != theirs.length:
        return True
    if ours.drawn or theirs.drawn:
        return False if begin_alike(ours.drawn, theirs.drawn) else None
    if ours.data[0] != ours.data[1]:
        return None
    if records_differ(ours, theirs):
        return True
    if ours.reads_all and theirs.reads_all:
        return False
    if ours.indices is None or theirs.indices is None:
        return None
    return _indices_differ(ours.indices, theirs.indices)


def _indices_differ(ours: Indices, theirs: Indices) -> bool | None:
    if not (ours.whole and theirs.whole):
        return False if begin_alike(ours.first, theirs.first) else None
    first, second = frozenset(ours.first), frozenset(theirs.first)
    common = first & second
    if len(common) == len(first) == len(second):
        return False
    return True if len(common) <= max(1, _PADDING * len(first)) else None


def records_differ(ours: Task, theirs: Task) -> bool:
    """Whether two tasks have other records at equal indices."""
    first, second = as_long(ours.data[0], theirs.data[0])
    return first != second


def _streams_differ(first: Task, second: Task) -> bool | None:
    if first.stream is None or second.stream is None:
        return True
    ours, again = first.stream
    theirs = second.stream[0]
    if len(set(ours)) < 2:
        return None
    # Epoch for epoch, though one may differ from the next.
    if all(begin_alike(one, other) for one, other in zip(first.stream, second.stream, strict=True)):
        return False
    if first.epochs is not None and second.epochs is not None:
        return _epochs_differ(first.epochs, second.epochs)
    # Both: what changes by itself may begin alike twice by chance, as one that draws from few files does.
    if not (begin_alike(ours, again) and begin_alike(*second.stream)):
        return None
    if begin_alike(ours, theirs):
        return False
    return None if set(ours) & set(theirs) else True


def _epochs_differ(
    ours: tuple[Counter[str], Counter[str]], theirs: tuple[Counter[str], Counter[str]]
) -> bool | None:
    """Whether two tasks read different records, of which each has read two epochs."""
    if any(one & other for one, other in zip(ours, theirs, strict=True)):
        return False if ours[0] == ours[1] == theirs[0] == theirs[1] else None
    if ours[0] == ours[1] and theirs[0] == theirs[1]:
        return True
    # Each has other ones in its next epoch: then both share out the same, as files in the order of an epoch.
    # Else random numbers of their own have changed the records, which says nothing about tasks.
    return True if ours[0] + theirs[0] == ours[1] + theirs[1] else None


def _padded(order: Any, length: int | None) -> int | None:
    total = getattr(order, "total_size", None)
    if not isinstance(total, int) or not hasattr(order, "num_replicas") or length is None:
        return None
    return max(0, total - length)
