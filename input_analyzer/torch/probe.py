"""What worker processes have in common, and tasks: found out by reading a few records as they do.

Records are compared by their content, with the random numbers of Python, NumPy and torch begun anew before
them: what is left of a difference is another record, or numbers out of a generator of the user's own. Records
with indices have those begun anew too.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, get_worker_info

from input_analyzer.torch import chance
from input_analyzer.torch.layers import layers_of
from input_analyzer.torch.leaves import values_in
from input_analyzer.torch.loader import Parts, length_of, parts_of

RECORDS = 32
"""So many records of an iterable dataset are compared."""

_READ = 4  # records of a dataset with indices, in a worker
_SPREAD, _SPREAD_S = 64, 0.25  # so many, spread over all of them, in so long, where tasks are compared
_LONGEST_S = 2.0
_WHOLE_S = 1.0  # an epoch that is read in that time is compared as a whole
_BESIDE = 8.0  # so many times as long it may take beside other workers
_TIMEOUT_S = 20.0
_SEED = 20190731
_MOST_INDICES = 200_000
_PADDING = 0.02  # part of its records that a task may share with another one, because they do not divide


@dataclass(frozen=True)
class Worker:
    """What a worker process has seen.

    Attributes:
        random: By name, a generator's state when the worker began.
        drawn: Names of the generators that making records has drawn from.
        records: Digests of its first records.
    """

    random: dict[str, str]
    drawn: frozenset[str]
    records: tuple[str, ...]


def workers_of(loader: Any, count: int = 2) -> tuple[Worker, ...]:
    """Reads the first records of a loader's dataset in worker processes; none where that fails."""
    return in_workers(loader, count, _first_records)


def in_workers(
    loader: Any, count: int, read: Callable[[Any], Any], seed: int | None = None
) -> tuple[Any, ...]:
    """What a function returns for a loader's dataset in each of some worker processes; () where it fails.

    They are started as the loader starts its own, with its `worker_init_fn`, and find the environment that
    this process has now.

    Args:
        loader: A DataLoader.
        count: Number of worker processes.
        read: Called with the dataset; to be found by its name, as the processes may be started anew.
        seed: With which torch begins their random numbers; None: another one every time.
    """
    probe = _Probe(loader.dataset, loader.worker_init_fn, read)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few CPUs, for instance
            reader = DataLoader(
                probe,
                batch_size=None,
                num_workers=count,
                worker_init_fn=probe.begin,
                multiprocessing_context=loader.multiprocessing_context,
                timeout=_TIMEOUT_S,
                prefetch_factor=1,
                collate_fn=_unchanged,
                generator=None if seed is None else torch.Generator().manual_seed(seed),
            )
            return tuple(reader)
    except Exception as error:
        # The error's frames hold the workers, in a circle: torch waits 5 s for each once that is collected.
        traceback.clear_frames(error.__traceback__)
        return ()  # what the dataset raises is shown where it is read in earnest


def splits_among_workers(loader: Any) -> bool | None:
    """Whether several workers of a loader with an iterable dataset read different records.

    True where two of them have no record in common and the first one reads of those that come first without
    workers; False where they read the same ones; None where neither can be told.
    """
    workers = workers_of(loader)
    if len(workers) < 2:
        return None
    first, second = workers[0].records, workers[1].records
    if len(set(first)) < 2:
        return None  # all alike, or too few
    if first == second:
        return False
    alone = _alone(loader.dataset)
    return True if not set(first) & set(second) and alone and set(first) <= set(alone) else None


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


def parts_among_workers(loader: Any, count: int) -> int | None:
    """How many of so many worker processes of a loader with an iterable dataset have records of their own.

    Where an epoch is read in a second, all of them together have to read what a single one does, each record
    once; of a longer one the first records of each are compared.

    Returns:
        `count`, or fewer where some have nothing to read; 0 where records are lost or repeated; None where
        that cannot be told.
    """
    # In a process of its own: the next epoch of the dataset is not to begin elsewhere for having been read.
    read = in_workers(loader, 1, partial(_read_dataset, seconds=_WHOLE_S))
    if not read or not read[0].digests:
        return None
    alone = read[0]
    # Where every n-th record is a worker's, these lie so far apart.
    most = None if alone.whole else min(RECORDS, max(2, len(alone.digests) // count))
    parts = in_workers(loader, count, partial(_read_dataset, seconds=_BESIDE * _WHOLE_S, most=most))
    if len(parts) < count:
        return None
    split = _is_split(alone, parts)
    return sum(bool(part.digests) for part in parts) if split else (None if split is None else 0)


def repeats_among_workers(loader: Any) -> bool:
    """Whether the workers of a loader with an iterable dataset share out its records, but not each once.

    It is known of epochs that are read in a second, with records that differ. What hangs on the random
    numbers of the workers may come out right once: it is tried twice.
    """
    for _ in range(2):
        read = in_workers(loader, 1, partial(_read_dataset, seconds=_WHOLE_S))
        if not read or not read[0].whole or len(set(read[0].digests)) < len(read[0].digests):
            return False
        read_beside = partial(_read_dataset, seconds=_BESIDE * _WHOLE_S)
        parts = in_workers(loader, loader.num_workers, read_beside)
        counts = Counter(one for part in parts for one in part.digests)
        if counts and set(counts) <= set(read[0].digests) and max(counts.values()) > 1:
            return True
    return False


def reads_again(loader: Any) -> bool:
    """Whether an iterable dataset has as many records when a worker process reads it a second time.

    Of an epoch that takes more than a second it is enough that it begins again.
    """
    read = in_workers(loader, 1, _read_twice)
    if not read:
        return False
    first, again = read[0]
    return bool(again) and (first is None or again == first)


def reads_once(loader: Any) -> bool:
    """Whether an iterable dataset, of which this process has read records, has none after an epoch."""
    read = in_workers(loader, 1, _read_twice)
    return bool(read) and not read[0][1]


def _read_twice(dataset: Any) -> tuple[int | None, int]:
    """Number of records of an epoch, None of one that is too long, and of the next one up to there."""
    first = read_part(dataset, _WHOLE_S)
    again = read_part(dataset, _BESIDE * _WHOLE_S, len(first.digests) + 1 if first.whole else 1)
    return len(first.digests) if first.whole else None, len(again.digests)


def _is_split(alone: Part, parts: tuple[Part, ...]) -> bool | None:
    if alone.whole and all(part.whole for part in parts):
        read = Counter(digest for part in parts for digest in part.digests)
        if read == Counter(alone.digests):
            return True
        return False if set(read) <= set(alone.digests) else None  # else: random numbers are in them
    filled = [part.digests for part in parts if part.digests]
    pairs = list(combinations(filled, 2))
    if any(one == other and len(set(one)) > 1 for one, other in pairs):
        return False
    apart = not any(set(one) & set(other) for one, other in pairs)
    known = bool(filled) and len(set(filled[0])) > 1 and set(filled[0]) <= set(alone.digests)
    return True if apart and known else None


def _read_dataset(dataset: Any, seconds: float, most: int | None = None) -> Part:
    return read_part(dataset, seconds, most)


def same_random(loader: Any) -> tuple[str, ...]:
    """Generators that making records draws from and that are in the same state in all workers."""
    workers = workers_of(loader)
    if len(workers) < 2:
        return ()
    first, second = workers
    names = sorted(first.drawn & second.drawn)
    return tuple(name for name in names if first.random[name] == second.random.get(name))


def order_draws(order: Any) -> tuple[str, ...] | None:
    """Generators of the process on whose numbers an order depends: "random", "numpy.random", "torch".

    Where it begins is read several times. Numbers that are drawn, and change nothing, do not count.

    Args:
        order: A sampler, or a batch sampler.

    Returns:
        None where the order changes by itself, or comes too slowly.
    """
    began = time.monotonic()
    first, drawn = _order_after(order, _SEED)
    if time.monotonic() - began > _LONGEST_S or _order_after(order, _SEED)[0] != first:
        return None
    return drawn if any(_order_after(order, _SEED + step)[0] != first for step in (1, 2)) else ()


def length_by_reading(order: Any, most: int) -> tuple[int, bool]:
    """Indices of an order up to so many, as many as come in a second, and whether these are all of them."""
    read = 0
    with chance.anew(_SEED):
        end = time.monotonic() + _WHOLE_S
        for read, _ in enumerate(islice(iter(order), most), 1):
            if time.monotonic() > end:
                return read, False
    return read, read < most


def _order_after(order: Any, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where an order begins after a seed, as digests, and the generators that were drawn from."""
    with chance.anew(seed):
        before = _states_of_process()
        found = tuple(digest(index) for index in islice(iter(order), RECORDS))
        after = _states_of_process()
    return found, tuple(name for name in before if before[name] != after[name])


@dataclass(frozen=True)
class Task:
    """What a task reads, as far as it takes to compare it with another one.

    Attributes:
        stream: Of an iterable dataset digests of its first records, read twice; else None.
        length: Number of records of the dataset; None where it does not tell.
        data: Digests of records that are spread over its indices, read twice; as many as come in time.
        by_chance: They are all alike with the dataset's own random numbers begun anew: no index decides.
        reads_all: It reads every record of its dataset once.
        indices: All indices of an epoch; None where there are none, or too many.
        kept: Records of an epoch.
        padded: Records that a sampler for several tasks repeats to fill up; None for another sampler.
    """

    stream: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    length: int | None = None
    data: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
    by_chance: bool = False
    reads_all: bool = False
    indices: tuple[Any, ...] | None = None
    kept: int | None = None
    padded: int | None = None


def task_of(loader: Any) -> Task:
    """Reads a few records of a task, each twice: what differs then changes by itself."""
    parts = parts_of(loader)
    dataset, order = loader.dataset, parts.order
    if parts.iterable:
        return Task(stream=(_alone(dataset), _alone(dataset)), length=length_of(dataset))
    whole = reads_all(order)
    length = length_of(dataset)
    shown = _spread(length or 0)
    own = list(_generators_of(dataset).values())
    first = _digests(dataset, shown, own)
    again = _digests(dataset, shown[: len(first)], own)
    return Task(
        length=length,
        data=_as_long(first, again),
        by_chance=bool(own) and len(first) > 1 and len(set(first)) == 1,
        reads_all=whole,
        indices=None if whole else _indices(parts),
        kept=length_of(order),
        padded=_padded(order, length),
    )


def tasks_differ(ours: Task, theirs: Task) -> bool | None:
    """Whether two tasks read different records; None where that cannot be told."""
    if ours.stream is not None or theirs.stream is not None:
        return _streams_differ(ours, theirs)
    if ours.length != theirs.length:
        return True
    if ours.by_chance or ours.data[0] != ours.data[1]:
        return None
    if records_differ(ours, theirs):
        return True
    if ours.reads_all and theirs.reads_all:
        return False
    indices = [frozenset(one.indices) for one in (ours, theirs) if one.indices is not None]
    if len(indices) < 2:
        return None
    common = indices[0] & indices[1]
    if len(common) == len(indices[0]) == len(indices[1]):
        return False
    return True if len(common) <= max(1, _PADDING * len(indices[0])) else None


def records_differ(ours: Task, theirs: Task) -> bool:
    """Whether two tasks have other records at equal indices."""
    first, second = _as_long(ours.data[0], theirs.data[0])
    return first != second


def _as_long(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """As many of both as there are of the shorter one."""
    common = min(len(first), len(second))
    return first[:common], second[:common]


def _streams_differ(first: Task, second: Task) -> bool | None:
    if first.stream is None or second.stream is None:
        return True
    ours, again = first.stream
    theirs = second.stream[0]
    if len(set(ours)) < 2:
        return None
    if first.stream == second.stream:  # epoch for epoch, though one may differ from the next
        return False
    if ours != again:
        return None
    if ours == theirs:
        return False
    return None if set(ours) & set(theirs) else True


def reads_all(order: Any) -> bool:
    """Whether a sampler gives every index of its dataset once."""
    if type(order) is RandomSampler:
        return not order.replacement and order._num_samples is None
    return type(order) is SequentialSampler


def _padded(order: Any, length: int | None) -> int | None:
    total = getattr(order, "total_size", None)
    if not isinstance(total, int) or not hasattr(order, "num_replicas") or length is None:
        return None
    return max(0, total - length)


def _spread(length: int) -> list[int]:
    """Indices in an order in which any number of the first ones is spread over all."""
    first = list(range(min(_READ, length)))
    return list(dict.fromkeys(first + random.Random(_SEED).sample(range(length), min(_SPREAD, length))))


def records_at(dataset: Any, later: int) -> tuple[tuple[int, str], ...]:
    """Indices that are spread over a dataset, from one of them on, with digests of their records.

    As many as come in time; none where its indices are not numbers from 0 on.
    """
    indices = _spread(length_of(dataset) or 0)
    later %= max(1, len(indices))
    indices = indices[later:] + indices[:later]
    return tuple(
        zip(indices, _digests(dataset, indices, list(_generators_of(dataset).values())), strict=False)
    )


def _digests(dataset: Any, indices: list[int], own: list[Any]) -> tuple[str, ...]:
    """Of as many records as come in time, all random numbers begun anew before each of them.

    Args:
        dataset: One with indices.
        indices: Which records.
        own: Random generators that it has.
    """
    end = time.monotonic() + _SPREAD_S
    found: list[str] = []
    try:
        with chance.anew(_SEED):
            for index in indices:
                chance.begin(_SEED)
                for generator in own:
                    _begin_anew(generator)
                found.append(digest(dataset[index]))
                if time.monotonic() > end:
                    break
    except (LookupError, TypeError):
        return ()  # its indices are not numbers from 0 on
    return tuple(found)


def _indices(parts: Parts) -> tuple[Any, ...] | None:
    """All indices of an epoch; None where there are too many, or other things than indices."""
    try:
        found = list(islice(iter(parts.order), _MOST_INDICES))
    except (TypeError, ValueError):
        return None
    if len(found) == _MOST_INDICES:
        return None
    flat = tuple(index for one in found for index in (one if isinstance(one, list | tuple) else (one,)))
    return flat if all(isinstance(index, int | str) for index in flat) else None


def hangs_on_chance(dataset: Any) -> bool:
    """Whether the first records of an iterable dataset change with the random numbers of the process."""
    first = _alone(dataset)
    return _alone(dataset) == first and _alone(dataset, _SEED + 1) != first


def _alone(dataset: Any, seed: int = _SEED) -> tuple[str, ...]:
    """Digests of the first records of an iterable dataset, twice as many as a worker reads."""
    with chance.anew(seed):
        return tuple(digest(record) for record in _within_time(iter(dataset), 2 * RECORDS))


def _within_time(records: Iterator[Any], most: int) -> Iterator[Any]:
    end = time.monotonic() + _LONGEST_S
    for record in islice(records, most):
        yield record
        if time.monotonic() > end:
            return


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


class _Probe(IterableDataset[Any]):  # type: ignore[misc,unused-ignore]
    """Reads in a worker process, for `in_workers`."""

    def __init__(self, dataset: Any, begin: Callable[[int], Any] | None, read: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self._users_begin = begin
        self._read = read
        self._environment = dict(os.environ)

    def begin(self, index: int) -> None:
        """The `worker_init_fn`: that of the user, which finds its own dataset in the worker's info."""
        os.environ.update(self._environment)  # a server of forks has the one that it was started with
        info = get_worker_info()
        assert info is not None
        object.__setattr__(info, "dataset", self.dataset)
        if self._users_begin is not None:
            self._users_begin(index)

    def __iter__(self) -> Iterator[Any]:
        yield self._read(self.dataset)


def _first_records(dataset: Any) -> Worker:
    began = _states(dataset)
    chance.begin(_SEED)
    before = _states(dataset)
    if isinstance(dataset, IterableDataset):
        records = _within_time(iter(dataset), RECORDS)
    else:
        records = _within_time((dataset[index] for index in range(len(dataset))), _READ)
    digests = tuple(map(digest, records))
    after = _states(dataset)
    drawn = frozenset(name for name, state in after.items() if state != before.get(name))
    return Worker(began, drawn, digests)


def _unchanged(one: Any) -> Any:
    return one


def _states(dataset: Any) -> dict[str, str]:
    """The states of all random generators that a dataset may draw from."""
    own = {name: chance.fingerprint(_state_of(one)) for name, one in _generators_of(dataset).items()}
    return _states_of_process() | own


def _states_of_process() -> dict[str, str]:
    """Those of the generators that everything in a process shares."""
    return {name: chance.fingerprint(state) for name, state in chance.states().items()}


def _generators_of(dataset: Any) -> dict[str, Any]:
    """The random generators of the user's own that a dataset may draw from."""
    found: dict[str, Any] = {}
    for layer in layers_of(dataset):
        things = [dataset] if layer.name == "getitem" else [hook.target for hook in layer.hooks]
        for thing in things:
            for name, value in (*_members(thing), *_globals(layer.code), *_globals(thing)):
                if _state_of(value) is not None:
                    found[name] = value
    return found


def _members(thing: Any) -> list[tuple[str, Any]]:
    try:
        return [(f"{type(thing).__name__}.{name}", value) for name, value in vars(thing).items()]
    except TypeError:
        return []


def _globals(thing: Any) -> list[tuple[str, Any]]:
    """What a function uses of its module, or the call of an object."""
    function = thing if hasattr(thing, "__code__") else vars(type(thing)).get("__call__")
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return []
    space = getattr(function, "__globals__", {})
    return [(name, space[name]) for name in code.co_names if name in space]


def _state_of(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    return None


def _begin_anew(generator: Any) -> None:
    """Begins a generator of the user's own anew; one that has no seed stays as it is."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(_SEED).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(_SEED)
    else:
        generator.seed(_SEED)
