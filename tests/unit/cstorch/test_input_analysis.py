"""What a program with a loop over a DataLoader hands over to the analyzer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from cstorch import config, input_analysis
from cstorch.distributed import get_streaming_rank, num_streamers
from cstorch.utils.data import DataLoader, DistributedSampler
from input_rules.handover import VARIABLE, InputProgram, Shard


class Taken(Exception):  # noqa: N818 - it stands for the end of the process
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

    monkeypatch.setenv(VARIABLE, "order.json")
    monkeypatch.setattr(input_analysis, "take_over", take)
    monkeypatch.setattr(config, "_configured", [config.Configuration(tmp_path)])
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
