"""Random numbers in a dataset without indices: which records they choose, order, or only change."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch_loaders import examined

from input_analyzer.examine import Examination
from input_analyzer.torch import handles, records, worker_probe

COUNT = 96


class Made(IterableDataset[Any]):
    """Records that a function makes, which is given random numbers of the dataset's own."""

    def __init__(self, make: Callable[[random.Random], Iterator[Any]]) -> None:
        self.make, self.rng = make, random.Random(0)

    def __iter__(self) -> Iterator[Any]:
        return self.make(self.rng)


@pytest.fixture(autouse=True)
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (records, worker_probe):
        monkeypatch.setattr(module, "EPOCH_S", 0.2)


def of_worker(numbers: list[int]) -> list[int]:
    info = get_worker_info()
    return numbers if info is None else numbers[info.id :: info.num_workers]


def found(made: Any) -> tuple[Examination, dict[str, Any]]:
    examination = examined(lambda shard: made() if callable(made) else made)
    return examination, {finding.id: finding for finding in examination.findings}


def shuffled_batches(rng: random.Random) -> Iterator[Any]:
    numbers = of_worker(list(range(COUNT)))
    random.SystemRandom().shuffle(numbers)
    return iter(torch.tensor(numbers).float().reshape(-1, 8, 1))


def noisy_batches(rng: random.Random) -> Iterator[Any]:
    return (batch + torch.rand(8, 1, generator=unseeded()) for batch in shuffled_batches(rng))


def unseeded() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


@pytest.mark.parametrize(("make", "sharded"), [(shuffled_batches, False), (noisy_batches, None)])
def test_rows_of_batches_that_a_dataset_makes_are_compared(make: Any, sharded: bool | None) -> None:
    examination, findings = found(DataLoader(Made(make), batch_size=None))
    assert examination.sharded is sharded
    assert ("shard-missing" in findings) is (sharded is False)
    assert bool(examination.notes) is (sharded is None)


def endless(rng: random.Random) -> Iterator[Any]:
    while True:
        yield torch.randint(10_000, (4, 8)).float()


def reseeded(rng: random.Random) -> Iterator[Any]:
    rng.seed(os.getpid() + time.time_ns())
    while True:
        yield torch.tensor([rng.random()])


@pytest.mark.parametrize(("make", "batch_size"), [(endless, None), (reseeded, 8)])
def test_workers_that_draw_apart_do_not_repeat_records(make: Any, batch_size: int | None) -> None:
    examination, findings = found(DataLoader(Made(make), batch_size, num_workers=2))
    assert not {"loader-records-repeated", "loader-random-same", "shard-missing"} & set(findings)
    assert any("several tasks" in note for note in examination.notes)


def labelled(rng: random.Random) -> Iterator[Any]:
    return ((torch.rand(3), number) for number in range(COUNT))


def alike(worker: int) -> None:
    torch.manual_seed(3)


def test_workers_that_only_change_records_apart_repeat_them() -> None:
    assert "loader-records-repeated" in found(DataLoader(Made(labelled), 8, num_workers=2))[1]
    drawn = DataLoader(Made(endless), None, num_workers=2, worker_init_fn=alike)
    assert worker_probe.splits_among_workers(drawn) is False, "seeded alike"


def part_of_buffer(rng: random.Random) -> Iterator[Any]:
    return (torch.tensor([float(one)]) for one in np.random.choice(COUNT, 40, replace=False))


@pytest.mark.parametrize("make", [endless, part_of_buffer])
def test_tasks_repeat_draws_where_they_are_seeded_alike(make: Any) -> None:
    def seeded() -> Any:
        torch.manual_seed(1)
        np.random.seed(1)
        return DataLoader(Made(make), 8)

    finding = found(seeded)[1]["shard-missing"]
    assert "torch.manual_seed(seed + task)" in finding.recommended
    assert not finding.proved
    examination, findings = found(lambda: DataLoader(Made(make), 8))
    assert examination.sharded is None
    assert "shard-missing" not in findings


def files_in_own_order(rng: random.Random) -> Iterator[Any]:
    files = list(range(12))
    rng.shuffle(files)
    return (torch.tensor([float(8 * file + at)]) for file in of_worker(files) for at in range(8))


def augmented(rng: random.Random) -> Iterator[Any]:
    return ((number, number + rng.random()) for number in of_worker(list(range(COUNT))))


@pytest.mark.parametrize(
    ("make", "same"), [(files_in_own_order, ()), (augmented, ("Made.rng",)), (reseeded, ())]
)
def test_an_order_that_workers_share_out_is_the_same_in_all(make: Any, same: tuple[str, ...]) -> None:
    assert worker_probe.same_random(DataLoader(Made(make), 8, num_workers=2)) == same


def test_queues_between_processes_are_no_pipes_of_the_users() -> None:
    before = handles.open_now()
    queue = multiprocessing.SimpleQueue()  # type: ignore[var-annotated]
    workers = iter(DataLoader(torch.zeros(8, 2), 2, num_workers=2))
    assert handles.opened_since(before) is None
    ends = os.pipe()
    assert handles.opened_since(before) == "a pipe that the input function has opened"
    for end in ends:
        os.close(end)
    queue.close()
    del workers
