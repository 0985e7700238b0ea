"""Findings mended in a DataLoader, for a run, without a change of the source.

The loader is made again with other arguments. Every mend keeps the records: the same ones come out of an
epoch, and of all tasks together each once, but those of an incomplete last batch where `drop_last` is mended.
What cannot be mended so that this is certain is left as it is; a loader of a class of the user's own too.
Whether tasks, or workers, read the same in the same order is for `proof` to say, before it is ordered here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    get_worker_info,
)

from input_analyzer.applying import WORKER_COUNTS
from input_analyzer.lanes import Lane
from input_analyzer.torch import orders, worker_probe
from input_analyzer.torch.global_random import OwnChance
from input_analyzer.torch.loader import parts_of

MENDABLE = frozenset(
    {
        *("drop-remainder-missing", "loader-workers-missing", "loader-workers-few", "loader-workers-many"),
        *("loader-workers-restarted", "loader-prefetch-small", "loader-prefetch-memory"),
        *("loader-pin-memory", "shard-missing", "loader-records-repeated", "shuffle-without-seed"),
    }
)
"""Findings that can be mended, where the loader allows it."""

SEED = 1
"""Of an order that has none of its own: the same in all tasks."""


@dataclass(frozen=True)
class Mended:
    """A loader with mends, and what was done, one line each; the loader itself where nothing was."""

    loader: Any
    changes: tuple[str, ...]


def mend(
    loader: Any,
    findings: Mapping[str, float | None],
    tasks: int = 1,
    index: int = 0,
    cpus: int | None = None,
) -> Mended:
    """Mends a loader.

    Args:
        loader: Made by the user's function; it is not to be read any more.
        findings: Identifiers of the findings to mend, others than those of MENDABLE have no effect. With
            those about the number of workers, workers for each CPU; None: 1. With
            `loader-prefetch-memory`, batches that a worker makes ahead; None: 2.
        tasks: Tasks that read input, for `shard-missing`.
        index: This task among them.
        cpus: Of the task; None: those of this process.
    """
    if type(loader) is not DataLoader:
        return Mended(loader, ())
    work = _Mender(loader, findings, len(os.sched_getaffinity(0)) if cpus is None else cpus)
    if "shuffle-without-seed" in findings:
        work.seed()
    if "shard-missing" in findings and tasks > 1:
        work.shard(tasks, index)
    if "loader-records-repeated" in findings:
        work.split_among_workers()
    if "drop-remainder-missing" in findings and loader.batch_size is not None and not loader.drop_last:
        work.change(drop_last=True)
    work.count_workers()
    if "loader-pin-memory" in findings and loader.pin_memory:
        work.change(pin_memory=False)
    return Mended(DataLoader(**work.arguments), tuple(work.changes)) if work.changes else Mended(loader, ())


def arguments_of(loader: Any) -> dict[str, Any]:
    """What makes a DataLoader like this one."""
    found = {
        "dataset": loader.dataset,
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "in_order": loader.in_order,
    }
    parts = parts_of(loader)
    if loader.batch_size is None and parts.batches:
        return {**found, "batch_sampler": loader.batch_sampler}
    found |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return found if parts.iterable else {**found, "sampler": loader.sampler}


class _Mender:
    def __init__(self, loader: Any, findings: Mapping[str, float | None], cpus: int) -> None:
        self.loader = loader
        self.findings = findings
        self.cpus = cpus
        self.arguments = arguments_of(loader)
        self.changes: list[str] = []
        self._parts = parts_of(loader)
        self._split = False  # by us, among any number of workers

    def change(self, **arguments: Any) -> None:
        """Sets arguments of the loader."""
        self.arguments.update(arguments)
        self.changes += [f"DataLoader({name}={value})" for name, value in arguments.items()]

    def seed(self) -> None:
        """Gives an order without a generator one of its own."""
        order: Any = self.arguments.get("sampler")
        if is_plain(order) and not isinstance(order, SequentialSampler) and order.generator is None:
            self.arguments["sampler"] = _seeded(order)
            self.changes.append(f"{type(order).__name__}(generator with seed {SEED})")

    def shard(self, tasks: int, index: int) -> None:
        """Leaves every record to one task: each reads every n-th of an order that all have in common."""
        if self._parts.iterable:
            if not self._wrap(tasks, index):
                return
            # It decides how the workers' random numbers begin, and so the order of what they read.
            self.arguments["generator"] = torch.Generator().manual_seed(SEED)
            self.changes.append(f"one of {tasks} records of the dataset, from number {index} on")
            return
        order = self.arguments.get("sampler")
        if not is_plain(order):
            return
        if not isinstance(order, SequentialSampler):
            order = _seeded(order)  # a generator of the user's may differ from task to task
        self.arguments["sampler"] = EveryNthIndex(order, tasks, index)
        self.changes.append(f"one of {tasks} indices of the {type(order).__name__}, from number {index} on")

    def split_among_workers(self) -> None:
        """Leaves every record to one of the worker processes, where all of them would read it."""
        if not self._parts.iterable or self.loader.num_workers < 2:
            return
        dataset = self.arguments["dataset"]
        if isinstance(dataset, EveryNth):
            dataset.among_workers = True
        elif not self._wrap(1, 0, among_workers=True):
            return
        self._split = True
        self.changes.append("every worker process delivers a part of the records")

    def _wrap(self, count: int, index: int, among_workers: bool = False) -> bool:
        if isinstance(self.loader.dataset, IterDataPipe):
            return False  # torch seeds and shards these itself
        begin = self.loader.worker_init_fn
        ahead = self.loader.batch_size or 1
        self.arguments["dataset"] = EveryNth(self.arguments["dataset"], count, index, among_workers, ahead)
        self.arguments["worker_init_fn"] = None if begin is None else _BeginWithin(begin)
        return True

    def count_workers(self) -> None:
        """Sets the number of workers, and what hangs on it."""
        before = self.loader.num_workers
        asked = next((name for name in WORKER_COUNTS if name in self.findings), None)
        if asked is not None:
            each = self.findings[asked]
            count = Lane(1, threads_per_cpu=1.0 if each is None else each).threads_on(self.cpus)
            if not self._may_have(count):
                count = before or 1
            if count != before:
                self.change(num_workers=count)
                if not before:
                    self.change(persistent_workers=True)
        if not self.arguments["num_workers"]:
            return
        if "loader-workers-restarted" in self.findings and not self.arguments["persistent_workers"]:
            self.change(persistent_workers=True)
        ahead = self.loader.prefetch_factor if before else 2
        if "loader-prefetch-small" in self.findings and ahead < 2:
            self.change(prefetch_factor=2)
        fits = round(self.findings.get("loader-prefetch-memory") or 2)
        if "loader-prefetch-memory" in self.findings and ahead > fits:
            self.change(prefetch_factor=fits)

    def _may_have(self, count: int) -> bool:
        """Whether so many workers read what one process does."""
        if not self._parts.iterable or count == 1 or self._split:
            return True
        return worker_probe.parts_among_workers(self.loader, count) == count


def is_plain(order: Any) -> bool:
    """Whether a sampler gives every index once, in an order that its generator alone decides."""
    return type(order) is SubsetRandomSampler or orders.reads_all(order)


def _seeded(order: Any) -> Any:
    generator = torch.Generator().manual_seed(SEED)
    if type(order) is RandomSampler:
        return RandomSampler(order.data_source, generator=generator)
    return SubsetRandomSampler(order.indices, generator=generator)


class EveryNthIndex(Sampler[int]):  # type: ignore[misc,unused-ignore]
    """The part of a task of an order that all tasks have in common."""

    def __init__(self, order: Any, count: int, index: int) -> None:
        self.order, self.count, self.index = order, count, index

    def __iter__(self) -> Iterator[int]:
        return islice(iter(self.order), self.index, None, self.count)

    def __len__(self) -> int:
        return max(0, -(-(len(self.order) - self.index) // self.count))


class EveryNth(IterableDataset[Any]):  # type: ignore[misc,unused-ignore]
    """The part of a task, and of a worker process, of the records of a dataset that all of them read.

    Random numbers of the process that their order hangs on are the same in all of them, and others in the
    next epoch.

    Args:
        dataset: An iterable dataset.
        count: Number of tasks.
        index: Which of them reads.
        among_workers: Whether the workers of a task read the same records, so that each of them gets a part.
        ahead: Records of a batch, which are made together.
    """

    def __init__(
        self, dataset: Any, count: int, index: int, among_workers: bool = False, ahead: int = 1
    ) -> None:
        self.dataset, self.count, self.index, self.among_workers = dataset, count, index, among_workers
        self.ahead = ahead
        self._chance = OwnChance()

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = self.index, self.count
        if self.among_workers and info is not None:
            first, step = first + step * info.id, step * info.num_workers
        return self._records(first, step)

    def whole(self) -> Iterator[Any]:
        """All records that this process goes through for its part, in their order."""
        return self._records(0, 1)

    def _records(self, first: int, step: int) -> Iterator[Any]:
        make = lambda: islice(iter(self.dataset), first, None, step)  # noqa: E731
        return self._chance.records(make, self._seed(), self.ahead)

    def _seed(self) -> int | None:
        """What the random numbers of all that read the same begin with.

        None in a worker that reads other records than the next one: torch has begun its random numbers, alike
        in each task, and it may need others than those of the next one, or the same, as the user wants it.
        """
        info = get_worker_info()
        if info is None:
            return SEED
        return info.seed - info.id if self.among_workers else None


class _BeginWithin:
    """A `worker_init_fn` of the user, who finds the dataset of the loader in the worker's info."""

    def __init__(self, begin: Callable[[int], Any]) -> None:
        self._begin = begin

    def __call__(self, index: int) -> None:
        info = get_worker_info()
        assert info is not None
        if isinstance(info.dataset, EveryNth):
            object.__setattr__(info, "dataset", info.dataset.dataset)
        self._begin(index)
