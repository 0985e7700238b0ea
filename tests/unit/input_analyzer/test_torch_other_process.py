"""What tasks share out of a torch dataset has to be the same in every process, too."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_loaders import examined

from input_analyzer.gains import measure_gains
from input_analyzer.measure.copies import Launch

_MODULE = """
import random
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

class Stream(IterableDataset):
    def __iter__(self):
        return (torch.tensor([number]) for number in NUMBERS)

def plain(index=0):
    return DataLoader(TensorDataset(torch.tensor(NUMBERS)), batch_size=4)

def streamed(index=0):
    return DataLoader(Stream(), batch_size=4)

def split(index=0):
    data = TensorDataset(torch.tensor(NUMBERS))
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, index, shuffle=False))

"""
_HANDED_OVER = """
from input_analyzer.handover import InputProgram, take_over
take_over(InputProgram("torch", {made}, lambda shard: {made}(shard.index), lambda shard: iter(())))
"""
_HASHED = "[int(text) for text in {str(number) for number in range(100)}]"


@pytest.mark.parametrize(
    ("made", "numbers", "same"),
    [
        ("plain", "list(range(100))", True),
        ("plain", "torch.randperm(100).tolist()", False),
        ("plain", _HASHED, False),
        ("streamed", _HASHED, False),
        ("split", "random.sample(range(100), 100)", False),
    ],
)
def test_an_order_of_one_process_alone_is_not_shared_out(
    tmp_path: Path, made: str, numbers: str, same: bool
) -> None:
    text = f"{_MODULE}\nNUMBERS = {numbers}\n"
    program = tmp_path / "program.py"
    program.write_text(text + _HANDED_OVER.format(made=made))
    module: dict[str, Any] = {"__name__": "program"}
    exec(text, module)
    examination = examined(lambda shard: module[made](shard.index))
    assert examination.order
    shared = tuple(finding for finding in examination.findings if finding.id == "shard-missing")
    assert all(finding.proved for finding in shared)
    launch = Launch((sys.executable, str(program)), dict(os.environ), 60.0, None, "here")
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    told = measure_gains(
        shared, launch, cpus, 1.0, (8 << 30, 1 << 20), lambda doing: None, digest=examination.order
    )
    if made == "split":
        (note,) = told.notes
        assert "the workers take their parts of other orders" in note
    else:
        (finding,) = told.findings
        assert finding.proved is same
        assert ("second process of the program has other data" in finding.recommended) is not same
