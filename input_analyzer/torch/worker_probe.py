"""What worker processes have in common: found out by reading a few records in some.

Records are compared by their content, with the random numbers of Python, NumPy and torch begun anew before
them: what is left of a difference is another record, or numbers out of a generator of the user's own.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, get_worker_info
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding

from input_analyzer.torch import global_random
from input_analyzer.torch.generators import SEED, begin_anew, generators_of, states
from input_analyzer.torch.loader import batched_by_dataset, length_of
from input_analyzer.torch.records import (
    EPOCH_S,
    READ,
    RECORDS,
    Part,
    begin_alike,
    by_parts,
    chosen_by_chance,
    digest,
    first_digests,
    first_of,
    has_common_part,
    read_part,
    within_time,
)

_BESIDE = 8.0  # so many times as long it may take beside other workers
_TIMEOUT_S = 20.0
_TRIES = 3


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
    return in_workers(loader, count, partial(_first_records, batched=batched_by_dataset(loader)))


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
    if begin_alike(first, second):
        return False if _stay_alike(loader) else None
    alone = first_digests(loader.dataset, batched=batched_by_dataset(loader))
    # Where records take long, no more of them may have come here than there: as many as lie that far apart.
    known = set(first[: max(2, len(alone) // 2)])
    return True if not set(first) & set(second) and alone and known <= set(alone) else None


def _stay_alike(loader: Any) -> bool:
    """Whether two workers that read the same after the same random numbers do so with those that they have.

    Records that random numbers choose are the same only as long as these are: that is tried several times.
    """
    batched = batched_by_dataset(loader)
    chosen = in_workers(loader, 1, partial(chosen_by_chance, batched=batched))
    if chosen and not chosen[0]:
        return True
    read = partial(first_of, most=RECORDS, batched=batched)
    return all(
        len(two) == 2 and begin_alike(*two) for two in (in_workers(loader, 2, read) for _ in range(_TRIES))
    )


def parts_among_workers(loader: Any, count: int) -> int | None:
    """How many of so many worker processes of a loader with an iterable dataset have records of their own.

    Where an epoch is read in a second, all of them together have to read what a single one does, each record
    once; of a longer one the first records of each are compared.

    Returns:
        `count`, or fewer where some have nothing to read; 0 where records are lost or repeated; None where
        that cannot be told.
    """
    # In a process of its own: the next epoch of the dataset is not to begin elsewhere for having been read.
    read_dataset = partial(_read_dataset, batched=batched_by_dataset(loader))
    read = in_workers(loader, 1, partial(read_dataset, seconds=EPOCH_S))
    if not read or not read[0].digests:
        return None
    alone = read[0]
    # Where every n-th record is a worker's, these lie so far apart.
    most = None if alone.whole else min(RECORDS, max(2, len(alone.digests) // count))
    parts = in_workers(loader, count, partial(read_dataset, seconds=_BESIDE * EPOCH_S, most=most))
    if len(parts) < count:
        return None
    split = _is_split(alone, parts)
    return sum(bool(part.digests) for part in parts) if split else (None if split is None else 0)


def workers_with_batches(loader: Any) -> int | None:
    """So many workers have ten whole batches each of an iterable dataset in an epoch, at least one.

    Each of them makes batches of its own: what is no whole one is smaller, or left out, as often as there are
    workers. None where an epoch takes longer than a second, or the dataset makes batches itself.
    """
    if not loader.batch_size:
        return None
    records = length_of(loader.dataset)
    if records is None:
        read = in_workers(loader, 1, partial(_read_dataset, seconds=EPOCH_S))
        records = len(read[0].digests) if read and read[0].whole else None
    return None if records is None else max(1, records // (_BATCHES_OF_WORKER * loader.batch_size))


_BATCHES_OF_WORKER = 10


def repeats_among_workers(loader: Any) -> Literal["all", "some", "none"]:
    """Which records of an iterable dataset several workers of a loader deliver.

    It is known of epochs that are read in a second, with records that differ. What hangs on the random
    numbers of the workers may come out right once: it is tried twice.

    Returns:
        "all" where each of them delivers every record, "some" where they share them out, but not each once;
        "none" where that was not seen.
    """
    read_dataset = partial(_read_dataset, batched=batched_by_dataset(loader))
    for _ in range(2):
        read = in_workers(loader, 1, partial(read_dataset, seconds=EPOCH_S))
        if not read or not read[0].whole or len(set(read[0].digests)) < len(read[0].digests):
            return "none"
        parts = in_workers(loader, loader.num_workers, partial(read_dataset, seconds=_BESIDE * EPOCH_S))
        counts = Counter(one for part in parts for one in part.digests)
        if counts and set(counts) <= set(read[0].digests) and max(counts.values()) > 1:
            each = set(counts) == set(read[0].digests) and set(counts.values()) == {len(parts)}
            return "all" if each else "some"
    return "none"


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
    first = read_part(dataset, EPOCH_S)
    again = read_part(dataset, _BESIDE * EPOCH_S, len(first.digests) + 1 if first.whole else 1)
    return len(first.digests) if first.whole else None, len(again.digests)


def _is_split(alone: Part, parts: tuple[Part, ...]) -> bool | None:
    if alone.whole and all(part.whole for part in parts):
        read = Counter(digest for part in parts for digest in part.digests)
        if read == Counter(alone.digests):
            return True
        return False if set(read) <= set(alone.digests) else None  # else: random numbers are in them
    filled = [part.digests for part in parts if part.digests]
    pairs = list(combinations(filled, 2))
    if any(begin_alike(one, other) for one, other in pairs):
        return False
    apart = not any(set(one) & set(other) for one, other in pairs)
    known = bool(filled) and len(set(filled[0])) > 1 and set(filled[0]) <= set(alone.digests)
    return True if apart and known else None


def _read_dataset(dataset: Any, seconds: float, most: int | None = None, batched: bool = False) -> Part:
    return read_part(dataset, seconds, most, batched)


def same_random(loader: Any) -> tuple[str, ...]:
    """Generators that change records, and that are in the same state in all workers.

    Those that are begun anew for every epoch, or record, do not count; nor do those that decide in which
    order records without indices come: workers that share these out need one order.
    """
    workers = workers_of(loader)
    if len(workers) < 2:
        return ()
    first, second = workers
    names = sorted(first.drawn & second.drawn)
    same = [name for name in names if first.random.get(name, "") == second.random.get(name)]
    change = in_workers(loader, 2, _changing_records) if same else ()
    return tuple(name for name in same if change and name in change[0])


def _changing_records(dataset: Any) -> frozenset[str]:
    """Names of generators that go on from record to record, and do not choose these; in a worker process."""
    iterable = isinstance(dataset, IterableDataset)
    own = generators_of(dataset).values()
    found: list[tuple[list[tuple[str, ...]], dict[str, str]]] = []
    for seed in (SEED, SEED, SEED + 1):
        global_random.begin(seed)
        for generator in own:
            begin_anew(generator, seed)
        records = iter(dataset) if iterable else (dataset[index] for index in range(len(dataset)))
        most = len(found[0][0]) if found else RECORDS if iterable else READ
        found.append((by_parts(records, most), states(dataset)))
    (first, after), (_, again), (other, otherwise) = found
    if iterable and not has_common_part(first, other):
        return frozenset()
    return frozenset(name for name in after if after[name] == again.get(name) != otherwise.get(name))


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
        if isinstance(self.dataset, IterDataPipe):  # as torch does in the workers of its own
            self.dataset = apply_random_seed(self.dataset, torch.Generator().manual_seed(SEED))
            apply_sharding(self.dataset, info.num_workers, index)
        if self._users_begin is not None:
            self._users_begin(index)

    def __iter__(self) -> Iterator[Any]:
        yield self._read(self.dataset)


def _first_records(dataset: Any, batched: bool = False) -> Worker:
    began = states(dataset)
    global_random.begin(SEED)
    before = states(dataset)
    if isinstance(dataset, IterableDataset):
        digests = first_of(dataset, RECORDS, batched)
    else:
        records = within_time((dataset[index] for index in range(len(dataset))), READ)
        digests = tuple(map(digest, records))
    after = states(dataset)
    drawn = frozenset(name for name, state in after.items() if state != before.get(name))
    return Worker(began, drawn, digests)


def _unchanged(one: Any) -> Any:
    return one
