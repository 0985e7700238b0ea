"""Whatever is mended in a DataLoader, an epoch has the same records, and all tasks have each of them once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    get_worker_info,
)

from input_analyzer.torch.mend import MENDABLE, mend

COUNT = 41
NO_REMAINDER = MENDABLE - {"drop-remainder-missing"}


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index])


class Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.first, self.last = 0, COUNT

    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([number]) for number in range(self.first, self.last))


class SplitStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (torch.tensor([number]) for number in range(first, COUNT, step))


class ShuffledStream(Stream):
    """An order by all random numbers that a process has, drawn at the begin and on the way."""

    def __iter__(self) -> Iterator[Any]:
        left = torch.randperm(COUNT).tolist()
        random.shuffle(left)
        while left:
            yield torch.tensor([left.pop(np.random.randint(len(left)))])


def draws(records: list[Any]) -> Any:
    """A collate function that augments: how often it draws is another number in every task."""
    for _ in range(int(records[0]) % 7):
        random.random(), np.random.random(), torch.rand(())
    return torch.stack(records)


def splits(worker: int) -> None:
    """The way of torch's documentation: every worker changes its copy of the dataset."""
    info = get_worker_info()
    assert info is not None
    each = -(-COUNT // info.num_workers)
    info.dataset.first, info.dataset.last = worker * each, min(COUNT, worker * each + each)


ORDERS: dict[str, Any] = {
    "as it is": dict,
    "shuffled": lambda: {"shuffle": True},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": torch.Generator()},
    "random": lambda: {"sampler": RandomSampler(Numbers())},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(COUNT))},
    "batches": lambda: {"batch_sampler": BatchSampler(SequentialSampler(Numbers()), 3, False)},
}


def records(loaders: list[Any]) -> Counter[int]:
    found: Counter[int] = Counter()
    for loader in loaders:
        for batch in loader:
            found.update(batch.reshape(-1).tolist())
    return found


def of_tasks(make: Any, findings: set[str], tasks: int) -> list[Any]:
    values = dict.fromkeys(findings)
    return [mend(make(), values, tasks, index).loader for index in range(tasks)]


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(ORDERS)),
    st.sets(st.sampled_from(sorted(NO_REMAINDER - {"loader-workers-missing", "loader-workers-few"}))),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 4]),
)
def test_records_with_indices_are_kept(order: str, findings: set[str], tasks: int, batch: int) -> None:
    def make() -> Any:
        arguments = ORDERS[order]()
        return DataLoader(
            Numbers(), **arguments if "batch_sampler" in arguments else {"batch_size": batch, **arguments}
        )

    expected = Counter(range(COUNT))
    shards = tasks > 1 and "shard-missing" in findings and order != "batches"
    once = expected if shards or tasks == 1 else Counter(dict.fromkeys(expected, tasks))
    assert records(of_tasks(make, findings, tasks)) == once


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_every_epoch_of_a_shuffled_loader_is_whole(tasks: int, epochs: int) -> None:
    loaders = of_tasks(lambda: DataLoader(Numbers(), 2, shuffle=True), set(NO_REMAINDER), tasks)
    for loader in loaders:
        assert loader.num_workers >= 1
    orders = []
    for _ in range(epochs):
        read = [[int(value) for batch in loader for value in batch] for loader in loaders]
        assert Counter(chain.from_iterable(read)) == Counter(range(COUNT))
        orders.append(read)
    assert epochs == 1 or orders[0] != orders[1], "every epoch has another order"


@pytest.mark.parametrize(
    ("dataset", "workers", "begin"),
    [
        (Stream, 0, None),
        (Stream, 1, None),
        (Stream, 2, None),
        (SplitStream, 2, None),
        (Stream, 3, splits),
    ],
)
@pytest.mark.parametrize("tasks", [1, 2])
def test_records_of_streams_are_kept(dataset: Any, workers: int, begin: Any, tasks: int) -> None:
    def make() -> Any:
        return DataLoader(dataset(), batch_size=2, num_workers=workers, worker_init_fn=begin)

    findings = {"shard-missing", "loader-workers-missing", "loader-workers-restarted"}
    if dataset is Stream and workers == 2:
        findings.add("loader-records-repeated")
    assert records(of_tasks(make, findings, tasks)) == Counter(range(COUNT))


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize(("workers", "stays"), [(0, False), (1, False), (2, False), (2, True)])
def test_a_stream_that_is_shuffled_has_one_order_in_all_that_share_it(
    tasks: int, workers: int, stays: bool
) -> None:
    def make() -> Any:
        return DataLoader(
            ShuffledStream(), 3, num_workers=workers, persistent_workers=stays, collate_fn=draws
        )

    loaders = of_tasks(make, {"shard-missing", "loader-records-repeated"}, tasks)
    orders = []
    for _ in range(2):
        read = []
        for loader in loaders:
            random.seed(), np.random.seed()
            read.append([int(value) for batch in loader for value in batch])
        assert Counter(chain.from_iterable(read)) == Counter(range(COUNT))
        orders.append(read)
    assert orders[0] != orders[1], "every epoch has another order"


def test_only_an_incomplete_last_batch_is_left_out() -> None:
    make = lambda: DataLoader(Numbers(), batch_size=8)  # noqa: E731
    (loader,) = of_tasks(make, {"drop-remainder-missing"}, 1)
    assert records([loader]) == Counter(range(40))
    assert {len(batch) for batch in loader} == {8}


def test_more_workers_only_where_they_read_different_records() -> None:
    two = {"loader-workers-missing": 8.0}
    assert mend(DataLoader(Stream(), 2), two).loader.num_workers == 1
    assert mend(DataLoader(SplitStream(), 2), two).loader.num_workers > 1
    assert mend(DataLoader(Numbers(), 2), two).loader.num_workers > 1


def test_what_is_done_is_said() -> None:
    loader = DataLoader(Subset(Numbers(), range(20)), 4, pin_memory=True, shuffle=True)
    findings = {**dict.fromkeys(MENDABLE), "loader-workers-missing": None}
    changes = mend(loader, findings, 2, 1).changes
    assert "one of 2 indices of the RandomSampler, from number 1 on" in changes
    for change in ("drop_last=True", "persistent_workers=True", "pin_memory=False"):
        assert f"DataLoader({change})" in changes
    assert any(change.startswith("DataLoader(num_workers=") for change in changes)


def test_what_cannot_be_mended_for_certain_is_left_as_it_is() -> None:
    class Mine(DataLoader[Any]):
        pass

    mine = Mine(Numbers(), 4)
    assert mend(mine, dict.fromkeys(MENDABLE), 2, 0).loader is mine
    plain = DataLoader(Numbers(), 4)
    assert mend(plain, {"dtype-wide": None}, 2, 0).loader is plain
    assert mend(plain, {"shuffle-without-seed": None}, 2, 0).loader is plain
    weighted = DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), replacement=True))
    assert mend(weighted, {"shard-missing": None}, 2, 0).loader is weighted
