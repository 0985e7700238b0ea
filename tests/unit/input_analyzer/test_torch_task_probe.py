"""What several tasks, and worker processes, read of a torch DataLoader: where the rules speak of it."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from torch_loaders import (
    Augmented,
    Numbers,
    SplitStream,
    Stream,
    bare,
    examined,
    found,
    judged,
    loader,
)

from input_analyzer.handover import Shard
from input_analyzer.standalone import program_of
from input_analyzer.torch import records, worker_probe
from input_analyzer.torch.records import begin_alike
from input_analyzer.torch.task_probe import Task, task_of, tasks_differ
from input_analyzer.torch.worker_probe import Worker


def test_two_tasks_read_the_same() -> None:
    def plain(shard: Shard) -> Any:
        return bare(Numbers(), shard, sampler=None)

    finding = found(plain)["shard-missing"]
    assert finding.severity == "warning"
    assert "DistributedSampler" in finding.recommended
    assert "islice" in found(lambda shard: bare(Stream()))["shard-missing"].recommended
    assert "shard-missing" not in found(lambda shard: bare(Numbers(first=64 * shard.index), sampler=None))
    assert "shard-missing" not in found(lambda shard: bare(Stream(shard.index, shard.count)))


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        ({}, {}, False),
        ({"shuffle": True}, {"shuffle": True}, False),
        ({"sampler": SubsetRandomSampler(range(32))}, {"sampler": SubsetRandomSampler(range(32, 64))}, True),
        ({"sampler": SubsetRandomSampler(range(64))}, {"sampler": SubsetRandomSampler(range(64))}, False),
        ({"sampler": SubsetRandomSampler(range(40))}, {"sampler": SubsetRandomSampler(range(20, 60))}, None),
        ({"sampler": RandomSampler(range(64), True, 20)}, {"shuffle": True}, None),
        ({"batch_sampler": [[0, 1], [2, 3]]}, {"batch_sampler": [[4, 5], [6, 7]]}, True),
        ({"batch_sampler": [[0, 1], [2, 3]]}, {"batch_sampler": [[0, 1], [2, 3]]}, False),
    ],
)  # fmt: skip
def test_orders_of_two_tasks(first: Any, second: Any, differ: bool | None) -> None:
    torch.manual_seed(5)
    tasks = [task_of(DataLoader(Numbers(), **arguments)) for arguments in (first, second)]
    assert tasks_differ(*tasks) is differ


def test_random_augmentation_does_not_hide_that_two_tasks_read_the_same() -> None:
    def draw() -> float:
        return random.random() + np.random.random() + float(torch.rand(()))

    two = [task_of(DataLoader(Augmented(draw))) for _ in range(2)]
    assert tasks_differ(*two) is False
    for generator in (np.random.default_rng, random.Random, np.random.RandomState):
        own = [task_of(DataLoader(Augmented(draw, generator()))) for _ in range(2)]
        assert tasks_differ(*own) is False, "its own generator is begun anew, too"

    class Drawn(Augmented):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(0)

    by_chance = [task_of(DataLoader(Drawn(draw, np.random.default_rng()))) for _ in range(2)]
    assert tasks_differ(*by_chance) is None


def test_workers_repeat_the_records_of_a_stream() -> None:
    finding = found(lambda shard: loader(Stream(shard.index, shard.count), num_workers=2))
    assert finding["loader-records-repeated"].severity == "error"
    assert "loader-records-repeated" not in found(lambda shard: loader(SplitStream(), num_workers=2))
    assert "loader-records-repeated" not in found(lambda shard: loader(Stream(), num_workers=1))


def test_streams_are_split_in_several_ways() -> None:
    def by_info(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.first = worker * 50
        info.dataset.count = worker * 50 + 50

    class Alike(Stream):
        def __iter__(self) -> Iterator[Any]:
            return iter([torch.zeros(1)] * 50)

    class Broken(Stream):
        def __iter__(self) -> Iterator[Any]:
            raise OSError("gone")

    assert worker_probe.splits_among_workers(loader(Stream())) is False
    assert worker_probe.splits_among_workers(loader(SplitStream())) is True
    assert worker_probe.splits_among_workers(loader(Stream(), worker_init_fn=by_info)) is True
    assert worker_probe.splits_among_workers(loader(Alike())) is None
    before = set(multiprocessing.active_children())
    assert worker_probe.splits_among_workers(loader(Broken())) is None
    assert set(multiprocessing.active_children()) <= before, "nothing waits for the garbage collector"


def test_records_that_do_not_divide() -> None:
    padded = found(lambda shard: bare(Numbers(63), shard))["records-not-divisible"]
    assert "twice an epoch" in padded.message
    uneven = found(lambda shard: bare(Numbers(40 + 8 * shard.index, first=100 * shard.index), sampler=None))
    assert "40 and 48 records" in uneven["records-not-divisible"].message
    assert "records-not-divisible" not in found(lambda shard: bare(Numbers(64), shard))


def test_a_function_shards_by_what_csrun_tells_a_worker() -> None:
    def train_input() -> Any:
        tasks = int(os.environ.get("CSRUN_NUM_TASKS", "2")) - 1
        index = int(os.environ.get("CSRUN_TASK_INDEX", "0"))
        return DataLoader(Numbers(), sampler=range(index, 64, tasks))

    before = dict(os.environ)
    program = program_of(train_input, train_input())
    assert [list(program.build(Shard(3, index)).sampler)[:2] for index in range(3)] == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]
    assert dict(os.environ) == before


def test_sequences_cut_off_by_time_are_compared_as_far_as_both_go() -> None:
    assert begin_alike(("a", "b", "c"), ("a", "b"))
    assert not begin_alike(("a", "b", "c"), ("a", "c"))
    assert not begin_alike(("a",), ("a", "b")), "one record says nothing"
    assert not begin_alike(("a", "a"), ("a", "a", "b")), "nor do such that are all alike"


def test_slow_records_are_found_to_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def saw(*records: str) -> Worker:
        return Worker({}, frozenset(), records)

    for first, second in ((saw("a", "b", "c"), saw("a", "b")), (saw("a", "b"), saw("a", "b", "c"))):
        monkeypatch.setattr(worker_probe, "workers_of", lambda loader, two=(first, second): two)
        assert worker_probe.splits_among_workers(loader(Stream())) is False
    ours = Task(stream=(("a", "b", "c"), ("a", "b")))
    theirs = Task(stream=(("a", "b"), ("a", "b", "c", "d")))
    assert tasks_differ(ours, theirs) is False
    assert tasks_differ(ours, Task(stream=(("d", "e"), ("d", "e", "f")))) is True


def test_workers_that_know_fewer_records_than_one_process_have_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second record is a worker's, so its eighth one is beyond what was read alone in the same time."""
    first, second = (Worker({}, frozenset(), tuple(map(str, range(n, 16, 2)))) for n in range(2))
    monkeypatch.setattr(worker_probe, "workers_of", lambda loader: (first, second))
    monkeypatch.setattr(worker_probe, "first_digests", lambda dataset, batched: tuple(map(str, range(9))))
    assert worker_probe.splits_among_workers(loader(SplitStream())) is True


class ByChance(Numbers):
    """No index decides anything."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.width,), float(torch.randint(10_000, ())))


@pytest.mark.parametrize("workers", [0, 1])
def test_records_that_are_drawn_at_random_are_not_shared_out_by_index(workers: int) -> None:
    def seeded(shard: Shard) -> Any:
        torch.manual_seed(1337)
        return DataLoader(ByChance(), 8, num_workers=workers)

    examination = examined(seeded)
    assert examination.sharded is False
    finding = next(one for one in examination.findings if one.id == "shard-missing")
    assert "drawn at random, whatever the index" in finding.message
    assert finding.recommended.startswith("random numbers that begin with another seed in every task")
    assert not finding.proved
    assert not any("one of 2" in change for change in examination.applied)
    examination = examined(lambda shard: DataLoader(ByChance(), 8, num_workers=workers))
    assert examination.sharded is None, "they are others in every process"
    assert "shard-missing" not in {one.id for one in examination.findings}


def test_more_workers_of_records_that_are_drawn_at_random_are_left_to_the_user() -> None:
    finding = found(lambda shard: DataLoader(ByChance(), 8))["loader-workers-missing"]
    assert not finding.proved
    assert "do not depend on the index" in finding.recommended


def test_records_that_are_all_the_same_are_not_drawn() -> None:
    class Alike(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(4)

    assert task_of(DataLoader(Alike())).drawn == ()
    assert found(lambda shard: DataLoader(Alike(), 8))["shard-missing"].proved


def test_a_stream_with_random_numbers_of_its_own_is_read_whole_by_every_task() -> None:
    class Mixed(Stream):
        def records(self) -> Iterator[int]:
            numbers = list(range(self.count))
            random.Random().shuffle(numbers)
            return iter(numbers)

    finding = found(lambda shard: bare(Mixed()))["shard-missing"]
    assert not finding.proved
    ours, *others = (
        Task(stream=((first, "c"), ("c", first)), epochs=(Counter(epoch), Counter(again or epoch)))
        for first, epoch, again in (
            *(("a", "ac", ""), ("b", "ca", ""), ("b", "bd", ""), ("b", "bc", "")),
            *(("b", "bd", "ef"), ("a", "ac", "bd"), ("b", "bd", "ac"), ("b", "bd", "ad")),
        )
    )
    assert [tasks_differ(ours, other) for other in others[:4]] == [False, True, None, None]
    assert [tasks_differ(others[4], other) for other in others[5:]] == [True, None], (
        "shared out in each epoch"
    )
    two = loader(Mixed(), num_workers=2, persistent_workers=True)
    assert worker_probe.repeats_among_workers(two) == "all"


def test_it_is_said_that_nobody_can_tell_what_tasks_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "EPOCH_S", 0.05)

    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            rng = np.random.default_rng()
            return (torch.tensor([rng.random()]) for _ in count())

    assert "cannot be told" in str(examined(lambda shard: bare(Endless())).notes)
    assert examined(lambda shard: bare(Stream(shard.index, shard.count))).notes == ()
    for width, notes in ((40, 1), (32, 0)):
        parts = examined(lambda shard, width=width: _part(shard, width))
        assert (len(parts.notes), parts.sharded) == ((1, None) if notes else (0, True))


class Thing:
    """A record as packages for graphs have it: an object that does not tell what is in it."""

    def __init__(self, number: int) -> None:
        self.values, self.itself = {"x": torch.tensor([float(number)])}, self


def test_records_that_are_objects_are_compared_by_what_they_hold() -> None:
    def things(shard: Shard, first: int = 0) -> Any:
        records = [Thing(number + first) for number in range(64)]
        return DataLoader(records, 8, collate_fn=lambda some: torch.stack([one.values["x"] for one in some]))

    assert examined(things).sharded is False
    assert examined(lambda shard: things(shard, 64 * shard.index)).sharded is True


def _part(shard: Shard, width: int) -> Any:
    """Some of the records, in an order of its own that begins where that of the task before has 24 more."""
    first = 24 * shard.index if width > 32 else 32 * shard.index
    return bare(Numbers(), sampler=SubsetRandomSampler(range(first, first + width)))


def test_tasks_that_begin_alike_twice_by_chance() -> None:
    once, other = ("a", "b"), ("c", "d")
    assert tasks_differ(Task(stream=(once, once)), Task(stream=(other, other))) is True
    assert tasks_differ(Task(stream=(once, once)), Task(stream=(other, once))) is None
    assert tasks_differ(Task(stream=(once, other)), Task(stream=(other, other))) is None

    class ByItself(IterableDataset[Any]):
        firsts = iter([0, 0, 5, 9, 9, 9])  # twice the same by chance, of files say

        def __iter__(self) -> Iterator[Any]:
            first = next(self.firsts)
            return (torch.tensor([float(first + number)]) for number in range(40))

    assert not begin_alike(*(task_of(bare(ByItself())).stream or ()))


class Endless(Sampler[int]):
    """As of a library: one seed, whatever the task."""

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(42)
        while True:
            yield from torch.randperm(64, generator=generator).tolist()


def test_an_endless_order_with_one_seed_is_the_same_in_all_tasks() -> None:
    finding = found(lambda shard: bare(Numbers(), sampler=Endless()))["shard-missing"]
    assert finding.recommended.startswith("islice(order, task, None, tasks) in Endless")
    assert not finding.proved


def test_a_part_that_is_drawn_when_the_input_is_built_is_another_one_in_every_task() -> None:
    def part(shard: Shard) -> Any:
        indices = list(range(64))
        np.random.shuffle(indices)
        return bare(Numbers(), sampler=SubsetRandomSampler(indices[8:]))

    finding = found(part)["shard-missing"]
    assert not finding.proved
    assert finding.recommended.startswith("DistributedSampler(Subset(dataset, indices), ")
    assert "a seed that all of them share" in finding.recommended


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("kind", ["weighted", "random", "part"])
def test_draws_are_not_shared_out(seeded: bool, kind: str) -> None:
    def drawing(shard: Shard) -> Any:
        generator = torch.Generator().manual_seed(0) if seeded else None
        weighted = WeightedRandomSampler([1.0] * 64, 64, generator=generator)
        plain = RandomSampler(range(64), replacement=True, num_samples=64, generator=generator)
        part = RandomSampler(range(64), num_samples=32, generator=generator)
        samplers = {"weighted": weighted, "random": plain, "part": part}
        return bare(Numbers(), sampler=samplers[kind], drop_last=False)

    findings = found(drawing)
    assert "would draw from all records" in findings["shard-missing"].message
    assert "generator=torch.Generator().manual_seed(seed + task)" in findings["shard-missing"].recommended
    assert not findings["shard-missing"].proved
    assert "drop-remainder-missing" not in findings, "every task draws as many"


class Chosen(Sampler[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(64)[: self.count].tolist())

    def __len__(self) -> int:
        return self.count


def test_a_sampler_of_the_users_that_chooses_some_indices() -> None:
    for kept, said in ((32, "those whose random numbers begin alike draw the same"), (64, "read the same")):
        finding = found(lambda shard, kept=kept: bare(Numbers(), sampler=Chosen(kept)))["shard-missing"]
        assert said in finding.message
        draws = "Chosen that draws a task's part, with random numbers that begin with another seed in each"
        assert (draws in finding.recommended) is (kept == 32)


def test_the_last_batch_of_one_of_several_tasks() -> None:
    def said(count: int, sampler: Any = None, **context: Any) -> str:
        findings = judged(bare(Numbers(count), drop_last=False, sampler=sampler), batch=False, **context)
        return str(findings.get("drop-remainder-missing"))

    assert "of 3 tasks one has 667 records" in said(2000, sharded=False)
    assert "of 2 tasks one has 1004 records" in said(2008, sharded=False)
    assert said(2000) == "None", "nobody knows what a task has"
    assert said(8 * 720_720, sharded=False) == "None", "720720 is a multiple of all numbers up to 16"
    shared = found(lambda shard: bare(Numbers(96), shard, drop_last=False))["drop-remainder-missing"]
    assert "of 5 tasks one has 20 records" in shared.message


def test_torch_shards_data_pipes_among_workers() -> None:
    def pipe(split: bool) -> Any:
        records = IterableWrapper(range(64))
        return loader(records.sharding_filter() if split else records, num_workers=2)

    assert worker_probe.splits_among_workers(pipe(True)) is True
    assert worker_probe.splits_among_workers(pipe(False)) is False
