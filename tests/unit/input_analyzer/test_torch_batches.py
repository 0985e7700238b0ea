"""Batches of a torch DataLoader: their arrays, names, bytes and samples."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from input_analyzer.function_program import program_of
from input_analyzer.measure.examine import Shapes, epoch_samples, examine
from input_analyzer.measure.link import Order
from input_analyzer.torch.examine import digest
from input_analyzer.torch.examine import examine as torch_examine
from input_rules.batches import SampleCounter
from input_rules.errors import ComponentError
from input_rules.findings import Finding
from input_rules.input_export import InputProgram, Shard
from input_rules.torch.batch_parts import flatten_batch
from input_rules.torch.loader import read_pipeline

Named = namedtuple("Named", "x y")


@dataclasses.dataclass
class Pair:
    x: Any
    y: Any


class Nothing:
    """A dataset without information about its content."""


class _Link:
    def send(self, **message: Any) -> None:
        pass


def examined(make: Callable[[], Any]) -> dict[str, Any]:
    order = Order(purpose="examine", socket="", stage_seconds=0.0)
    return examine(program_of(make, make()), order, _Link())  # type: ignore[arg-type]


def of_rows(collate: Callable[[Any], Any], **arguments: Any) -> Any:
    """Batches of 4 of 64 records with 3 numbers."""
    records = torch.arange(192.0).reshape(64, 3)
    return DataLoader(records, **{"batch_size": 4, "collate_fn": collate, **arguments})


X = torch.zeros(4, 3)
Y = torch.zeros(4, dtype=torch.int32)


@pytest.mark.parametrize(
    ("batch", "shapes"),
    [
        (X, {"element": (4, 3)}),
        ((X, [Y]), {"element[0]": (4, 3), "element[1][0]": (4,)}),
        ({"x": X, "y": None}, {"element['x']": (4, 3)}),
        (UserDict(x=X, y=Y), {"element['x']": (4, 3), "element['y']": (4,)}),
        (OrderedDict(b=X, a=Y), {"element['b']": (4, 3), "element['a']": (4,)}),
        (Named(X, (Y,)), {"element.x": (4, 3), "element.y[0]": (4,)}),
        (Pair(X, {"z": Y}), {"element.x": (4, 3), "element.y['z']": (4,)}),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], {"element": (3, 2)}),
        ((X, [1, 2, 3, 4], 7), {"element[0]": (4, 3), "element[1]": (4,), "element[2]": ()}),
        ([(1, 2), (3, 4)], {"element": (2, 2)}),
        ([X.numpy(), np.float32(1)], {"element[0]": (4, 3), "element[1]": ()}),
        (torch.tensor(1.0), {"element": ()}),
    ],
)
def test_streamed_tensors_are_found_and_named(batch: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    leaves = flatten_batch(batch)
    assert {name: tuple(leaf.shape) for name, leaf in leaves.items()} == shapes
    assert all(leaf.nbytes for leaf in leaves.values())


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            {"x": X, "y": object()},
            "component 'element['y']' of the input is object, ... build it from tensors",
        ),
        (
            (X, np.array([None])),
            "component 'element[1]' of the input is an array of object, ... leave it out",
        ),
        (Pair(X, Nothing()), "component 'element.y' of the input is ... .Nothing, ... build it from tensors"),
        (X.to_sparse(), "is a sparse_coo tensor, expected a dense tensor of numbers; make it dense"),
        ([[1, 2], [3]], "is lists of numbers of different lengths, ... pad them"),
        ({"x": None}, "component 'element' of the input is dict without a tensor"),
        ([], "is list without a tensor"),
    ],
)
def test_tensors_that_cannot_be_streamed_are_refused_by_name_and_type(batch: Any, said: str) -> None:
    with pytest.raises(ComponentError) as refused:
        flatten_batch(batch)
    assert all(part in str(refused.value) for part in said.split(" ... "))
    assert refused.value.exit_code == 2, "as that of a run"


@pytest.mark.parametrize(
    ("collate", "bytes_per_sample"),
    [
        (lambda rows: UserDict(x=torch.stack(rows)), 12),
        (lambda rows: Pair(torch.stack(rows), torch.zeros(len(rows))), 16),
        (lambda rows: [row.tolist() for row in rows], 24),
        (lambda rows: torch.stack(rows).sum(), 1),
        (lambda rows: torch.stack(rows, 1), 12),
    ],
    ids=["mapping", "dataclass", "lists", "scalar", "columns"],
)
def test_a_batch_has_as_many_samples_as_the_loader_says(collate: Any, bytes_per_sample: float) -> None:
    for facts in (
        examined(lambda: of_rows(collate)),
        examined(lambda: of_rows(collate, batch_size=1, batch_sampler=BatchSampler(range(64), 4, False))),
    ):
        assert facts["batch_size"] == 4
        assert facts["bytes_per_sample"] == bytes_per_sample
        assert facts["components"][0]["name"].startswith("element")


@pytest.mark.parametrize("kind", [Pair, lambda x, y: UserDict(x=x, y=y), lambda x, y: {"x": [y, {"z": x}]}])
def test_records_are_distinguished_in_any_container(kind: Any) -> None:
    one, other = torch.zeros(5000), torch.zeros(5000)
    other[2500] = 1  # its text is that of the other one
    first, again, second = (digest(kind(x, "name")) for x in (one, one.clone(), other))
    assert first == again
    assert first != second
    assert first != digest(kind(one, "other name"))


def test_text_is_counted_and_a_note_reports_that_it_cannot_be_streamed() -> None:
    leaves = flatten_batch({"x": X, "names": ["a", "bc"], "raw": b"raw", "paths": np.array([["ä"]], object)})
    assert {
        name: (leaf.dtype, leaf.shape, leaf.nbytes) for name, leaf in leaves.items() if name != "element['x']"
    } == {
        "element['names']": ("text", (2,), 3),
        "element['raw']": ("text", (), 3),
        "element['paths']": ("text", (1, 1), 2),
    }
    facts = examined(lambda: of_rows(lambda rows: {"x": torch.stack(rows), "name": ["word"] * len(rows)}))
    assert facts["batch_size"] == 4
    assert facts["bytes_per_sample"] == 12 + 4
    assert facts["notes"][0].startswith("element['name'] is text, which cannot be streamed to a CS system")
    pairs = [(torch.zeros(3), f"name {number}") for number in range(8)]
    collated = flatten_batch(next(iter(DataLoader(pairs, 4))))
    assert {name: leaf.shape for name, leaf in collated.items()} == {"element[0]": (4, 3), "element[1]": (4,)}


@pytest.mark.parametrize(
    ("shapes", "last", "samples"),
    [
        ([(8, 3), (8,)], [(5, 3), (5,)], (8, 5)),
        ([(1,), (8, 3)], [(1,), (5, 3)], (8, 5)),
        ([(50, 8, 3), (50, 8)], [(50, 5, 3), (50, 5)], (8, 8)),
        ([(16, 3), (16,)], [(10, 3), (10,)], (8, 8)),
        ([(2, 3), (7, 8)], [(2, 3), (7, 5)], (8, 8)),
        ([(), ()], [(), ()], (8, 8)),
        ([(5, 3), ()], [(5, 3), ()], (8, 8)),
        ([()] * 8 + [(3, 6, 6)] * 8, [()] * 8 + [(3, 6, 6)] * 8, (8, 8)),
    ],
)
def test_samples_are_counted_where_the_first_batch_shows_them(
    shapes: Any, last: Any, samples: tuple[int, int]
) -> None:
    counted = SampleCounter(8)
    assert tuple(counted(tuple(map(np.zeros, one))) for one in (shapes, last)) == samples
    seen = Shapes(batch_size=8)
    assert seen.check(tuple(map(np.zeros, shapes)))[0] == seen.samples == samples[0]


class Stream(IterableDataset[Any]):
    """Records that nobody has counted."""

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.zeros(80, 2))


def of_task(records: int, shard: Shard) -> Any:
    data = TensorDataset(torch.arange(float(records)))
    return DataLoader(data, 8, sampler=DistributedSampler(data, shard.count, shard.index))


def findings_of(make: Callable[[Shard], Any], **order: Any) -> dict[str, Finding]:
    program = InputProgram("torch", make, make, lambda shard: iter(()))
    wanted = Order(**{"purpose": "examine", "socket": "", "stage_seconds": 0.0, **order})
    return {finding.id: finding for finding in torch_examine(program, wanted, lambda doing: None).findings}


@pytest.mark.parametrize(
    ("make", "severity", "said"),
    [
        (lambda shard: of_task(63, shard), "error", "as 63 records do not divide into batches of 8"),
        (lambda shard: of_task(72, shard), None, ""),
        (lambda shard: DataLoader(Stream(), 8), "warning", "the number of records is unknown"),
    ],
    ids=["uneven", "even", "stream"],
)
def test_the_last_batch_of_a_task(make: Any, severity: str | None, said: str) -> None:
    finding = findings_of(make).get("drop-remainder-missing")
    assert (finding.severity if finding else None) == severity
    assert finding is None or said in finding.message


def test_an_epoch_of_indices_that_come_in_batches_is_not_as_many_records() -> None:
    data = torch.arange(128.0).reshape(64, 2)
    order = torch.utils.data.BatchSampler(range(64), 8, False)
    for loader, samples in ((DataLoader(data, None, sampler=order), None), (DataLoader(data, 8), 64)):
        assert epoch_samples(read_pipeline(loader, next(iter(loader)))) == samples


def test_of_a_stream_every_worker_has_a_last_batch() -> None:
    for workers, whose in (
        (0, "batch of an epoch is dropped"),
        (2, "batch of an epoch and worker process is dropped"),
    ):
        loader = DataLoader(Stream(), 8, num_workers=workers)
        gain = findings_of(lambda shard, loader=loader: loader)["drop-remainder-missing"].gain
        assert gain is not None
        assert gain.text.endswith(whose)


class Slow(Dataset[Any]):
    """1 ms of computing for a record, 800 kB of it."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return torch.full((200_000,), float(index))


def test_findings_are_about_the_cpus_and_the_memory_that_a_task_is_to_have() -> None:
    def make(shard: Shard) -> Any:
        return DataLoader(Slow(), 8, num_workers=2, prefetch_factor=10, persistent_workers=True)

    findings = findings_of(make, cpus_per_task=8, stage_seconds=0.05, memory_bytes=640_000_000)
    assert "with 8 CPUs" in findings["loader-workers-few"].message
    assert findings["loader-prefetch-memory"].value == 5, "2 x 5 x 6.4 MB are a tenth"
    assert "0.6 GiB that a task may use" in findings["loader-prefetch-memory"].message
