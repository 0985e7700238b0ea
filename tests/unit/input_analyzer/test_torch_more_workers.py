"""What more worker processes, or such that stay, may change in what a torch DataLoader delivers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from multiprocessing import Manager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch_loaders import Augmented, Numbers, bare, found, judged, loader, times

from input_analyzer.errors import InputFailedError, MemoryLimitError
from input_analyzer.examine import _first_batches
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure import node
from input_analyzer.measure.link import Order
from input_analyzer.measure.session import check_length
from input_analyzer.standalone import load, program_of
from input_analyzer.torch import handles, worker_errors
from input_analyzer.torch.examine import examine
from input_analyzer.torch.failing import what_helps


@pytest.mark.parametrize("generator", [np.random.default_rng(0), None])
def test_more_workers_would_have_one_state_of_a_generator(generator: Any) -> None:
    def own(shard: Shard) -> Any:
        return DataLoader(Augmented(lambda: float(torch.rand(())), generator), 8)

    finding = found(own)["loader-workers-missing"]
    assert finding.proved is (generator is None)
    assert ("have a worker_init_fn seed it" in finding.recommended) is (generator is not None)


class SeldomAugmented(Augmented):
    """Draws in records that nobody looks at; or only before any is read."""

    def __getitem__(self, index: int) -> Any:
        if index == 63:
            return super().__getitem__(index) + self.generator.random()
        return Numbers.__getitem__(self, index)


class Shuffled(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)
        self.order = self.generator.permutation(self.count)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(int(self.order[index]))


@pytest.mark.parametrize(
    ("dataset", "proved"), [(SeldomAugmented(float, np.random.default_rng(0)), False), (Shuffled(), True)]
)
def test_more_workers_would_have_a_generator_that_is_seldom_drawn_from(dataset: Any, proved: bool) -> None:
    finding = found(lambda shard: DataLoader(dataset, 8))["loader-workers-missing"]
    assert finding.proved is proved
    assert ("where a record draws from SeldomAugmented.generator" in finding.recommended) is not proved


class ByEpoch(Numbers):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class StreamByEpoch(IterableDataset[Any]):
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([float(number)]) for number in range(200))


@pytest.mark.parametrize(
    "dataset", [ByEpoch(), torch.utils.data.Subset(ByEpoch(), range(40)), StreamByEpoch()]
)
def test_workers_do_not_stay_where_a_dataset_knows_the_epoch(dataset: Any) -> None:
    for workers, name in ((0, "loader-workers-missing"), (1, "loader-workers-restarted")):
        finding = found(lambda shard, count=workers: DataLoader(dataset, 8, num_workers=count))[name]
        assert not finding.proved
        assert "workers that stay keep their copy of the dataset" in finding.recommended


def test_a_sampler_is_asked_in_the_main_process() -> None:
    slow_order = judged(bare(Numbers()), cpus=2, times=times(6, sampler=1100))
    assert "loader-workers-missing" not in slow_order, "a worker would do next to nothing of it"
    both = judged(bare(Numbers()), cpus=1, times=times(1000, sampler=2000))["loader-workers-missing"]
    assert both.gain is not None
    assert both.gain.text.startswith("up to 1.50 times the rate, ")
    assert both.gain.times == 1.5
    alone = judged(bare(Numbers()), cpus=1, times=times(1000))["loader-workers-missing"]
    assert alone.gain is not None
    assert alone.gain.text.startswith("up to twice the rate, ")


def test_one_worker_is_not_promised_the_gain_of_many() -> None:
    facts = {"getitem": {"split_by_workers": None}}
    stream = bare(StreamByEpoch())
    finding = judged(stream, facts, cpus=2, times=times(100, 8000))["loader-workers-missing"]
    assert finding.value == 1
    assert finding.gain is not None
    assert finding.gain.times == 2.0


class Keeping(Numbers):
    def __init__(self) -> None:
        super().__init__(256)
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self.kept.setdefault(index, super().__getitem__(index))


def test_each_worker_would_keep_records_of_its_own() -> None:
    for dataset in (Keeping(), torch.utils.data.Subset(Keeping(), range(200))):
        finding = found(lambda shard, dataset=dataset: DataLoader(dataset, 8))["loader-workers-missing"]
        assert not finding.proved
        assert "what it has read it keeps in Keeping.kept" in finding.recommended


class InFile(Numbers):
    def __init__(self, path: Path, at_once: bool) -> None:
        super().__init__()
        self.path, self.file = path, path.open("rb", buffering=0) if at_once else None

    def __getitem__(self, index: int) -> Any:
        self.file = self.file or self.path.open("rb", buffering=0)
        self.file.seek(4 * index)
        return torch.tensor(struct.unpack("f", self.file.read(4)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody closes the files
def test_workers_share_a_file_that_was_open_before_them(tmp_path: Path) -> None:
    path = tmp_path / "records"
    np.arange(64, dtype=np.float32).tofile(path)

    def reading(at_once: bool, workers: int) -> Any:
        return found(lambda shard: loader(InFile(path, at_once), shard, num_workers=workers))

    finding = reading(True, 2)["loader-file-shared"]
    assert finding.message.startswith("InFile.file is open when the workers begin: the 2 of them share")
    assert "loader-file-shared" not in reading(False, 2)
    assert "loader-file-shared" not in reading(True, 1), "nobody shares it with the only worker"


def test_what_a_manager_keeps_is_no_file_that_workers_share() -> None:
    class Cached(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.known = manager.dict()

        def __getitem__(self, index: int) -> Any:
            return self.known.setdefault(index, super().__getitem__(index))

    before = handles.open_now()
    with Manager() as manager:
        dataset = Cached()
        assert handles.held_by(dataset) is None
        assert handles.opened_since(before) is None


def test_an_epoch_of_few_batches_is_read_again() -> None:
    def program(records: int) -> InputProgram:
        return program_of(lambda: DataLoader(Numbers(records), 8), DataLoader(Numbers(records), 8))

    assert _first_batches(program(32), lambda doing: None)["batch_size"] == 8
    with pytest.raises(Exception, match=r"ended after 3 batches \(24 samples\); expected at least 4"):
        _first_batches(program(24), lambda doing: None)
    check_length(4, 32, Shard(1, 0), "torch")


class Varying(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(4 + index % 3)


@pytest.mark.parametrize("workers", [0, 1])
def test_where_torch_has_raised_is_told(workers: int) -> None:
    def helped(dataset: Any, batch_size: int | None = 8) -> str:
        def make() -> Any:
            return DataLoader(dataset, batch_size, num_workers=workers)

        with pytest.raises(Exception) as raised:  # noqa: PT011
            list(make())
        torchs = getattr(raised.value.__traceback__, "tb_next", None)  # without the line above
        return what_helps(program_of(make, make()), Shard(1, 0), raised.value.with_traceback(torchs))

    said = helped(Varying())
    assert said.startswith("raised in collate_tensor_fn() of torch, for the DataLoader in ")
    assert "test_torch_more_workers.py:" in said
    assert said.endswith("pad or crop records to one shape, in the dataset or in a collate_fn of yours")
    assert "raised in fetch() of torch" in helped({f"k{number}": torch.zeros(3) for number in range(9)})


def test_a_worker_that_was_not_killed_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "oom_kills", lambda: 3)
    for before, kind in ((3, InputFailedError), (2, MemoryLimitError), (None, MemoryLimitError)):
        found = worker_errors._killed("worker 1, process 4711", "Killed", before)
        assert type(found) is kind
        assert ("not by the kernel for want of memory" in str(found)) is (kind is InputFailedError)


def test_a_file_that_a_cache_of_the_module_holds_is_shared(tmp_path: Path) -> None:
    np.arange(64, dtype=np.float32).tofile(tmp_path / "records")
    (tmp_path / "cached_handle.py").write_text(
        """
from functools import lru_cache
import struct, torch
from torch.utils.data import DataLoader, Dataset

@lru_cache
def opened():
    return open("FILE", "rb")

class Records(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        opened().seek(4 * index)
        return torch.tensor(struct.unpack("f", opened().read(4)))

def late():
    return DataLoader(Records(), 8)

def early():
    opened()
    return late()
""".replace("FILE", str(tmp_path / "records"))
    )
    for name, shared in (("late", False), ("early", True)):
        function = load(f"{tmp_path}/cached_handle.py:{name}")
        wanted = Order(purpose="examine", socket="", stage_seconds=0.0, cpus_per_task=2)
        found = examine(program_of(function, function()), wanted, lambda doing: None).findings
        finding = next(one for one in found if one.id == "loader-workers-missing")
        assert finding.proved is not shared
        assert (str(tmp_path) in finding.recommended) is shared
