"""The input that a program with a loop over a DataLoader passes to the analyzer, and its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from cstorch.config import Configuration
from cstorch.distributed import get_streaming_rank, num_streamers
from cstorch.input import analysis
from cstorch.program import Program
from cstorch.utils.data import DataLoader, DistributedSampler
from input_analyzer.measure.link import Order
from input_analyzer.torch.examine import examine
from input_rules.input_export import ORDER_VARIABLE, InputProgram, Shard


class Taken(Exception):  # noqa: N818 - it represents the end of the process
    """The analyzer has taken the program."""


def records(count: int) -> torch.utils.data.DataLoader:
    """Numbers in batches of four."""
    data = TensorDataset(torch.arange(count))
    sampler = DistributedSampler(data, shuffle=False, batch_size=4)
    return torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)


def test_the_first_loop_hands_its_input_over_as_each_worker_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken: list[InputProgram] = []

    def take(program: InputProgram, *, compiles: bool) -> None:
        assert not compiles
        taken.append(program)
        raise Taken

    monkeypatch.setenv(ORDER_VARIABLE, "order.json")
    monkeypatch.setattr("cs_runtime.input_source.export_input", take)
    monkeypatch.setattr(Program.current(), "_configuration", Configuration(tmp_path))
    with pytest.raises(Taken):
        next(iter(DataLoader(records, 24, num_steps=3)))
    program = taken[0]
    assert (program.framework, program.function, program.batch_size) == ("torch", records, 4)
    assert list(program.component_names()) == ["input_0"]
    assert program.artifact_dirs == (tmp_path,)

    def read(shard: Shard) -> list[Any]:
        return [batch[0].tolist() for batch in program.batches(shard)]

    numbers = [list(range(i, i + 4)) for i in range(0, 24, 4)]
    assert read(Shard(1, 0)) == numbers
    assert read(Shard(2, 1)) == numbers[1::2]
    with program.role(Shard(3, 2)):
        assert (num_streamers(), get_streaming_rank()) == (3, 2)
    assert (num_streamers(), get_streaming_rank()) == (1, 0)


class Slow:
    """An object of the user's that makes each batch in 2 ms."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(40):
            time.sleep(0.002)
            yield torch.zeros(4, 2)


class Shuffling:
    """An object of the user's that reads a DataLoader."""

    def __init__(self, loader: torch.utils.data.DataLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(self.loader, key=lambda batch: -int(batch[0][0])))


def generated() -> Iterator[torch.Tensor]:
    """Batches of a generator, which can be read once."""
    yield from Slow()


def examined(made: Any) -> dict[str, str]:
    """Return the findings with their recommendations."""
    program = InputProgram("torch", Slow, lambda shard: analysis.data_loader_of(made), lambda shard: iter(()))
    wanted = Order(purpose="examine", socket="", stage_seconds=0.1, cpus_per_task=2)
    found = examine(program, wanted, lambda doing: None).findings
    return {finding.id: finding.recommended for finding in found}


def test_objects_that_are_no_loader_are_examined() -> None:
    assert "a torch.utils.data.DataLoader" in examined(Slow())["loader-workers-missing"]
    assert examined([torch.arange(8).view(4, 2) + 8 * n for n in range(3)]).keys() >= {"shard-missing"}
    assert "loader-batch-missing" not in examined(generated())
    inside = records(24)
    assert analysis.data_loader_of(inside) is analysis.data_loader_of(Shuffling(inside)) is inside


@pytest.mark.parametrize("made", [Slow(), [torch.zeros(4, 2)], Shuffling(records(24))])
def test_the_log_of_a_run_takes_them(made: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.INFO):
        analysis.log_report(DataLoader(lambda: made))
    assert "no Input Function Report" not in caplog.text
