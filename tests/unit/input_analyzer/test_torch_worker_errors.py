"""What torch raises where a worker process is gone, in words of the analyzer; and what is left alone."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from input_analyzer.errors import InputAnalyzerError, InputFailedError, MemoryLimitError
from input_analyzer.measure import node
from input_analyzer.torch.worker_errors import told_plainly

PID = 4711


def told_of(read: Callable[[], Any]) -> BaseException:
    """What is raised in the end; nothing of the loaders that are read is left behind."""
    with pytest.raises((InputAnalyzerError, OSError, LookupError, RuntimeError)) as told, told_plainly():
        read()
    error: BaseException | None = told.value
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    return told.value


class Ending(Dataset[Any]):
    """Its worker processes end at some record."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None and index == 32:
            os._exit(3)
        return torch.zeros(2)


ENDED = "a worker process of the DataLoader has ended by itself"


def test_a_worker_that_ends() -> None:
    error = told_of(lambda: list(DataLoader(Ending(), batch_size=8, num_workers=2)))
    assert isinstance(error, InputFailedError)
    # Whether torch or its queue notices first decides how much is known.
    assert re.match(rf"{ENDED}( \(process \d+.*\))?: it .*has called exit; expected", str(error))


def test_tensors_that_went_with_their_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is gone before they are fetched nobody listens at its socket, as here."""
    monkeypatch.setattr("multiprocessing.connection.SocketClient", os.listdir)
    error = told_of(lambda: list(DataLoader(torch.zeros(8, 2), batch_size=8, num_workers=1)))
    assert isinstance(error, InputFailedError)
    assert isinstance(error.__cause__, OSError)
    assert str(error).startswith(ENDED)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (f"DataLoader worker (pid {PID}) is killed by signal: Killed. ", MemoryLimitError, "want of memory"),
        (f"DataLoader worker (pid {PID}) is killed by signal: Bus error. ", MemoryLimitError, "/dev/shm"),
        (
            f"DataLoader worker (pid {PID}) is killed by signal: Segmentation fault. ",
            InputFailedError,
            f"has crashed (process {PID}, Segmentation fault): code of a library",
        ),
        (
            f"DataLoader worker (pid {PID}) is killed by signal: Terminated. ",
            InputFailedError,
            f"was ended by somebody (process {PID}, Terminated)",
        ),
        (
            f"DataLoader worker (pid {PID}) exited unexpectedly with exit code 7. Details are lost",
            InputFailedError,
            f"ended by itself (process {PID}, exit code 7): it has called exit",
        ),
        (
            f"DataLoader worker (pid(s) {PID}, 12) exited unexpectedly",
            InputFailedError,
            f"ended by itself (process {PID} and process 12): it was killed",
        ),
        (
            "unable to open shared memory object </torch_1> in read-only mode: No such file or directory (2)",
            InputFailedError,
            f"{ENDED}: it was killed",
        ),
    ],
)
def test_what_torch_says(
    text: str, kind: type[InputAnalyzerError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "oom_kills", lambda: None)  # as where the kernel does not tell

    def fail() -> None:
        raise RuntimeError(text)

    error = told_of(fail)
    assert isinstance(error, kind)
    assert said in str(error)
    assert error.exit_code == 1


class Broken(Sampler[int]):
    """One whose work fails in the process that reads the loader."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def __iter__(self) -> Iterator[int]:
        self.work()
        return iter(range(8))


@pytest.mark.parametrize(
    "work",
    [
        lambda: Path("/nowhere/at/all").read_text(),
        lambda: Client("/nowhere/at/all"),
        lambda: [].pop(),
        lambda: torch.zeros(2) @ torch.zeros(3),
    ],
)
def test_the_users_own_errors_stay_as_they_are(work: Callable[[], Any]) -> None:
    error = told_of(lambda: list(DataLoader(torch.zeros(8, 2), sampler=Broken(work), num_workers=1)))
    assert isinstance(error, FileNotFoundError | IndexError | RuntimeError)
    assert error.__cause__ is None
