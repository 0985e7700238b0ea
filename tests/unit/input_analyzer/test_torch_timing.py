"""Stages of a torch DataLoader: their list, the user's lines, and their cost.

What is compared with the clock of a thread holds on a busy machine too; `test_stage_times_are_true` is for a
machine that does little else.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset, StackDataset, Subset

from input_analyzer.conclusions import find_bottleneck
from input_analyzer.measure.cpu_time import Profile
from input_analyzer.measure.examine import stage_costs
from input_analyzer.torch.timing import observe_calls, time_stages
from input_rules.pipeline import StageTime
from input_rules.torch.layers import find_layers
from input_rules.torch.loader import read_pipeline, record_calls

TOLERANCE = 0.15
CALL_US = 100.0
"""What it takes to make a record of nothing, at most."""


def _pipelines() -> ModuleType:
    path = Path(__file__).with_name("torch_pipelines.py")
    spec = importlib.util.spec_from_file_location("torch_pipelines", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["torch_pipelines"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pipelines = _pipelines()
Records, Stream, Burn, Compose = pipelines.Records, pipelines.Stream, pipelines.Burn, pipelines.Compose


def times_of(loader: Any, seconds: float = 1.0) -> dict[str, StageTime]:
    pipeline = read_pipeline(loader, next(iter(loader)))
    found = {one.stage: one for one in time_stages(loader, pipeline, seconds)}
    assert list(found) == [stage.name for stage in pipeline.stages]
    return found


@pytest.mark.soak  # true on a machine that does little else
@pytest.mark.parametrize("case", pipelines.CASES, ids=lambda case: case.name)
def test_stage_times_are_true(case: Any) -> None:
    loader = case.make()
    times = times_of(loader, 2.0)
    for stage, (cpu, wait) in case.costs.items():
        true = cpu + wait
        assert true * (1 - TOLERANCE) <= times[stage].self_time_us <= true * (1 + TOLERANCE), times[stage]
    for stage, found in times.items():
        # A worker's batch of 4 is received in less than 1.2 ms.
        assert stage in case.costs or found.self_time_us < 300, found
    costs = stage_costs(read_pipeline(loader, next(iter(loader))), tuple(times.values()))
    for cpus, stage in case.bottleneck.items():
        bottleneck = find_bottleneck(costs, cpus)
        assert bottleneck is not None
        assert bottleneck.stage == stage


@pytest.mark.parametrize(
    "case", [case for case in pipelines.CASES if case.name in ("composed", "wrapped", "rare", "collating")],
    ids=lambda case: case.name,
)  # fmt: skip
def test_compute_time_is_reported_by_stage(case: Any) -> None:
    times = times_of(case.make(), 0.4)
    for stage, (cpu, _) in case.costs.items():
        # What the machine does besides makes the CPU time of some calls longer, never shorter.
        assert 0.9 * cpu <= times[stage].cpu_us <= 1.3 * cpu + CALL_US, times[stage]


def test_waiting_and_computing_are_distinguished() -> None:
    times = times_of(DataLoader(Records(1000, 4000, transform=pipelines.Nap(3000)), batch_size=4))
    assert times["getitem"].cpu_us > 900
    assert times["getitem"].wait_us > 2 * times["getitem"].cpu_us
    assert times["transform"].wait_us > 4 * times["transform"].cpu_us


def test_cpu_time_of_other_programs_is_no_waiting() -> None:
    """The thread shares its CPU with another one that computes all the time."""
    cpu = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", pin]) as rival:
        os.sched_setaffinity(0, [cpu])
        try:
            times = times_of(DataLoader(Records(3000, transform=Burn(2000)), batch_size=4), 0.5)
        finally:
            os.sched_setaffinity(0, before)
            rival.kill()
    assert times["getitem"].wait_us < 0.1 * times["getitem"].cpu_us
    assert times["transform"].wait_us < 0.1 * times["transform"].cpu_us


def test_stages_lines_and_arguments() -> None:
    with record_calls():
        loader = DataLoader(
            Records(), batch_size=8, shuffle=True, collate_fn=pipelines.slow_collate, num_workers=2
        )
    pipeline = read_pipeline(loader)
    assert [stage.op for stage in pipeline.stages] == ["sampler", "getitem", "collate", "workers"]
    assert pipeline.by_name["sampler"].attributes["random"] is True
    assert pipeline.by_name["workers"].attributes["num_workers"] == 2
    lines = {
        "getitem": ("torch_pipelines.py", "    def __getitem__(self, index: int) -> Any:"),
        "collate": ("torch_pipelines.py", "def slow_collate"),
        "workers": ("test_torch_timing.py", "        loader = DataLoader("),
        "sampler": ("test_torch_timing.py", "        loader = DataLoader("),
    }
    for stage, (file, text) in lines.items():
        place, _, line = str(pipeline.by_name[stage].source).rpartition(":")
        assert Path(place).name == file
        assert Path(__file__).with_name(file).read_text().splitlines()[int(line) - 1].startswith(text)
    assert read_pipeline(DataLoader(Records())).by_name["workers"].source is None, "nobody has noted it"


def test_the_line_of_a_derived_loader_is_that_of_its_user() -> None:
    class Mine(DataLoader[Any]):
        def __init__(self, dataset: Any) -> None:
            super().__init__(dataset, batch_size=2)

    with record_calls():
        loader = Mine(Records())
    line = int(str(read_pipeline(loader).by_name["workers"].source).rpartition(":")[2])
    assert Path(__file__).read_text().splitlines()[line - 1] == "        loader = Mine(Records())"


def test_datasets_and_transforms_within_a_dataset_are_separate_stages() -> None:
    pipeline = read_pipeline(pipelines.composed())
    assert {stage.name: stage.inputs for stage in pipeline.stages} == {
        "sampler": (),
        "transform.Burn": ("sampler",),
        "transform.Nap": ("transform.Burn",),
        "transform.<lambda>": ("transform.Nap",),
        "getitem.Records": ("transform.<lambda>",),
        "getitem.ConcatDataset": ("getitem.Records",),
        "getitem": ("getitem.ConcatDataset",),
        "collate": ("getitem",),
        "workers": ("collate",),
    }
    assert [stage.position for stage in pipeline.stages] == list(range(9))
    assert pipeline.by_name["getitem"].source is None, "torch's own"
    assert "torch_pipelines.py" in str(pipeline.by_name["transform.Nap"].source)


def test_unused_functions_are_left_out() -> None:
    pipeline = read_pipeline(pipelines.composed(), unused={"transform.Nap", "getitem.ConcatDataset"})
    assert pipeline.by_name["transform.<lambda>"].inputs == ("transform.Burn",)
    assert pipeline.by_name["getitem"].inputs == ("getitem.Records",)


class Frozen(Dataset[Any]):
    """One that does not let itself be changed."""

    __slots__ = ("source", "transform")

    def __init__(self) -> None:
        object.__setattr__(self, "transform", Burn(0))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.transform(index))

    def __len__(self) -> int:
        return 8


def doubled(record: Any, factor: int = 2) -> Any:
    return record * factor


@pytest.mark.parametrize(
    "dataset",
    [
        Records(transform=doubled),
        Records(transform=functools.partial(doubled, factor=3)),
        Records(transform=torch.nn.Identity()),
        Records(transform=Compose([doubled, Burn(0)])),
        Records(transform=str),
        Subset(Records(count=9), [3, 4, 5, 6, 7, 8]),
        StackDataset(first=Records(count=6), second=Records(count=6)),
        ChainDataset([Stream(count=6), Stream(count=6)]),
        Frozen(),
        [torch.tensor(index) for index in range(8)],
    ],
    ids=lambda dataset: type(getattr(dataset, "transform", dataset)).__name__,
)
def test_watching_changes_nothing(dataset: Any) -> None:
    def records() -> list[Any]:
        if isinstance(dataset, IterableDataset):
            return list(dataset)
        return [dataset[index] for index in range(4)]

    def state() -> list[Any]:
        parts = [dataset, *vars(dataset).values()] if hasattr(dataset, "__dict__") else [dataset]
        return [(id(part), type(part)) for part in parts]

    before, expected = state(), records()
    profile = Profile()
    with observe_calls(find_layers(dataset, batched=True), profile):
        found = records()
        assert isinstance(dataset, type(dataset).__mro__[0])
    profile.close()
    assert str(found) == str(expected)
    assert state() == before


def test_errors_of_the_dataset_are_its_own_and_leave_it_as_it_was() -> None:
    class Broken(Records):  # type: ignore[misc,valid-type,unused-ignore]
        def __getitem__(self, index: int) -> Any:
            raise KeyError("no such file")

    inner = Broken()
    loader = DataLoader(Subset(inner, range(8)), batch_size=4)
    with pytest.raises(KeyError, match="no such file"):
        time_stages(loader, read_pipeline(loader), 0.1)
    assert type(inner) is Broken


def test_parts_that_call_each_other_are_distinguished() -> None:
    profile = Profile()
    profile.enter("outer")
    pipelines.burn(2000)
    for _ in range(200):
        profile.enter("inner")
        pipelines.burn(20)
        profile.leave()
    time.sleep(0.02)
    profile.leave()
    spent = profile.take_times()
    profile.close()
    assert profile.take_times() == {}
    # 20 us and what it takes to look at a clock.
    assert 200 * 20_000 <= spent["inner"].cpu < 200 * 40_000
    assert 2_000_000 <= spent["outer"].cpu < 6_000_000
    assert 20e6 <= spent["outer"].wait < 60e6
    assert spent["inner"].wait < 1e6


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({"batch_size": 8}, 8),
        ({"batch_size": 8, "drop_last": False}, 8),
        ({"batch_sampler": [[1, 2, 3], [4, 5, 6]]}, 3),
        ({"batch_size": None}, 1),
    ],
)
def test_samples_of_a_batch(arguments: dict[str, Any], size: int) -> None:
    loader = DataLoader(Records(count=24), **arguments)
    assert read_pipeline(loader, next(iter(loader))).samples_per_element == size


def test_a_dataset_that_makes_batches_itself() -> None:
    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for _ in range(20):
                pipelines.burn(8000)
                yield {"x": torch.zeros(4, 3), "y": torch.zeros(4)}

    loader = DataLoader(Batches(), batch_size=None)
    assert read_pipeline(loader, next(iter(loader))).samples_per_element == 4
    assert 1800 < times_of(loader, 0.2)["getitem"].cpu_us < 2800
