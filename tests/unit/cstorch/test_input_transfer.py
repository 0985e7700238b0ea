"""Transfer of input functions to the workers: accepted and refused ones."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch

from cs_runtime.options import RunSettings
from cstorch.errors import InputNotSentError, InputTransferError
from cstorch.input import loader
from cstorch.input.random_state import RandomState
from cstorch.input.transfer import InputFiles, TransferredInput, files_of_job
from cstorch.input.workers import _runs, source_of
from cstorch.loop.loaders import DataLoader
from cstorch.utils.data import DistributedSampler

SETTINGS = RunSettings("train", Path("model_dir"), 4)


def handed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> TransferredInput:
    return TransferredInput(function, args, kwargs, SETTINGS, {"program": "run.py"}, seed=3)


def of_program(source: str, **variables: Any) -> FunctionType:
    """A function `read` as a program's own file defines it."""
    names = {"__name__": "__main__", **variables}
    exec(source, names)
    found = names["read"]
    assert isinstance(found, FunctionType)
    return found


@pytest.fixture
def files(tmp_path: Path) -> InputFiles:
    return files_of_job(tmp_path, "secret")


def test_a_function_of_the_program_arrives_with_what_it_uses(files: InputFiles) -> None:
    source = "class Records(list):\n    pass\ndef read(n, step=1):\n    return Records(range(start, n, step))"
    files.write(1, handed(of_program(source, start=2), 9, step=3))
    found = files.read(1)
    records = found.function(*found.args, **found.kwargs)
    assert (list(records), type(records).__name__) == ([2, 5, 8], "Records")
    assert (found.settings, found.facts, found.seed) == (SETTINGS, {"program": "run.py"}, 3)


def test_a_worker_reads_from_the_position_that_the_chief_has_loaded(files: InputFiles) -> None:
    read = of_program(
        "def read():\n    return torch.utils.data.DataLoader(torch.arange(12), batch_size=2)", torch=torch
    )
    loader = DataLoader(read)
    loader.load_state_dict({"samples_streamed": 6})
    loader.begin_training()
    files.write(1, loader.transfer(SETTINGS))
    with source_of(files.read(1), 0, 1) as source:
        batches = source.batches(1)
        assert [next(batches)[0].tolist() for _ in range(3)] == [[8, 9], [10, 11], [0, 1]]


@pytest.mark.parametrize("ahead", [0, 5, 7, -2])
def test_workers_together_read_from_a_position_what_one_process_reads(
    files: InputFiles, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Step s takes the batch of worker s modulo 3: the batch s + ahead of one process."""
    read = of_program(
        "def read():\n"
        "    records = torch.arange(48)\n"
        "    sampler = DistributedSampler(records, batch_size=2, seed=4)\n"
        "    return torch.utils.data.DataLoader(records, batch_size=2, sampler=sampler)",
        torch=torch,
        DistributedSampler=DistributedSampler,
    )
    files.write(1, replace(handed(read), batches_ahead=ahead))
    one = DataLoader(read)
    one.seed = 3
    expected = [batch.tolist() for (batch,) in islice(one.batches(0), 24)]
    monkeypatch.setattr(loader, "whole_input_on_chief", nullcontext)  # as in the process of a worker
    found: dict[int, list[int]] = {}
    for worker in range(3):
        with source_of(files.read(1), worker, 3) as source:
            for number, (batch,) in enumerate(islice(source.batches(2), 2), start=2):
                found[worker + 3 * number] = batch.tolist()
    assert [found[step] for step in range(6, 12)] == expected[6 + ahead : 12 + ahead]


def test_files_are_only_for_this_user_and_this_start_of_the_job(files: InputFiles, tmp_path: Path) -> None:
    files.write(1, handed(len))
    path = next(files.directory.glob("*.input"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert files.directory.stat().st_mode & 0o777 == 0o700
    again = files_of_job(tmp_path, "secret of a second start")
    assert (files.newest(), again.newest()) == (1, None)
    with pytest.raises(InputTransferError, match="its digest does not agree"):
        InputFiles(files.directory, "another secret").read(1)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InputTransferError, match="its digest does not agree"):
        files.read(1)


def test_a_file_of_another_user_is_not_read(files: InputFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(1, handed(len))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InputTransferError, match="belongs to another user"):
        files.read(1)


class Holder:
    """Keeps a lock, as a cache of a dataset does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def read(self) -> None:
        """Reads nothing."""


def test_inputs_that_cannot_be_transferred_are_named(files: InputFiles) -> None:
    with Path(__file__).open() as file:
        cases: list[tuple[TransferredInput, str]] = [
            (
                handed(of_program("def read():\n    return data", data=file)),
                "data of read (a _io.TextIOWrapper)",
            ),
            (handed(len, {"keep": threading.Lock()}), "'keep' of argument 0 (a _thread.lock)"),
            (handed(len, number=Holder()), "lock of number (a _thread.lock)"),
            (handed(Holder().read), "lock of self of Holder.read (a _thread.lock)"),
            (handed(partial(len, key=[Holder()])), "lock of element 0 of key of the input function"),
        ]
        for case, find_unpicklable in cases:
            with pytest.raises(InputNotSentError) as caught:
                files.write(1, case)
            assert f"because of {find_unpicklable}" in str(caught.value)
    assert files.newest() is None


def test_a_worker_serves_each_run_once_and_leaves_out_those_gone_by(files: InputFiles) -> None:
    files.write(1, handed(len))
    files.write(2, handed(len))
    served = _runs(files)  # of a worker that was started again in the second run
    assert next(served) == 2
    files.write(3, handed(len))
    assert next(served) == 3
    files.end()
    assert next(served, None) is None
    assert files.newest() is None, "the files are taken away"


def test_an_input_draws_its_own_random_numbers() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)

    seed(5)
    program, own, numbers = [draw()], [], RandomState(3)
    for _ in range(2):
        with numbers:
            own.append(draw())
        program.append(draw())
    seed(5)
    assert program == [draw() for _ in range(3)]
    seed(3)
    assert own == [draw() for _ in range(2)]
