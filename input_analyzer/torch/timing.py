"""Self time of the parts of a torch DataLoader.

The parts are called as a worker process calls them, in this process, one thread for torch's operations: the
sampler for indices, the dataset for records, the collate function for a batch. What it takes to get batches
from worker processes is measured on the loader itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from input_analyzer.cpu_clock import Spent, Stopwatch
from input_analyzer.pipeline import Pipeline, StageTime
from input_analyzer.torch.loader import COLLATE, GETITEM, SAMPLER, WORKERS, Parts, parts_of

FEWEST_BATCHES = 5
MOST_BATCHES = 1000


def time_stages(
    loader: Any, pipeline: Pipeline, seconds: float = 10.0, say: Callable[[str], None] | None = None
) -> tuple[StageTime, ...]:
    """Measures the self time of every part in about so many seconds.

    Args:
        loader: The DataLoader.
        pipeline: Its stages.
        seconds: Time to take; a few batches are made in any case.
        say: Told what is being done, now and then.

    Raises:
        Exception: whatever the user's dataset or functions raise, unchanged.
    """
    tell = say or (lambda doing: None)
    with _as_in_a_worker():
        spent = _in_this_process(parts_of(loader), 0.7 * seconds, tell)
    if loader.num_workers:
        tell("timing the hand-over from the workers")
        spent[WORKERS] = _from_workers(loader, 0.3 * seconds)
    return tuple(
        _of_sample(stage.name, spent.get(stage.name, []), pipeline.samples_per_element)
        for stage in pipeline.stages
    )


@contextmanager
def _as_in_a_worker() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _in_this_process(parts: Parts, seconds: float, tell: Callable[[str], None]) -> dict[str, list[Spent]]:
    spent: dict[str, list[Spent]] = {SAMPLER: [], GETITEM: [], COLLATE: []}
    watch = Stopwatch()
    end = time.monotonic() + seconds
    batches = _records(parts, watch, spent)
    for number, records in enumerate(batches):
        if number % 20 == 0:
            tell("timing the parts of the loader")
        watch.start()
        parts.loader.collate_fn(records)
        spent[COLLATE].append(watch.stop())
        if number + 1 >= MOST_BATCHES or (number + 1 >= FEWEST_BATCHES and time.monotonic() > end):
            break
    # The first one opens files and imports modules.
    return {name: values[1:] or values for name, values in spent.items()}


def _records(parts: Parts, watch: Stopwatch, spent: dict[str, list[Spent]]) -> Iterator[Any]:
    """Records of batch after batch, as the collate function gets them; of a short epoch again and again."""
    loader = parts.loader
    while True:
        made = 0
        if parts.iterable:
            source = iter(loader.dataset)
        else:
            source = iter(loader.batch_sampler if parts.batches else loader.sampler)
        while True:
            watch.start()
            try:
                if parts.iterable:
                    records = _some(source, loader.batch_size)
                    spent[GETITEM].append(watch.stop())
                else:
                    records = _fetched(parts, next(source), watch, spent)
            except StopIteration:
                break
            made += 1
            yield records
        if not made:
            return


def _some(source: Iterator[Any], batch_size: int | None) -> Any:
    """The next record, or as many as make a batch.

    Raises:
        StopIteration: there are none.
    """
    if batch_size is None:
        return next(source)
    records = list(islice(source, batch_size))
    if len(records) < batch_size:
        raise StopIteration
    return records


def _fetched(parts: Parts, indices: Any, watch: Stopwatch, spent: dict[str, list[Spent]]) -> Any:
    spent[SAMPLER].append(watch.stop())
    dataset = parts.loader.dataset
    watch.start()
    if not parts.batches:
        records = dataset[indices]
    elif getattr(dataset, "__getitems__", None):
        records = dataset.__getitems__(indices)
    else:
        records = [dataset[index] for index in indices]
    spent[GETITEM].append(watch.stop())
    return records


def _from_workers(loader: Any, seconds: float) -> list[Spent]:
    """What this process computes to get a batch from the workers; its waiting is for their work."""
    found: list[Spent] = []
    end = time.monotonic() + seconds
    batches = iter(loader)
    next(batches, None)
    while len(found) < MOST_BATCHES and (len(found) < FEWEST_BATCHES or time.monotonic() < end):
        before = time.thread_time_ns()
        if next(batches, None) is None:
            break
        found.append(Spent(time.thread_time_ns() - before, 0))
    return found


def _of_sample(name: str, spent: list[Spent], samples: int) -> StageTime:
    """Of the better half of all batches the middle one: other programs only ever add."""
    if not spent:
        return StageTime(name, 0.0, 0.0)
    totals = sorted(spent, key=lambda one: one.cpu + one.wait)
    better = totals[: (len(totals) + 1) // 2]
    cpu, wait = np.median([(one.cpu, one.wait) for one in better], axis=0)
    return StageTime(name, float(cpu) / samples / 1e3, float(wait) / samples / 1e3)
