"""Each rule about a torch DataLoader: where it speaks, and where it is silent."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from input_analyzer.function_program import program_of, torch_batches
from input_analyzer.measure.link import Order
from input_analyzer.torch.compare import compare
from input_analyzer.torch.examine import examine, same_random_numbers
from input_rules.findings import Finding
from input_rules.input_export import InputProgram, Shard
from input_rules.rules.base import Context
from input_rules.torch.loader import read_pipeline
from input_rules.torch.rules import find, recommend_workers

from .torch_loaders import ALONE, Augmented, Numbers, Stream, bare, found, judged, loader, times

MIB = 1 << 20


def doubles(records: list[Any]) -> Any:
    return torch.stack(records).double()


def seeded_alike(worker: int) -> None:
    np.random.seed(3)


def seeded_by_worker(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.generator = np.random.default_rng(info.seed)


def good(shard: Shard) -> Any:
    """Nothing is to be said of this one."""
    records = Numbers()
    order = DistributedSampler(records, shard.count, shard.index)
    return DataLoader(records, 8, sampler=order, num_workers=1, persistent_workers=True, drop_last=True)


def test_nothing_is_said_of_a_good_loader() -> None:
    assert found(good) == {}


def test_every_finding_has_a_line_a_reason_and_a_gain() -> None:
    def make(shard: Shard) -> Any:
        return DataLoader(Numbers(63), 8, shuffle=True, collate_fn=doubles)

    findings = found(make)
    assert set(findings) == {
        *("shard-missing", "drop-remainder-missing", "loader-workers-missing", "dtype-wide"),
        "shuffle-without-seed",
    }
    for finding in findings.values():
        assert finding.source is not None, finding
        assert finding.source.rpartition(":")[0].endswith("test_torch_findings.py")
        assert finding.recommended
        assert finding.gain is not None, finding
        assert not finding.message.endswith(".")
    assert findings["drop-remainder-missing"].op == "DataLoader"


def test_workers_are_missing() -> None:
    finding = judged(bare(Numbers()), cpus=4, times=times(2000))["loader-workers-missing"]
    assert finding.recommended == "DataLoader(..., num_workers=4, persistent_workers=True)"
    assert finding.gain is not None
    assert finding.gain.times == pytest.approx(3.9, rel=0.05)
    waits = judged(bare(Numbers()), cpus=2, times=times(500, 4000))["loader-workers-missing"]
    assert "num_workers=4" in waits.recommended or "num_workers=8" in waits.recommended
    assert "loader-workers-missing" in judged(bare(Numbers()), cpus=2)
    assert judged(bare(Numbers()), cpus=2, times=times(2)) == {}, "a hand-over would cost more than the work"
    assert judged(loader(Numbers()), cpus=1, times=times(2000)) == {}


def test_an_input_that_is_no_loader_is_called_by_its_type() -> None:
    own = bare(Numbers())
    own.iterated = ["a batch"]
    finding = judged(own, cpus=4, times=times(2000))["loader-workers-missing"]
    assert finding.message.startswith("the input is of type list: ")
    assert "num_workers is 0" not in finding.message


def test_one_worker_is_enough_for_records_that_would_be_repeated() -> None:
    for splits, workers in ((None, 1), (False, 1), (True, 4)):
        facts = {"getitem": {"split_by_workers": splits}}
        finding = judged(bare(Stream()), facts, cpus=4, times=times(2000))["loader-workers-missing"]
        assert f"num_workers={workers}," in finding.recommended
        assert finding.gain is not None
        alone = "if a training step takes as long" in finding.gain.text
        assert alone == (workers == 1), "one worker computes no faster than the process itself"


def test_there_are_too_few_workers_or_too_many() -> None:
    two = loader(Numbers(), num_workers=2)
    few = judged(two, batch=False, cpus=8, times=times(2000))["loader-workers-few"]
    assert few.recommended == "DataLoader(..., num_workers=8)"
    assert few.gain is not None
    assert few.gain.times == pytest.approx(4, rel=0.1)
    assert judged(two, batch=False, cpus=2, times=times(2000)) == {}
    assert judged(two, batch=False, cpus=8) == {}, "without times nobody knows"
    assert judged(two, batch=False, cpus=8, times=times(2000, sampler=1000)) == {}, "the sampler bounds"
    eight = loader(Numbers(), num_workers=8)
    many = judged(eight, batch=False, cpus=2, times=times(2000))["loader-workers-many"]
    assert many.recommended == "DataLoader(..., num_workers=2)"
    assert judged(eight, batch=False, cpus=2, times=times(300, 4000)) == {}, "they wait most of the time"
    assert judged(eight, batch=False, cpus=8, times=times(2000)) == {}
    sixteen = loader(Numbers(), num_workers=16)
    assert judged(sixteen, batch=False, cpus=2, times=times(30, 4000)) == {}, "each of them is of use"
    most = judged(sixteen, batch=False, cpus=2, times=times(2000, 2000))["loader-workers-many"]
    assert most.recommended == "DataLoader(..., num_workers=6)", "one computes while another one waits"


def test_as_many_workers_are_wanted_as_are_of_use() -> None:
    pipeline = read_pipeline(loader(Numbers(), num_workers=2))
    for cpus, spent, wanted in (
        (4, times(1000), 4),
        (1, times(1000), 1),
        (4, times(1000, sampler=1000), 1),
        (2, times(10, 10_000), 8),
        (2, times(1000, 1000), 6),
    ):
        assert recommend_workers(pipeline, Context(cpus=cpus, times=spent)) == wanted


def test_workers_are_restarted() -> None:
    assert "loader-workers-restarted" in judged(loader(Numbers(), persistent_workers=False), batch=False)
    assert judged(loader(Numbers(), persistent_workers=False), batch=False, training=False) == {}


def test_batches_are_made_ahead() -> None:
    assert "loader-prefetch-small" in judged(loader(Numbers(), prefetch_factor=1), batch=False)
    assert judged(loader(Numbers(), prefetch_factor=2), batch=False) == {}
    large = loader(Numbers(64, MIB // 4), prefetch_factor=50)  # 8 MiB a batch
    finding = judged(large, memory_bytes=1000 * MIB)["loader-prefetch-memory"]
    assert finding.recommended == "DataLoader(..., prefetch_factor=12)"
    assert judged(large, memory_bytes=10_000 * MIB) == {}


def test_the_last_batch_may_be_smaller() -> None:
    def last(records: int, **arguments: Any) -> bool:
        return "drop-remainder-missing" in judged(loader(Numbers(records), **arguments), batch=False)

    assert last(63, drop_last=False)
    assert not last(64, drop_last=False), "it is not"
    assert "drop-remainder-missing" in judged(loader(Stream(), drop_last=False)), "nobody knows"
    assert not last(63)
    batches = torch.utils.data.BatchSampler(range(63), 8, False)
    alone = {"batch_size": 1, "drop_last": False, "sampler": None}
    assert last(63, batch_sampler=batches, **alone)
    assert not last(63, batch_sampler=[[0, 1], [2, 3]], **alone), "nobody knows"


def test_a_loader_of_single_records_is_reported() -> None:
    alone = loader(Numbers(), batch_size=None, drop_last=False)
    assert "loader-batch-missing" in judged(alone)

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([(torch.zeros(8, 3), torch.zeros(8))] * 20)

    assert judged(loader(Batches(), batch_size=None, drop_last=False)) == {}


def test_records_with_lists_of_numbers() -> None:
    def told(record: Any) -> list[str]:
        made = judged(DataLoader([record] * 16, 8))
        return [one.message for one in made.values() if one.id == "loader-lists"]

    assert told({"ids": [1] * 12, "label": 0})[0].startswith("element['ids'] is a list of 12 tensors with 8 ")
    for record in ({"ids": torch.ones(12), "label": 0}, (1, 2, 3), [torch.ones(2)] * 12):
        assert told(record) == []


def test_an_order_without_a_seed() -> None:
    def shuffled(**arguments: Any) -> dict[str, Finding]:
        return found(lambda shard: bare(Numbers(), sampler=None, shuffle=True, **arguments))

    recommended = shuffled()["shuffle-without-seed"].recommended
    assert recommended == "DataLoader(..., generator=torch.Generator().manual_seed(0))"
    assert "shuffle-without-seed" not in shuffled(generator=torch.Generator().manual_seed(1))


class Mine(Sampler[int]):
    """A sampler of the user's."""

    def __init__(self, numbers: Callable[[], list[int]]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers())

    def __len__(self) -> int:
        return len(self.numbers())


class Shuffled(Mine):
    """One that says that it shuffles, and takes a generator."""

    shuffle = True

    def __init__(self, generator: Any = None) -> None:
        super().__init__(lambda: torch.randperm(64, generator=generator).tolist())
        self.generator = generator


TORCHS = "torch.Generator().manual_seed(0)"


@pytest.mark.parametrize(
    ("make", "recommended"),
    [
        (lambda: RandomSampler(range(64)), f"RandomSampler(..., generator={TORCHS})"),
        (lambda: SubsetRandomSampler(range(64)), f"SubsetRandomSampler(..., generator={TORCHS})"),
        (lambda: WeightedRandomSampler([1.0] * 64, 64), f"WeightedRandomSampler(..., generator={TORCHS})"),
        (Shuffled, f"Shuffled(..., generator={TORCHS})"),
        (lambda: RandomSampler(range(64), generator=torch.Generator()), None),
        (lambda: Shuffled(torch.Generator()), None),
        (lambda: Mine(lambda: np.random.default_rng(3).permutation(64).tolist()), None),
        (lambda: Mine(lambda: list(range(64))), None),
    ],
)
def test_a_sampler_without_a_seed(make: Callable[[], Any], recommended: str | None) -> None:
    """The generator of the DataLoader has no effect on the order of a sampler that is given to it."""

    def order(seed: int) -> list[float]:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        generator = torch.Generator().manual_seed(0)
        made = DataLoader(Numbers(), 8, sampler=make(), generator=generator)
        return [float(record[0]) for batch in made for record in batch]

    findings = found(lambda shard: bare(Numbers(), sampler=make()))
    assert findings["shuffle-without-seed"].recommended == recommended if recommended else True
    assert ("shuffle-without-seed" in findings) == (recommended is not None)
    if recommended:
        assert order(1) != order(2)
        of_torch = "Sampler(..." in recommended  # then the line is that of the DataLoader
        file = "torch_loaders.py" if of_torch else "test_torch_findings.py"
        assert file in str(findings["shuffle-without-seed"].source)


def test_an_order_within_a_batch_sampler_has_its_own_generator() -> None:
    def batches(shard: Shard) -> Any:
        inner = RandomSampler(range(64))
        return DataLoader(Numbers(), batch_sampler=BatchSampler(inner, 8, True))

    assert found(batches)["shuffle-without-seed"].recommended.startswith("RandomSampler(")


def test_a_dear_collate_function() -> None:
    def mine(records: list[Any]) -> Any:
        return torch.stack(records)

    dear = times(100, collate=100)
    assert "50 % of the time" not in str(judged(loader(Numbers()), times=dear))
    finding = judged(loader(Numbers(), collate_fn=mine), times=dear, cpus=1)["loader-collate-slow"]
    assert "45 % of the time" in finding.message
    line = int(str(finding.source).rpartition(":")[2])
    assert "def mine" in Path(__file__).read_text().splitlines()[line - 1]
    cheap = times(1000, collate=100)
    assert "loader-collate-slow" not in judged(loader(Numbers(), collate_fn=mine), times=cheap, cpus=1)


def test_wide_types() -> None:
    wide = loader(TensorDataset(torch.zeros(64, 2, dtype=torch.float64), torch.zeros(64, dtype=torch.int64)))
    pipeline = read_pipeline(wide, next(iter(wide)))
    findings = [finding for finding in find(pipeline, Context()) if finding.id == "dtype-wide"]
    assert [finding.severity for finding in findings] == ["warning", "info"]
    assert [str(finding.gain).startswith("expected: ") for finding in findings] == [True, True]
    narrow = judged(loader(TensorDataset(torch.zeros(64, 2), torch.zeros(64, dtype=torch.int32))))
    assert narrow.keys() == {"loader-records-single"}


@pytest.mark.parametrize(
    ("dataset", "begin", "same"),
    [
        (Augmented(lambda: float(np.random.random())), None, False),
        (Augmented(lambda: float(np.random.random())), seeded_alike, True),
        (Augmented(lambda: float(torch.rand(())) + random.random()), seeded_alike, False),
        (Augmented(lambda: 0.0, np.random.default_rng(1)), None, True),
        (Augmented(lambda: 0.0, random.Random(1)), None, True),
        (Augmented(lambda: 0.0, np.random.default_rng(1)), seeded_by_worker, False),
        (Numbers(), None, False),
    ],
)
def test_random_numbers_that_are_the_same_in_all_workers(dataset: Any, begin: Any, same: Any) -> None:
    made = loader(dataset, num_workers=2, worker_init_fn=begin)
    assert same_random_numbers(made) is same
    facts = {"getitem": {"same_random": same}}
    assert ("loader-random-same" in judged(made, facts, batch=False)) is same


def test_weighted_orders_are_random() -> None:
    weighted = DataLoader(Numbers(), sampler=WeightedRandomSampler(torch.ones(64).tolist(), 64))
    assert read_pipeline(weighted).by_name["sampler"].attributes["random"] is True


def test_times_come_into_an_examination() -> None:
    def make(shard: Shard) -> Any:
        return good(shard)

    program = InputProgram("torch", make, make, lambda shard: iter(()))
    wanted = Order(purpose="examine", socket="", stage_seconds=0.2)
    examination = examine(program, wanted, lambda doing: None)
    assert {time.stage for time in examination.times} == {"sampler", "getitem", "collate", "workers"}
    assert examination.sharded is True
    assert examination.pipeline.by_name["workers"].attributes["cpus"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("dataset", "batch_size", "shapes"),
    [
        (Numbers(), 8, {(8, 4)}),
        (Numbers(), None, {(1, 4)}),
        ([torch.zeros(8, 3)] * 9, None, {(8, 3)}),
    ],
)
def test_lone_records_are_batches_of_one(dataset: Any, batch_size: int | None, shapes: Any) -> None:
    batches = torch_batches(DataLoader(dataset, batch_size=batch_size))
    assert {tuple(leaf.shape) for batch in batches for leaf in batch} == shapes


def test_a_loader_is_read_again_at_the_end_of_an_epoch() -> None:
    built = []

    def train_input() -> Any:
        built.append(1)
        return DataLoader(Numbers(16), 8)

    class Once(Stream):
        def __iter__(self) -> Iterator[Any]:
            records, self.count = super().__iter__(), 0
            return records

    program = program_of(train_input, train_input())
    assert [len(list(program.batches(ALONE))) for _ in range(3)] == [2, 2, 2]
    assert len(built) == 2, "one of them to see what it is"
    once = program_of(lambda: DataLoader(Once(count=16), 8), DataLoader(Once(), 8))
    assert [len(list(once.batches(ALONE))) for _ in range(3)] == [2, 2, 2]


def test_gains_are_measured_interleaved() -> None:
    class Slow(Numbers):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.02)
            return super().__getitem__(index)

    def make(shard: Shard) -> Any:
        return DataLoader(Slow(), 4)

    program = InputProgram("torch", make, make, lambda shard: iter(()))
    assert compare(program, {"dtype-wide": None}, 2.5, lambda: None) is None
    ratio = compare(program, {"loader-workers-missing": 4 * len(os.sched_getaffinity(0))}, 2.5, lambda: None)
    assert ratio is not None
    middle, low, high = ratio
    # Two CPUs or more: eight workers that sleep; the machine may be busy.
    assert middle > 2.2
    assert low <= middle <= high
