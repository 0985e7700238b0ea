"""Examine a torch DataLoader, and compare the records that tasks and worker processes read.

The random numbers of Python, NumPy and torch are reset before each reading, so that a difference means
another record.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from cs_toolkit.random_numbers import preserve_random_state
from input_analyzer.measure import node
from input_analyzer.measure.examine import Examination, Overlap, Reading, overlap
from input_analyzer.measure.link import Order
from input_analyzer.torch.timing import time_stages
from input_rules.input_export import InputProgram, Shard
from input_rules.pipeline import Pipeline, StageTime, Value
from input_rules.rules.base import Context
from input_rules.torch.batch_parts import walk_batch
from input_rules.torch.layers import is_pipe
from input_rules.torch.loader import (
    COLLATE,
    GETITEM,
    SAMPLER,
    WORKERS,
    dataset_makes_batches,
    find_open_handle,
    length_or_none,
    loader_parts,
    read_pipeline,
    record_calls,
)
from input_rules.torch.rules import find

_ALWAYS_USED = frozenset({SAMPLER, GETITEM, COLLATE, WORKERS})
_OVERLAPPING = (
    "{0} read some of the same records and some different ones: unless each has its own part, records are "
    "trained on several times per epoch."
)
_UNKNOWN = "It is unknown whether {0} read different records: all records are equal, or differ each time."


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Read and time the stages of a loader, compare the records of tasks and workers, and apply all rules."""
    # Only one loader exists at a time, as the memory of this process is taken for that of a task.
    with program.role(Shard(1, 0)):
        pipeline, times = _read_stages(program, order, say)
    say("comparing the records of two tasks")

    def read(task: int) -> Reading:
        with program.role(Shard(2, task)), random_numbers_alike():
            return reading_of(program.build(Shard(2, task)))

    found = overlap(read(0), read(1), read(0))
    context = Context(
        sharded={Overlap.SAME: False, Overlap.NONE: True}.get(found) if found else None,
        memory_bytes=order.memory_bytes or node.read_memory().available_bytes,
        times={time.stage: time for time in times},
        cpus=order.cpus_per_task or len(os.sched_getaffinity(0)),
        seeded=program.seeded,
    )
    notes = {None: (_UNKNOWN,), Overlap.SOME: (_OVERLAPPING,)}.get(found, ())
    return Examination(
        pipeline,
        times,
        find(pipeline, context),
        context.sharded,
        tuple(note.format("several tasks") for note in notes),
    )


def _read_stages(
    program: InputProgram, order: Order, say: Callable[[str], None]
) -> tuple[Pipeline, tuple[StageTime, ...]]:
    """Return the stages of a single task with their times, without those that nothing calls."""
    with record_calls():
        loader = program.build(Shard(1, 0))
    first = next(iter(loader), None)
    pipeline = read_pipeline(loader, first)
    times = time_stages(loader, pipeline, order.stage_seconds, say) if order.stage_seconds > 0 else ()
    unused = {time.stage for time in times if not time.self_time_us and time.stage not in _ALWAYS_USED}
    say("comparing the records of two worker processes")
    used = tuple(time for time in times if time.stage not in unused)
    found: dict[str, Value] = {"held": find_open_handle(loader)}
    if loader_parts(loader).iterable:
        common = of_workers(loader)
        found["split_by_workers"] = None if common is None else common is not Overlap.SAME
        found["repeated_by_workers"] = common is Overlap.SOME
    elif loader.num_workers > 1:
        found["same_random"] = same_random_numbers(loader)
    return read_pipeline(loader, first, {GETITEM: found}, unused), used


# A shorter epoch is compared as a whole, a longer one as far as it was read.
SECONDS = 1.0

_SEED = 20190731
_MOST_INDICES = 200_000
_MOST_SAMPLED = 4  # records that identify the content of a dataset
_TIMEOUT_S = 20.0
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def reading_of(loader: Any) -> Reading:
    """Return the records that a loader reads in an epoch, in this process."""
    if loader_parts(loader).iterable:
        return _read_stream(loader.dataset, dataset_makes_batches(loader))
    # A record is identified by its index, and by some records of the dataset, so that all indices of an epoch
    # are compared without reading the records.
    try:
        dataset = loader.dataset
        # Samplers of batches yield lists of indices.
        order = (
            index
            for one in loader_parts(loader).order
            for index in (one if isinstance(one, list | tuple) else (one,))
        )
        end = time.monotonic() + SECONDS
        found: list[Any] = []
        for index in islice(order, _MOST_INDICES + 1):
            found.append(index)
            if time.monotonic() > end:
                break
        else:
            return Reading(_identify_records(dataset, found[:_MOST_INDICES]), len(found) <= _MOST_INDICES)
        return Reading(_identify_records(dataset, found), whole=False)
    except (LookupError, TypeError):
        return Reading((), whole=False)  # its indices are not numbers from 0


def of_workers(loader: Any) -> Overlap | None:
    """Determine the records that two worker processes of a loader with an iterable dataset have in common.

    None if unknown; torch itself distributes data pipes among workers.
    """
    if is_pipe(loader.dataset):
        return None
    read = partial(_read_stream, batched=dataset_makes_batches(loader))
    two, again = in_workers(loader, 2, read), in_workers(loader, 2, read)
    return overlap(two[0], two[1], again[0]) if len(two) == len(again) == 2 else None


def same_random_numbers(loader: Any) -> bool:
    """Return True if the worker processes of a loader change a record by the same random numbers."""
    if loader_parts(loader).iterable or not length_or_none(loader.dataset):
        return False
    two = in_workers(loader, 2, _read_twice)
    return len(two) == 2 and two[0] == two[1] and two[0][0] != two[0][1]


def in_workers(loader: Any, count: int, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Run a function on the dataset in several worker processes; return the results, or () if it fails.

    They are started as the loader starts its own, with its `worker_init_fn`.
    """
    probe = _Probe(loader.dataset, loader.worker_init_fn, read)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example about few CPUs
            reader = DataLoader(
                probe,
                batch_size=None,
                num_workers=count,
                worker_init_fn=probe.begin,
                multiprocessing_context=loader.multiprocessing_context,
                timeout=_TIMEOUT_S,
                prefetch_factor=1,
                collate_fn=_identity,
            )
            return tuple(reader)
    except Exception as error:
        # The frames of the error hold the workers in a cycle, and torch waits 5 s for each when it is
        # collected.
        traceback.clear_frames(error.__traceback__)
        return ()  # errors of the dataset are reported when it is measured


@contextmanager
def random_numbers_alike() -> Iterator[None]:
    """Reset the random numbers of the process, and restore their state afterwards."""
    torchs = torch.get_rng_state()
    with preserve_random_state():
        random.seed(_SEED)
        np.random.seed(_SEED)
        # torch.manual_seed() would store the stack for each unused device.
        torch.default_generator.manual_seed(_SEED)
        try:
            yield
        finally:
            torch.set_rng_state(torchs)


def digest(record: Any) -> str:
    """Hash all arrays, numbers and strings of a record, and the text of other values."""
    content = hashlib.blake2b(digest_size=16)
    for name, leaf in walk_batch(record):
        content.update(name.encode())
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            content.update(f"{leaf.dtype}{leaf.shape}".encode())
            content.update(np.ascontiguousarray(leaf).tobytes())
        elif hasattr(leaf, "tobytes"):
            content.update(leaf.tobytes())
        else:
            content.update(_ADDRESS.sub("", repr(getattr(leaf, "__dict__", leaf))).encode())
    return content.hexdigest()


def _read_stream(dataset: Any, batched: bool) -> Reading:
    """Read the records of an iterable dataset in this process; for batches, their rows."""
    end = time.monotonic() + SECONDS
    found: list[str] = []
    with random_numbers_alike():
        for record in dataset:
            found += _digest_rows(record) if batched else [digest(record)]
            if time.monotonic() > end:
                return Reading(tuple(found), whole=False)
    return Reading(tuple(found), whole=True)


def _digest_rows(batch: Any) -> list[str]:
    """Digest the rows of a batch, as two batches of shuffled records are never equal."""
    leaves = [leaf for _, leaf in walk_batch(batch)]
    sizes = {len(leaf) if getattr(leaf, "shape", ()) or isinstance(leaf, list) else None for leaf in leaves}
    single = len(leaves) == 1 and len(getattr(leaves[0], "shape", ())) < 2  # more likely one record
    if len(sizes) != 1 or None in sizes or single:
        return [digest(batch)]
    return [digest(tuple(row)) for row in zip(*leaves, strict=True)]


def _identify_records(dataset: Any, indices: list[Any]) -> tuple[str, ...]:
    length = length_or_none(dataset) or 0
    shown = (
        sorted({length * number // _MOST_SAMPLED for number in range(_MOST_SAMPLED)})
        if length
        else indices[:_MOST_SAMPLED]
    )
    with random_numbers_alike():
        key = " ".join(digest(dataset[index]) for index in shown)
    return tuple(f"{key} {index!r}" for index in indices)


def _read_twice(dataset: Any) -> tuple[str, str]:
    return digest(dataset[0]), digest(dataset[0])


class _Probe(IterableDataset[Any]):  # type: ignore[misc,unused-ignore]
    """Runs a function in a worker process, for `in_workers`."""

    def __init__(self, dataset: Any, begin: Callable[[int], Any] | None, read: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self._users_begin = begin
        self._read = read
        self._environment = dict(os.environ)

    def begin(self, index: int) -> None:
        """Run the user's `worker_init_fn`, which finds its own dataset in the info of the worker."""
        os.environ.update(self._environment)  # a fork server has its own environment
        info = get_worker_info()
        assert info is not None
        object.__setattr__(info, "dataset", self.dataset)
        if self._users_begin is not None:
            self._users_begin(index)

    def __iter__(self) -> Iterator[Any]:
        yield self._read(self.dataset)


def _identity(one: Any) -> Any:
    return one
