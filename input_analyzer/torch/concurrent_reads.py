"""Whether several worker processes may read at once what one process reads."""

from __future__ import annotations

import multiprocessing
import time
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from input_analyzer.analysis import Finding
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.pipeline import Value
from input_analyzer.torch import generators, handles, records, worker_probe
from input_analyzer.torch.layers import layers_of
from input_analyzer.torch.loader import length_of, parts_of

MORE = frozenset({"loader-workers-missing", "loader-workers-few"})
"""Findings whose mend is more worker processes than there are."""

_TRIED = 4  # workers, at most
_MOST_READ = 8  # records
_SECONDS = 0.2
_SHARED_SECONDS = 1.0  # where they share a file: they have to meet in it

_Read = dict[int, frozenset[str]]
"""By the index of a record digests of what was read."""


def against_more_workers(
    program: InputProgram, loader: Any, held: str | None, drawn: bool, findings: Collection[Finding]
) -> dict[str, str]:
    """Why a loader cannot have more workers for certain, by the identifiers of the findings that say so.

    Args:
        program: The input.
        loader: Of the first of two tasks; it has been read.
        held: What its dataset had open when it was new; see `handles`.
        drawn: No index decides anything, random numbers do.
        findings: Of all rules.
    """
    asked = [one for one in findings if one.id in MORE]
    if not asked or type(loader) is not DataLoader:
        return {}
    reason = f"{held} is open, {_SHARED}" if held is not None and forks(loader) else None
    if reason is None:
        reason = _against_drawing(loader, drawn, max(one.value or 0 for one in asked))
    if reason is None and not parts_of(loader).iterable:
        if held is None and handles.held_by(loader.dataset) is not None:  # opened by who read first: by us
            with program.role(Shard(2, 0)):
                loader = program.build(Shard(2, 0))
        count = min(_TRIED, max(2, *(one.value or 0 for one in asked)))
        reason = _against_reading(loader, count, own=held is None)
        reason = reason or _against_cache(loader, max(one.value or 0 for one in asked))
    return {} if reason is None else {one.id: reason for one in asked}


def _against_cache(loader: Any, count: int) -> str | None:
    """That a dataset keeps what it has read: the gain is one of the first epoch alone."""
    cache = next(iter(worker_probe.in_workers(loader, 1, _filled)), None) if count > 1 else None
    if cache is None:
        return None
    return (
        f"what it has read it keeps in {cache}, of which each worker would fill one of its own: later epochs "
        f"find there what that worker has read before, one of {count} records at first, and all of them take "
        "as many times the memory"
    )


def _filled(dataset: Any) -> str | None:
    """The name of a mapping of a dataset, or one within, that gets larger with records that are read.

    Some of them may have been read before, as those that come first in an epoch.
    """
    length = length_of(dataset) or 0
    known = frozenset(records.spread(length))
    unread = list(islice((index for index in reversed(range(length)) if index not in known), _MOST_READ))
    before = _mappings(dataset)
    try:
        for index in unread:
            dataset[index]
    except (LookupError, TypeError):
        return None  # its indices are not numbers from 0 on
    after = _mappings(dataset)
    grown = (name for name in before if after[name] - before[name] > len(unread) // 2)
    return next(grown, None)


def _mappings(dataset: Any) -> dict[str, int]:
    """How many entries the mappings have that a dataset, or one within, has as attributes."""
    things = [dataset, *(hook.target for layer in layers_of(dataset) for hook in layer.hooks)]
    return {
        f"{type(thing).__name__}.{name}": len(value)
        for thing in things
        for name, value in getattr(thing, "__dict__", {}).items()
        if isinstance(value, dict)
    }


_SHARED = (
    "and workers share the position in a file, and a connection, with who was there before them: open it "
    "where a record is first read, in each worker"
)


def _against_drawing(loader: Any, drawn: bool, count: int) -> str | None:
    """What several workers, or one, would draw otherwise than the process itself."""
    if parts_of(loader).iterable or loader.num_workers > 1:  # whole epochs are compared, or nothing changes
        return None
    if drawn:
        return "its records do not depend on the index, but on random numbers, which workers draw apart"
    same = worker_probe.same_random(loader) if count > 1 else ()
    if same:
        return f"all workers would draw the same random numbers from {', '.join(same)}: {_SEEDED}"
    seldom = generators.in_code(loader.dataset) if count > 1 else frozenset()
    if seldom:
        read = worker_probe.workers_of(loader, 1)
        seldom -= read[0].drawn if read else frozenset()
    if not seldom:
        return None
    names = ", ".join(sorted(seldom))
    return f"where a record draws from {names}, all workers would draw the same random numbers: {_SEEDED}"


_SEEDED = "have a worker_init_fn seed it with torch.utils.data.get_worker_info().seed first"


def shared_handle(loader: Any, held: str | None) -> dict[str, Value]:
    """What the workers of a loader share that was open before them, as facts of its dataset.

    Args:
        loader: Of a task.
        held: What its dataset had open when it was new; see `handles`.
    """
    if held is None or loader.num_workers < 2 or not forks(loader):
        return {}
    indexed = not parts_of(loader).iterable
    count = min(_TRIED, loader.num_workers)
    breaks = indexed and _against_reading(loader, count, _SHARED_SECONDS) is not None
    return {"held": held, "held_breaks": breaks}


def forks(loader: Any) -> bool:
    """Whether the worker processes of a loader begin with what this process has."""
    context = loader.multiprocessing_context or multiprocessing
    return bool(context.get_start_method() == "fork")


def _against_reading(loader: Any, count: int, seconds: float = _SECONDS, *, own: bool = False) -> str | None:
    """Why several workers may not read what one does.

    Args:
        loader: Of a task; it has been read.
        count: So many workers are tried.
        seconds: For so long.
        own: Files that are open now were opened by reading: each worker would open them for itself.
    """
    alone = worker_probe.in_workers(loader, 1, _read)
    if not alone or not alone[0]:
        return "its records could not be read for a comparison"
    if any(len(found) > 1 for found in alone[0].values()):
        return "its records change by themselves, so nobody can compare those of several workers"
    several = worker_probe.in_workers(loader, count, partial(_read, seconds=seconds, own=own))
    if len(several) < count or not all(several):
        return f"{count} workers at once could not read it"
    if all(alone[0].get(index, found) == found for one in several for index, found in one.items()):
        return None
    return f"{count} workers at once read other records than one process"


def _read(dataset: Any, seconds: float = _SECONDS, own: bool = False) -> _Read:
    """Records at indices that all workers have in common, twice and for so long that all read at once."""
    info = get_worker_info()
    assert info is not None
    if own:
        handles.take_own_positions()
    end = time.monotonic() + (seconds if info.num_workers > 1 else 0.0)
    found: defaultdict[int, set[str]] = defaultdict(set)
    rounds = 0
    while rounds < 2 or time.monotonic() < end:
        read = records.records_at(dataset, info.id)
        if not read:
            return {}
        for index, content in read:
            found[index].add(content)
        rounds += 1
    return {index: frozenset(contents) for index, contents in found.items()}
