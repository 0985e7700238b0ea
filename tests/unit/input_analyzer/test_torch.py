"""Parts of a torch DataLoader: what they are, what they cost, what is found, where torch is installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure.link import Order

torch = pytest.importorskip("torch", minversion="2.13")

from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset  # noqa: E402

from input_analyzer.torch.examine import examine  # noqa: E402
from input_analyzer.torch.loader import pipeline_of  # noqa: E402
from input_analyzer.torch.timing import time_stages  # noqa: E402

TOLERANCE = 0.15


def spin(us: int) -> None:
    end = time.thread_time_ns() + us * 1000
    while time.thread_time_ns() < end:
        pass


class Records(Dataset):  # type: ignore[misc,type-arg,unused-ignore]
    """Records that take CPU time and waiting."""

    def __init__(self, cpu_us: int = 0, wait_us: int = 0, count: int = 64) -> None:
        self.cpu_us, self.wait_us, self.count = cpu_us, wait_us, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        spin(self.cpu_us)
        if self.wait_us:
            time.sleep(self.wait_us / 1e6)
        return torch.full((4,), float(index))


class Stream(IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]
    def __iter__(self) -> Iterator[Any]:
        for number in range(40):
            spin(2000)
            yield torch.tensor(number)


class SlowOrder:
    """A sampler that thinks."""

    def __iter__(self) -> Iterator[int]:
        for index in range(64):
            spin(2000)
            yield index

    def __len__(self) -> int:
        return 64


def slow_collate(records: list[Any]) -> Any:
    spin(8000)
    return torch.stack(records)


TRUTH: dict[str, tuple[Callable[[], Any], dict[str, float]]] = {
    "records": (lambda: DataLoader(Records(2000), batch_size=4), {"getitem": 2000}),
    "waiting": (lambda: DataLoader(Records(1000, 2000), batch_size=4), {"getitem": 3000}),
    "collate": (
        lambda: DataLoader(Records(1000), batch_size=4, collate_fn=slow_collate),
        {"getitem": 1000, "collate": 2000},
    ),
    "sampler": (
        lambda: DataLoader(Records(1000), batch_size=4, sampler=SlowOrder()),
        {"sampler": 2000, "getitem": 1000},
    ),
    "stream": (lambda: DataLoader(Stream(), batch_size=5), {"getitem": 2000}),
    "workers": (
        lambda: DataLoader(Records(500, 3000), batch_size=4, num_workers=2),
        {"getitem": 3500},
    ),
}


@pytest.mark.parametrize("name", TRUTH)
def test_stage_times_are_true(name: str) -> None:
    make, expected = TRUTH[name]
    loader = make()
    pipeline = pipeline_of(loader, next(iter(loader)))
    times = {found.stage: found for found in time_stages(loader, pipeline, 1.0)}
    assert list(times) == [stage.name for stage in pipeline.stages]
    for stage, true in expected.items():
        # A sleep is over up to 0.1 ms late.
        assert true * (1 - TOLERANCE) <= times[stage].self_time_us <= true * (1 + TOLERANCE) + 100
    for stage, found in times.items():
        assert stage in expected or found.self_time_us < 300, found
    slowest = max(times.values(), key=lambda found: found.self_time_us)
    assert slowest.stage == max(expected, key=lambda stage: expected[stage])


def test_stages_lines_and_arguments() -> None:
    loader = DataLoader(Records(), batch_size=8, shuffle=True, collate_fn=slow_collate, num_workers=2)
    pipeline = pipeline_of(loader)
    assert [stage.op for stage in pipeline.stages] == ["sampler", "getitem", "collate", "workers"]
    assert pipeline.by_name["sampler"].attributes["random"] is True
    assert pipeline.by_name["workers"].attributes["num_workers"] == 2
    lines = Path(__file__).read_text().splitlines()
    for stage, text in (
        ("getitem", "    def __getitem__(self, index: int) -> Any:"),
        ("collate", "def slow_collate"),
    ):
        place, _, line = str(pipeline.by_name[stage].source).rpartition(":")
        assert Path(place).name == Path(__file__).name
        assert lines[int(line) - 1].startswith(text)
    assert pipeline.by_name["sampler"].source is None


def program(make: Callable[[Shard], Any]) -> InputProgram:
    return InputProgram("torch", make, make, lambda shard: iter(()))


def findings(make: Callable[[Shard], Any]) -> set[str]:
    order = Order(purpose="examine", socket="", stage_seconds=0.0)
    return {finding.id for finding in examine(program(make), order, lambda doing: None).findings}


def test_a_good_loader() -> None:
    def make(shard: Shard) -> Any:
        records = Records()
        order = DistributedSampler(records, shard.count, shard.index)
        return DataLoader(records, 8, sampler=order, num_workers=1, persistent_workers=True, drop_last=True)

    assert findings(make) == set()


def test_what_is_found() -> None:
    def wide(records: list[Any]) -> Any:
        return torch.stack(records).double()

    assert findings(lambda shard: DataLoader(Records(count=63), batch_size=8, collate_fn=wide)) == {
        *("shard-missing", "drop-remainder-missing", "loader-workers-missing", "dtype-wide")
    }


def test_errors_of_the_dataset_are_its_own() -> None:
    class Broken(Records):
        def __getitem__(self, index: int) -> Any:
            raise KeyError("no such file")

    loader = DataLoader(Broken(), batch_size=4)
    with pytest.raises(KeyError, match="no such file"):
        time_stages(loader, pipeline_of(loader), 0.1)
