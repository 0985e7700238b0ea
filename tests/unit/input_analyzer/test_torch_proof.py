"""What is proved of the records that several tasks, and worker processes, read; and what is left alone."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from torch import tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from input_analyzer.analysis import Finding
from input_analyzer.analyze import _mending
from input_analyzer.applying import words_of
from input_analyzer.examine import Examination
from input_analyzer.gains import compared_sets
from input_analyzer.measure.copies import Launch
from input_analyzer.measure.link import Order
from input_analyzer.source_diff import diff
from input_analyzer.standalone import program_of
from input_analyzer.torch import global_random, proof, records, worker_probe
from input_analyzer.torch.examine import examine
from input_analyzer.torch.mend import mend

COUNT = 200


class Stream(IterableDataset[Any]):
    """Records without indices, which a function gives anew for every epoch."""

    def __init__(self, numbers: Callable[[], Any]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[Any]:
        return (tensor([number]) for number in self.numbers())


class Listed(Dataset[Any]):
    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return tensor([self.numbers[index]])


def worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def shuffled() -> list[int]:
    numbers = list(range(COUNT))
    random.shuffle(numbers)
    return numbers


def later_by_itself() -> list[int]:
    """As always for longer than a few records, then as nothing in the process tells."""
    return [*range(100), *(100 + np.random.default_rng().permutation(COUNT - 100))]


def by_worker() -> Iterator[int]:
    """Alike in all workers for longer than a few records, and not from there on."""
    yield from range(100)
    yield from range(100, COUNT) if worker()[0] % 2 == 0 else reversed(range(100, COUNT))


def two_files() -> Iterator[int]:
    first, step = worker()
    for file in range(first, 2, step):
        yield from range(100 * file, 100 * file + 100)


def shared_out() -> range:
    first, step = worker()
    return range(first, COUNT, step)


def for_two_workers() -> range:
    first, step = worker()
    return range(0 if step == 1 else min(first, 1), COUNT, min(step, 2))


def by_task() -> range:
    """Reads its task when it is read."""
    first, step = worker()
    task = int(os.environ.get("CSRUN_TASK_INDEX", "0"))
    tasks = int(os.environ.get("CSRUN_NUM_TASKS", "2")) - 1
    return range(task * step + first, COUNT, tasks * step)


def examined(make: Callable[[], Any], cpus: int = 2) -> tuple[Examination, dict[str, Finding]]:
    program = program_of(make, DataLoader(Listed([1])))
    wanted = Order(purpose="examine", socket="", stage_seconds=0.0, cpus_per_task=cpus)
    found = examine(program, wanted, lambda doing: None)
    return found, {finding.id: finding for finding in found.findings}


def shares(found: Examination) -> bool:
    """Whether a mend leaves records to one of those that read them."""
    return any("one of 2" in change or "every worker" in change for change in found.applied)


@pytest.mark.parametrize(("numbers", "workers"), [(shuffled, 0), (shuffled, 2), (range(COUNT).__iter__, 2)])
def test_one_order_is_proved(numbers: Any, workers: int) -> None:
    found, findings = examined(lambda: DataLoader(Stream(numbers), 8, num_workers=workers))
    assert "one of 2 records of the dataset, from number 0 on" in found.applied
    wanted = {"shard-missing"} | ({"loader-records-repeated"} if workers else set())
    assert {name for name in wanted if findings[name].proved} == wanted
    for name in wanted:
        assert ("needs a seed that all of them share" in findings[name].recommended) is (numbers is shuffled)


@pytest.mark.parametrize(
    ("numbers", "workers", "reason"),
    [
        (later_by_itself, 0, "the tasks come across the records in different orders"),
        (later_by_itself, 2, "the workers come across the records in different orders"),
        (by_worker, 2, "the workers come across the records in different orders"),
    ],
)
def test_an_order_that_is_one_only_at_its_begin_is_left_alone(
    numbers: Any, workers: int, reason: str
) -> None:
    found, findings = examined(lambda: DataLoader(Stream(numbers), 8, num_workers=workers))
    assert not shares(found)
    for name in {"shard-missing", "loader-records-repeated"} & set(findings):
        assert findings[name].recommended.endswith(f"; --apply leaves it as it is: {reason}")
        assert not findings[name].proved


def test_workers_do_not_stay_where_a_dataset_can_be_read_once() -> None:
    class Once(IterableDataset[Any]):
        def __init__(self) -> None:
            self.left = iter(list(range(COUNT)))

        def __iter__(self) -> Iterator[Any]:
            return (tensor([number]) for number in self.left)

    found, findings = examined(lambda: DataLoader(Once(), 8, num_workers=1))
    assert "a worker process that stays" in findings["loader-workers-restarted"].recommended
    assert not any("persistent_workers" in change for change in found.applied)
    found, findings = examined(lambda: DataLoader(Stream(shuffled), 8, num_workers=1))
    assert findings["loader-workers-restarted"].proved


def test_an_epoch_that_takes_too_long_to_read_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "LONGEST_S", 0.0)
    found, findings = examined(lambda: DataLoader(Stream(shuffled), 8))
    assert not shares(found)
    assert "proved with whole epochs, and one takes more than 0 s" in findings["shard-missing"].recommended


def test_a_dataset_with_indices_is_built_alike_in_all_tasks_or_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof, "_QUICK_S", 600.0)  # whatever the load of this machine
    found, findings = examined(lambda: DataLoader(Listed(shuffled()), 8))
    assert found.sharded is False, "all read all records, in other orders"
    assert not shares(found)
    assert "equal indices are other records" in findings["shard-missing"].recommended
    found, findings = examined(lambda: DataLoader(Listed(list(range(COUNT))), 8))
    assert shares(found)
    assert findings["shard-missing"].proved


def test_what_is_not_proved_is_neither_ordered_nor_compared_nor_written() -> None:
    one = Finding(
        "loader-workers-few", "warning", "DataLoader", "d.py:1", "", "DataLoader(..., num_workers=2)"
    )
    (left,) = proof.marked([one], {one.id: "nobody can tell"})
    source = "l = DataLoader(d)\n"
    assert words_of([one], 1) == [one.id]
    assert compared_sets([one]) == ((one.id,),)
    assert diff([one], lambda path: source)
    assert words_of([left], 1) == []
    assert compared_sets([left]) == ()
    assert diff([left], lambda path: source) == ""


def read_begin(dataset: Any, seconds: float, most: int | None = None, batched: bool = False) -> records.Part:
    """As of an epoch that takes too long."""
    return records.Part(records.read_part(dataset, 60.0, most or 100).digests, whole=False)


@pytest.mark.parametrize(
    ("numbers", "count", "parts"),
    [
        (two_files, 2, 2),
        (two_files, 3, 2),
        (for_two_workers, 2, 2),
        (for_two_workers, 4, 0),
        (range(COUNT).__iter__, 2, 0),
        (later_by_itself, 2, 0),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_workers_that_have_records_of_their_own(
    numbers: Any, count: int, parts: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(worker_probe, "_read_dataset", read_begin)
    loader = DataLoader(Stream(numbers), 8)
    assert worker_probe.parts_among_workers(loader, count) == parts


def test_no_more_workers_are_recommended_than_have_records() -> None:
    found, findings = examined(lambda: DataLoader(Stream(two_files), 8, num_workers=0), cpus=4)
    assert "num_workers=2," in findings["loader-workers-missing"].recommended
    assert findings["loader-workers-missing"].value == 2
    assert "DataLoader(num_workers=2)" in found.applied


def test_workers_have_whole_batches_of_their_own() -> None:
    for size, enough in ((8, 2), (COUNT, 1), (None, None)):
        assert worker_probe.workers_with_batches(DataLoader(Stream(shared_out), size)) == enough
    for size, workers in ((5, 4), (8, 2)):
        finding = examined(lambda size=size: DataLoader(Stream(shared_out), size), cpus=4)[1]
        assert finding["loader-workers-missing"].value == workers


def test_what_else_is_drawn_in_a_process_is_not_changed_by_a_mend() -> None:
    loader = mend(DataLoader(Stream(shuffled), 8), {"shard-missing": None}, 2, 0).loader
    random.seed(5)
    np.random.seed(5)
    before = global_random.states()
    batches = iter(loader)
    next(batches)
    next(batches)
    after = global_random.states()
    for name in ("random", "numpy.random"):  # DataLoader itself draws from torch's
        assert global_random.fingerprint(before[name]) == global_random.fingerprint(after[name])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_role_of_a_task_holds_while_it_is_read(workers: int) -> None:
    found, findings = examined(lambda: DataLoader(Stream(by_task), 8, num_workers=workers))
    assert found.sharded is True
    assert "shard-missing" not in findings


def test_texts_have_one_hash_in_all_copies_that_share_records() -> None:
    launch = Launch(("python",), {"A": "1"}, 20.0, None, "here")
    mended = _mending(launch, [Finding("shard-missing", "error", "sampler", None, "", "")], 1)
    assert mended.environment["PYTHONHASHSEED"] == "0"
    own = Launch(("python",), {"PYTHONHASHSEED": "7"}, 20.0, None, "here")
    assert _mending(own, [], 1).environment == own.environment
