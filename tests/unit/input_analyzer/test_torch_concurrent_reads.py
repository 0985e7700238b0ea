"""Worker processes that read at once, threads of a dataset's own, parts of workers that overlap."""

from __future__ import annotations

import mmap
import os
import random
import socket
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from torch import tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from input_analyzer.analysis import Finding
from input_analyzer.applying import reason_left
from input_analyzer.examine import Examination
from input_analyzer.measure.link import Order
from input_analyzer.standalone import program_of
from input_analyzer.torch import handles, reader_threads
from input_analyzer.torch.examine import examine

COUNT = 128


class Numbers(Dataset[Any]):
    """Reads each record as a function does."""

    def __init__(self, read: Callable[[int], Any], held: Any = None) -> None:
        self.read, self.held = read, held

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return tensor([float(self.read(index))])


class InFile(Numbers):
    """Records in a file that is opened at once, or when a record is read."""

    def __init__(self, path: Path, at_once: bool) -> None:
        super().__init__(self.number)
        self.path, self.file = path, path.open("rb") if at_once else None

    def number(self, index: int) -> int:
        self.file = self.file or self.path.open("rb")
        self.file.seek(4 * index)
        return int(struct.unpack("i", self.file.read(4))[0])


class Stream(IterableDataset[Any]):
    def __init__(self, numbers: Callable[[], Any]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[Any]:
        return (tensor([number]) for number in self.numbers())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "records"
    np.arange(COUNT, dtype=np.int32).tofile(path)
    return path


def examined(make: Callable[[], Any]) -> tuple[Examination, dict[str, Finding]]:
    program = program_of(make, DataLoader(Numbers(int)))
    wanted = Order(purpose="examine", socket="", stage_seconds=0.0, cpus_per_task=2)
    found = examine(program, wanted, lambda doing: None)
    return found, {finding.id: finding for finding in found.findings}


def test_a_file_that_workers_would_share_keeps_their_number(file: Path) -> None:
    found, findings = examined(lambda: DataLoader(Subset(InFile(file, True), range(COUNT)), 8))
    assert not findings["loader-workers-missing"].proved
    reason = reason_left(findings["loader-workers-missing"])
    assert reason.startswith("Subset.dataset.file is open")
    assert "in each worker" in reason
    assert not any("num_workers" in change for change in found.applied)


def test_a_file_that_each_worker_opens_does_not(file: Path) -> None:
    found, findings = examined(lambda: DataLoader(InFile(file, False), 8))
    assert findings["loader-workers-missing"].proved
    assert "DataLoader(num_workers=2)" in found.applied


def by_worker(index: int) -> int:
    info = get_worker_info()
    return index + (0 if info is None else COUNT * info.id)


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (by_worker, "2 workers at once read other records than one process"),
        (lambda index: np.random.default_rng().random(), "its records change by themselves"),
    ],
)
def test_records_that_several_workers_read_otherwise_keep_their_number(read: Any, reason: str) -> None:
    finding = examined(lambda: DataLoader(Numbers(read), 8))[1]["loader-workers-missing"]
    assert not finding.proved
    assert reason_left(finding).startswith(reason)


def test_what_is_open_is_found_wherever_it_is_held(file: Path) -> None:
    ours, theirs = socket.socketpair()
    with file.open("rb") as reading, (file.parent / "log").open("w") as writing, ours, theirs:
        mapped = mmap.mmap(reading.fileno(), 0, access=mmap.ACCESS_READ)
        database = sqlite3.connect(":memory:")
        assert handles.held_by(Numbers(int, {"a": [reading]})) == "Numbers.held['a'][0]"
        assert handles.held_by(Numbers(partial(os.pread, ours))) == "Numbers.read[0]"
        assert handles.held_by(Numbers(int, ours)) == "Numbers.held"
        assert handles.held_by(Numbers(int, database)) == "Numbers.held"
        assert handles.held_by(Numbers(int, [mapped, writing, np.memmap(file), None])) is None
        database.close()
        mapped.close()
    assert handles.held_by(Numbers(int, reading)) is None, "it is closed"


def test_what_was_opened_meanwhile_is_noticed_but_for_mapped_files(file: Path) -> None:
    before = handles.open_now()
    held = np.memmap(file)
    assert handles.opened_since(before) is None
    del held
    with file.open("rb"):
        assert handles.opened_since(before) == str(file)


def from_a_thread() -> Iterator[int]:
    queue: Queue[int | None] = Queue(8)

    def fill() -> None:
        for number in range(COUNT):
            queue.put(number)
        queue.put(None)

    threading.Thread(target=fill, daemon=True).start()
    return iter(queue.get, None)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_threads_read_is_not_shared_out(workers: int) -> None:
    findings = examined(lambda: DataLoader(Stream(from_a_thread), 8, num_workers=workers))[1]
    for name in {"shard-missing"} | ({"loader-records-repeated"} if workers else set()):
        assert not findings[name].proved
        assert reason_left(findings[name]).startswith("threads or processes that it starts")


def test_only_what_the_reading_thread_starts_counts() -> None:
    with reader_threads.noticing_helpers() as noticed:
        assert not noticed.started
        one = threading.Thread(target=int)
        one.start()
        one.join()
    assert noticed.started
    started, go = threading.Event(), threading.Event()

    def other() -> None:
        started.set()
        go.wait()
        threading.Thread(target=int).start()

    beside = threading.Thread(target=other)
    beside.start()
    started.wait()
    with reader_threads.noticing_helpers() as noticed:
        go.set()
        beside.join()
    assert not noticed.started


def files_as_each_shuffles_them() -> Iterator[int]:
    files = list(range(16))
    random.shuffle(files)
    info = get_worker_info()
    for file in files if info is None else files[info.id :: info.num_workers]:
        yield from range(8 * file, 8 * file + 8)


def files_in_one_order() -> Iterator[int]:
    info = get_worker_info()
    for file in range(16) if info is None else range(info.id, 16, info.num_workers):
        yield from range(8 * file, 8 * file + 8)


def test_parts_of_workers_that_overlap_are_an_error() -> None:
    found, findings = examined(lambda: DataLoader(Stream(files_as_each_shuffles_them), 8, num_workers=2))
    assert findings["loader-parts-overlap"].severity == "error"
    assert not findings["shard-missing"].proved
    assert reason_left(findings["shard-missing"]) == "its workers do not read each record once"
    assert not any("one of 2" in change for change in found.applied)
    found, findings = examined(lambda: DataLoader(Stream(files_in_one_order), 8, num_workers=2))
    assert "loader-parts-overlap" not in findings
    assert findings["shard-missing"].proved


@pytest.mark.parametrize("count", [40, 400])
def test_a_note_tells_of_a_dataset_that_can_be_read_once(count: int) -> None:
    def once() -> Any:
        left = iter(list(range(count)))
        return DataLoader(Stream(lambda: left), 8)

    assert examined(once)[0].notes[0].startswith("The dataset can be read once")
    assert not examined(lambda: DataLoader(Stream(lambda: range(count)), 8))[0].notes


def test_tasks_may_read_the_same_in_epochs_that_differ() -> None:
    def counted() -> Any:
        epochs = iter(range(100))
        return DataLoader(Stream(lambda: random.Random(next(epochs)).sample(range(COUNT), COUNT)), 8)

    found, findings = examined(counted)
    assert found.sharded is False
    assert findings["shard-missing"].proved
