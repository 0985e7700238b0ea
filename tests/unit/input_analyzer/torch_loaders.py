"""Datasets and loaders for the rules for torch, and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

from input_analyzer.measure.examine import Examination
from input_analyzer.measure.link import Order
from input_analyzer.torch.examine import examine
from input_rules.findings import Finding
from input_rules.input_export import InputProgram, Shard
from input_rules.pipeline import StageTime
from input_rules.rules.base import Context
from input_rules.torch.loader import read_pipeline
from input_rules.torch.rules import find

ALONE = Shard(1, 0)


class Numbers(Dataset[Any]):
    """Records that differ."""

    def __init__(self, count: int = 64, width: int = 4, first: int = 0) -> None:
        self.count, self.width, self.first = count, width, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.width,), float(self.first + index))


class Stream(IterableDataset[Any]):
    """The same records in every worker."""

    def __init__(self, first: int = 0, step: int = 1, count: int = 200) -> None:
        self.first, self.step, self.count = first, step, count

    def records(self) -> Iterator[int]:
        return iter(range(self.first, self.count, self.step))

    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([float(number)]) for number in self.records())


class SplitStream(Stream):
    """Every worker has its own part."""

    def records(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.count, step))


class Augmented(Numbers):
    """Every record with random numbers."""

    def __init__(self, draw: Callable[[], float], generator: Any = None) -> None:
        super().__init__()
        self.draw, self.generator = draw, generator

    def __getitem__(self, index: int) -> Any:
        more = 0.0 if self.generator is None else self.generator.random()
        return super().__getitem__(index) + self.draw() + more


def loader(dataset: Any, shard: Shard = ALONE, **arguments: Any) -> Any:
    """A good loader except for the given arguments."""
    if not isinstance(dataset, IterableDataset):
        arguments.setdefault("sampler", DistributedSampler(dataset, shard.count, shard.index))
    if arguments.get("num_workers", 1):
        arguments = {"num_workers": 1, "persistent_workers": True, **arguments}
    return DataLoader(dataset, **{"batch_size": 8, "drop_last": True, **arguments})


def bare(dataset: Any, shard: Shard = ALONE, **arguments: Any) -> Any:
    """One without workers, whose start and end take long."""
    return loader(dataset, shard, num_workers=0, **arguments)


def examined(make: Callable[[Shard], Any], seconds: float = 0.0) -> Examination:
    """Examine the loaders that a function makes for a worker."""
    program = InputProgram("torch", make, make, lambda shard: iter(()))
    wanted = Order(purpose="examine", socket="", stage_seconds=seconds, cpus_per_task=2)
    return examine(program, wanted, lambda doing: None)


def found(make: Callable[[Shard], Any], seconds: float = 0.0) -> dict[str, Finding]:
    """The findings by their identifiers."""
    return {finding.id: finding for finding in examined(make, seconds).findings}


def judged(made: Any, facts: Any = None, batch: bool = True, **context: Any) -> dict[str, Finding]:
    """Return the findings about a loader, reading at most one batch."""
    pipeline = read_pipeline(made, _first_batch(made) if batch else None, facts)
    return {finding.id: finding for finding in find(pipeline, Context(**context))}


def _first_batch(made: Any) -> Any:
    """Return the loader as a worker makes it."""
    dataset = made.dataset
    records = iter(dataset) if isinstance(dataset, IterableDataset) else (dataset[i] for i in range(1000))
    if made.batch_size is None:
        return next(records)
    return made.collate_fn(list(islice(records, made.batch_size)))


def times(cpu: float, wait: float = 0.0, collate: float = 0.0, sampler: float = 0.0) -> dict[str, StageTime]:
    """Return the times of all stages in microseconds per sample."""
    return {
        "sampler": StageTime("sampler", sampler, 0.0),
        "getitem": StageTime("getitem", cpu, wait),
        "collate": StageTime("collate", collate, 0.0),
        "workers": StageTime("workers", 20.0, 0.0),
    }
