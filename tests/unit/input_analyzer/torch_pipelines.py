"""torch DataLoaders of known cost: what each stage takes for a sample, and which one bounds.

Every function can be given to cs_input_analyzer as FILE.py:FUNCTION. `burn` takes CPU time by the clock of
its own thread, `nap` waits: neither depends on how busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

COUNT = 100_000


def burn(us: float) -> None:
    """Use CPU time."""
    end = time.thread_time_ns() + int(us * 1000)
    while time.thread_time_ns() < end:
        pass


def nap(us: float) -> None:
    """Wait."""
    if us:
        time.sleep(us / 1e6)


class Records(Dataset[Any]):
    """Records that take CPU time and waiting; and a transform, where there is one."""

    def __init__(
        self,
        cpu_us: float = 0,
        wait_us: float = 0,
        count: int = COUNT,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.cpu_us, self.wait_us, self.count, self.transform = cpu_us, wait_us, count, transform

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        burn(self.cpu_us)
        nap(self.wait_us)
        record = torch.full((16,), float(index))
        return record if self.transform is None else self.transform(record)


class Rare(Records):
    """One record of ten takes ten times as long as one of ten would: what is rare counts too."""

    def __getitem__(self, index: int) -> Any:
        burn(10 * self.cpu_us if index % 10 == 0 else 0)
        return torch.full((16,), float(index))


class Varying(Records):
    """Computing and waiting with an exponential distribution around their means."""

    def __getitem__(self, index: int) -> Any:
        chance = Random(index)
        burn(self.cpu_us * chance.expovariate(1.0))
        nap(self.wait_us * chance.expovariate(1.0))
        return torch.full((16,), float(index))


class Wrapped(Dataset[Any]):
    """A dataset of the user's around another one."""

    def __init__(self, source: Any, cpu_us: float) -> None:
        self.source, self.cpu_us = source, cpu_us

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        burn(self.cpu_us)
        return self.source[index]


class Stream(IterableDataset[Any]):
    """Records without indices, every worker with its own part."""

    def __init__(self, cpu_us: float = 0, wait_us: float = 0, count: int = COUNT) -> None:
        self.cpu_us, self.wait_us, self.count = cpu_us, wait_us, count

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in islice(range(self.count), first, None, step):
            burn(self.cpu_us)
            nap(self.wait_us)
            yield torch.full((16,), float(number))


class Burn:
    """A transform that computes."""

    def __init__(self, us: float) -> None:
        self.us = us

    def __call__(self, record: Any) -> Any:
        burn(self.us)
        return record


class Nap(Burn):
    """A transform that waits."""

    def __call__(self, record: Any) -> Any:
        nap(self.us)
        return record


class Compose:
    """A transform as in torchvision."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, record: Any) -> Any:
        for transform in self.transforms:
            record = transform(record)
        return record


class SlowOrder:
    """A sampler that thinks."""

    def __init__(self, us: float, count: int = COUNT) -> None:
        self.us, self.count = us, count

    def __iter__(self) -> Iterator[int]:
        for index in range(self.count):
            burn(self.us)
            yield index

    def __len__(self) -> int:
        return self.count


def slow_collate(records: list[Any]) -> Any:
    """12 ms for a batch."""
    burn(12_000)
    return torch.stack(records)


def loader(dataset: Any, **arguments: Any) -> Any:
    """Return a loader with batches of 4 and without other findings."""
    return DataLoader(dataset, **{"batch_size": 4, "drop_last": True, **arguments})


def computing() -> Any:
    """CPU time in __getitem__, no workers."""
    return loader(Records(3000), batch_size=8)


def waiting_workers() -> Any:
    """Waiting in __getitem__, as for a file server, in two workers."""
    return loader(Records(500, 6000), num_workers=2, persistent_workers=True)


def collating() -> Any:
    """Dear batches of cheap records."""
    return loader(Records(1000), collate_fn=slow_collate)


def computing_workers() -> Any:
    """Two workers that compute, with a transform: more than one CPU can do."""
    return loader(Records(2000, transform=Burn(2500)), num_workers=2, persistent_workers=True)


def streaming_workers() -> Any:
    """Two workers that wait and compute, each with a part of a stream."""
    return loader(Stream(1500, 3000), num_workers=2, persistent_workers=True)


def many_waiting_workers() -> Any:
    """More workers than CPUs, as they wait most of the time."""
    return loader(Records(1000, 8000), num_workers=6, persistent_workers=True)


def crowded_workers() -> Any:
    """More workers than CPUs, and all of them compute."""
    return loader(Records(3000, 500), num_workers=4, persistent_workers=True)


def varying_workers() -> Any:
    """No record takes as long as the next one; the workers are as many as one CPU can just do."""
    return loader(Varying(1500, 4500), num_workers=4, persistent_workers=True)


def thinking_sampler() -> Any:
    """The sampler runs in one process, for any number of workers."""
    return loader(Records(3000), sampler=SlowOrder(2000), num_workers=4, persistent_workers=True)


def composed() -> Any:
    """Transforms in sequence within a subset of a concatenation."""
    steps = [Burn(1000), Nap(3000), lambda record: (burn(2000), record)[1]]
    parts = [Records(1500, 0, 1000, Compose(steps)), Records(1500, 0, 1000, Compose(steps))]
    return loader(Subset(ConcatDataset(parts), range(0, 2000, 2)))


def wrapped() -> Any:
    """A dataset of the user's around another one."""
    return loader(Wrapped(Records(2000), 1000))


def streaming() -> Any:
    """No indices."""
    return loader(Stream(2000))


def rare() -> Any:
    """Most of the time goes into few records."""
    return loader(Rare(1000), batch_size=5)


def in_memory() -> Any:
    """Nothing takes time."""
    return loader(TensorDataset(torch.zeros(COUNT, 4), torch.zeros(COUNT)))


@dataclass(frozen=True)
class Case:
    """A loader and its known properties.

    Attributes:
        make: The loader.
        costs: By stage (microseconds of computing, microseconds of waiting) a sample.
        bottleneck: By the CPUs of a task.
    """

    make: Callable[[], Any]
    costs: Mapping[str, tuple[float, float]]
    bottleneck: Mapping[int, str]

    @property
    def name(self) -> str:
        """That of the function."""
        return self.make.__name__


def _always(stage: str) -> dict[int, str]:
    return {1: stage, 2: stage}


CASES = (
    Case(computing, {"getitem": (3000, 0)}, _always("getitem")),
    Case(waiting_workers, {"getitem": (500, 6000)}, _always("getitem")),
    Case(collating, {"getitem": (1000, 0), "collate": (3000, 0)}, _always("collate")),
    Case(computing_workers, {"getitem": (2000, 0), "transform": (2500, 0)}, _always("transform")),
    Case(streaming_workers, {"getitem": (1500, 3000)}, _always("getitem")),
    Case(many_waiting_workers, {"getitem": (1000, 8000)}, _always("getitem")),
    Case(crowded_workers, {"getitem": (3000, 500)}, _always("getitem")),
    Case(
        thinking_sampler,
        {"sampler": (2000, 0), "getitem": (3000, 0)},
        {1: "getitem", 2: "sampler", 8: "sampler"},
    ),
    Case(
        composed,
        {
            "getitem.Records": (1500, 0),
            "transform.Burn": (1000, 0),
            "transform.Nap": (0, 3000),
            "transform.<lambda>": (2000, 0),
        },
        _always("transform.Nap"),
    ),
    Case(wrapped, {"getitem": (1000, 0), "getitem.Records": (2000, 0)}, _always("getitem.Records")),
    Case(streaming, {"getitem": (2000, 0)}, _always("getitem")),
    Case(rare, {"getitem": (1000, 0)}, _always("getitem")),
)
"""All whose cost is known."""

PREDICTED = (
    computing,
    waiting_workers,
    collating,
    computing_workers,
    streaming_workers,
    many_waiting_workers,
    crowded_workers,
    varying_workers,
)
"""Those whose rate is predicted for a layout that was not measured."""
