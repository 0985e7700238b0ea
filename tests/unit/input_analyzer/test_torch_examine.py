"""Common records of tasks and worker processes of a torch input."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, get_worker_info

from input_analyzer.function_program import program_of
from input_analyzer.measure.examine import Overlap, overlap, read_first_batches
from input_analyzer.torch.examine import of_workers, random_numbers_alike, reading_of
from input_rules.input_export import Shard

from .torch_loaders import (
    Augmented,
    Numbers,
    SplitStream,
    Stream,
    bare,
    examined,
    found,
    judged,
    loader,
    times,
)

SAME, SOME, NONE = Overlap.SAME, Overlap.SOME, Overlap.NONE


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
    ("first", "second", "common"),
    [
        ({}, {}, SAME),
        ({"shuffle": True}, {"shuffle": True}, SAME),
        ({"sampler": SubsetRandomSampler(range(32))}, {"sampler": SubsetRandomSampler(range(32, 64))}, NONE),
        ({"sampler": SubsetRandomSampler(range(64))}, {"sampler": SubsetRandomSampler(range(64))}, SAME),
        ({"sampler": SubsetRandomSampler(range(40))}, {"sampler": SubsetRandomSampler(range(20, 60))}, SOME),
        ({"sampler": RandomSampler(range(64), True, 20)}, {"shuffle": True}, SOME),
        ({"batch_sampler": [[0, 1], [2, 3]]}, {"batch_sampler": [[4, 5], [6, 7]]}, NONE),
        ({"batch_sampler": [[0, 1], [2, 3]]}, {"batch_sampler": [[0, 1], [2, 3]]}, SAME),
    ],
)  # fmt: skip
def test_orders_of_two_tasks(first: Any, second: Any, common: Overlap) -> None:
    def read(task: int) -> Any:
        with random_numbers_alike():
            return reading_of(DataLoader(Numbers(), **(first, second)[task]))

    assert overlap(read(0), read(1), read(0)) is common


def test_random_augmentation_does_not_hide_that_two_tasks_read_the_same() -> None:
    def draw() -> float:
        return random.random() + np.random.random() + float(torch.rand(()))

    assert "shard-missing" in found(lambda shard: bare(Augmented(draw), sampler=None))


def test_unknown_sharding_is_a_note() -> None:
    own = np.random.default_rng()
    unknown = examined(lambda shard: bare(Augmented(lambda: 0.0, own), sampler=None))
    assert unknown.sharded is None
    assert any("It is unknown" in note for note in unknown.notes)
    part = examined(lambda shard: bare(Stream(50 * shard.index, count=150 + shard.index)))
    assert part.sharded is None
    assert any("some of the same records" in note for note in part.notes)


def test_workers_repeat_the_records_of_a_stream() -> None:
    finding = found(lambda shard: loader(Stream(shard.index, shard.count), num_workers=2))
    assert finding["loader-records-repeated"].severity == "error"
    assert "loader-records-repeated" not in found(lambda shard: loader(SplitStream(), num_workers=2))
    assert "loader-records-repeated" not in found(lambda shard: loader(Stream(), num_workers=1))


class Overlapping(Stream):
    """Each worker takes its half after its own shuffle."""

    def records(self) -> Iterator[int]:
        info = get_worker_info()
        numbers = random.Random(0 if info is None else info.id).sample(range(self.count), self.count)
        return iter(numbers[: self.count // 2])


def test_parts_of_workers_that_overlap_are_an_error() -> None:
    finding = found(lambda shard: loader(Overlapping(), num_workers=2))["loader-parts-overlap"]
    assert finding.severity == "error"
    assert finding.message.startswith("the parts of the 2 workers overlap")


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

    assert of_workers(loader(Stream())) is SAME
    assert of_workers(loader(SplitStream())) is NONE
    assert of_workers(loader(Stream(), worker_init_fn=by_info)) is NONE
    assert of_workers(loader(Alike())) is None
    before = set(multiprocessing.active_children())
    assert of_workers(loader(Broken())) is None
    assert set(multiprocessing.active_children()) <= before, "nothing waits for the garbage collector"


def test_a_function_shards_by_the_environment_of_a_worker() -> None:
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


def test_one_worker_is_not_promised_the_gain_of_many() -> None:
    facts = {"getitem": {"split_by_workers": None}}
    finding = judged(bare(Stream()), facts, cpus=2, times=times(100, 8000))["loader-workers-missing"]
    assert finding.value == 1
    assert finding.gain is not None
    assert finding.gain.times == 2.0


class InFile(Numbers):
    def __init__(self, path: Path, at_once: bool) -> None:
        super().__init__()
        self.path, self.file = path, path.open("rb", buffering=0) if at_once else None

    def __getitem__(self, index: int) -> Any:
        self.file = self.file or self.path.open("rb", buffering=0)
        self.file.seek(4 * index)
        return torch.frombuffer(bytearray(self.file.read(4)), dtype=torch.float32)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody closes the files
def test_workers_share_a_file_that_was_open_before_them(tmp_path: Path) -> None:
    path = tmp_path / "records"
    np.arange(64, dtype=np.float32).tofile(path)

    def reading(at_once: bool, workers: int) -> Any:
        return found(lambda shard: loader(InFile(path, at_once), shard, num_workers=workers))

    finding = reading(True, 2)["loader-file-shared"]
    assert finding.message.startswith("InFile.file is open when the workers start: the 2 of them share")
    assert "loader-file-shared" not in reading(False, 2)
    assert "loader-file-shared" not in reading(True, 1), "nobody shares it with the only worker"


def test_an_epoch_of_few_batches_is_read_again() -> None:
    def program(records: int) -> Any:
        return program_of(lambda: DataLoader(Numbers(records), 8), DataLoader(Numbers(records), 8))

    assert read_first_batches(program(32), lambda doing: None)["batch_size"] == 8
    with pytest.raises(Exception, match=r"ended after 3 batches \(24 samples\); expected at least 4"):
        read_first_batches(program(24), lambda doing: None)
