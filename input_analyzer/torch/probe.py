"""What worker processes have in common, and tasks: found out by reading a few records as they do.

Records are compared by their content, with the random numbers of Python, NumPy and torch begun anew before
them: what is left of a difference is another record, or numbers out of a generator of the user's own.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, get_worker_info

from input_analyzer.torch.layers import layers_of
from input_analyzer.torch.loader import Parts, length_of, parts_of

RECORDS = 32
"""So many records of an iterable dataset are compared."""

_READ = 4  # records of a dataset with indices
_LONGEST_S = 2.0
_TIMEOUT_S = 20.0
_SEED = 20190731
_MOST_INDICES = 200_000
_PADDING = 0.02  # part of its records that a task may share with another one, because they do not divide


@dataclass(frozen=True)
class Worker:
    """What a worker process has seen.

    Attributes:
        random: By name, a generator's state when the worker began.
        drawn: Names of the generators that making records has drawn from.
        records: Digests of its first records.
    """

    random: dict[str, str]
    drawn: frozenset[str]
    records: tuple[str, ...]


def workers_of(loader: Any, count: int = 2) -> tuple[Worker, ...]:
    """Reads the first records of a loader's dataset in worker processes of their own; none where that fails.

    They are started as the loader starts its own, with its `worker_init_fn`.
    """
    probe = _Probe(loader.dataset, loader.worker_init_fn)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few CPUs, for instance
            reader = DataLoader(
                probe,
                batch_size=None,
                num_workers=count,
                worker_init_fn=probe.begin,
                multiprocessing_context=loader.multiprocessing_context,
                timeout=_TIMEOUT_S,
                prefetch_factor=1,
                collate_fn=_unchanged,
            )
            return tuple(reader)
    except Exception as error:
        # The error's frames hold the workers, in a circle: torch waits 5 s for each once that is collected.
        traceback.clear_frames(error.__traceback__)
        return ()  # what the dataset raises is shown where it is read in earnest


def splits_among_workers(loader: Any) -> bool | None:
    """Whether several workers of a loader with an iterable dataset read different records.

    True where two of them have no record in common and the first one reads of those that come first without
    workers; False where they read the same ones; None where neither can be told.
    """
    workers = workers_of(loader)
    if len(workers) < 2:
        return None
    first, second = workers[0].records, workers[1].records
    if len(set(first)) < 2:
        return None  # all alike, or too few
    if first == second:
        return False
    alone = _alone(loader.dataset)
    return True if not set(first) & set(second) and alone and set(first) <= set(alone) else None


def same_random(loader: Any) -> tuple[str, ...]:
    """Generators that making records draws from and that are in the same state in all workers."""
    workers = workers_of(loader)
    if len(workers) < 2:
        return ()
    first, second = workers
    names = sorted(first.drawn & second.drawn)
    return tuple(name for name in names if first.random[name] == second.random.get(name))


def order_draws(order: Any) -> tuple[str, ...] | None:
    """Generators of the process on whose numbers an order depends: "random", "numpy.random", "torch".

    Where it begins is read several times. Numbers that are drawn, and change nothing, do not count.

    Args:
        order: A sampler, or a batch sampler.

    Returns:
        None where the order changes by itself, or comes too slowly.
    """
    began = time.monotonic()
    first, drawn = _order_after(order, _SEED)
    if time.monotonic() - began > _LONGEST_S or _order_after(order, _SEED)[0] != first:
        return None
    return drawn if any(_order_after(order, _SEED + step)[0] != first for step in (1, 2)) else ()


def _order_after(order: Any, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where an order begins after a seed, as digests, and the generators that were drawn from."""
    with _random_anew(seed):
        before = _states_of_process()
        found = tuple(digest(index) for index in islice(iter(order), RECORDS))
        after = _states_of_process()
    return found, tuple(name for name in before if before[name] != after[name])


@dataclass(frozen=True)
class Task:
    """What a task reads, as far as it takes to compare it with another one.

    Attributes:
        stream: Of an iterable dataset digests of its first records, read twice; else None.
        length: Number of records of the dataset; None where it does not tell.
        data: Digests of its first records, read twice, with the indices that they have.
        reads_all: It reads every record of its dataset once.
        indices: All indices of an epoch; None where there are none, or too many.
        kept: Records of an epoch.
        padded: Records that a sampler for several tasks repeats to fill up; None for another sampler.
    """

    stream: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    length: int | None = None
    data: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
    reads_all: bool = False
    indices: tuple[Any, ...] | None = None
    kept: int | None = None
    padded: int | None = None


def task_of(loader: Any) -> Task:
    """Reads a few records of a task, each twice: what differs then changes by itself."""
    parts = parts_of(loader)
    dataset, order = loader.dataset, parts.order
    if parts.iterable:
        return Task(stream=(_alone(dataset), _alone(dataset)), length=length_of(dataset))
    whole = reads_all(order)
    length = length_of(dataset)
    shown = list(range(min(_READ, length or 0)))
    return Task(
        length=length,
        data=(_digests(dataset, shown), _digests(dataset, shown)),
        reads_all=whole,
        indices=None if whole else _indices(parts),
        kept=length_of(order),
        padded=_padded(order, length),
    )


def tasks_differ(ours: Task, theirs: Task) -> bool | None:
    """Whether two tasks read different records; None where that cannot be told."""
    if ours.stream is not None or theirs.stream is not None:
        return _streams_differ(ours, theirs)
    if ours.length != theirs.length:
        return True
    if ours.data[0] != ours.data[1]:
        return None
    if ours.data[0] != theirs.data[0]:
        return True
    if ours.reads_all and theirs.reads_all:
        return False
    indices = [frozenset(one.indices) for one in (ours, theirs) if one.indices is not None]
    if len(indices) < 2:
        return None
    common = indices[0] & indices[1]
    if len(common) == len(indices[0]) == len(indices[1]):
        return False
    return True if len(common) <= max(1, _PADDING * len(indices[0])) else None


def _streams_differ(first: Task, second: Task) -> bool | None:
    if first.stream is None or second.stream is None:
        return True
    ours, again = first.stream
    theirs = second.stream[0]
    if ours != again or len(set(ours)) < 2:
        return None
    if ours == theirs:
        return False
    return None if set(ours) & set(theirs) else True


def reads_all(order: Any) -> bool:
    """Whether a sampler gives every index of its dataset once."""
    if type(order) is RandomSampler:
        return not order.replacement and order._num_samples is None
    return type(order) is SequentialSampler


def _padded(order: Any, length: int | None) -> int | None:
    total = getattr(order, "total_size", None)
    if not isinstance(total, int) or not hasattr(order, "num_replicas") or length is None:
        return None
    return max(0, total - length)


def _digests(dataset: Any, indices: list[int]) -> tuple[str, ...]:
    try:
        with _random_anew():
            return tuple(digest(dataset[index]) for index in indices)
    except (LookupError, TypeError):
        return ()  # its indices are not numbers from 0 on


def _indices(parts: Parts) -> tuple[Any, ...] | None:
    """All indices of an epoch; None where there are too many, or other things than indices."""
    try:
        found = list(islice(iter(parts.order), _MOST_INDICES))
    except (TypeError, ValueError):
        return None
    if len(found) == _MOST_INDICES:
        return None
    flat = tuple(index for one in found for index in (one if isinstance(one, list | tuple) else (one,)))
    return flat if all(isinstance(index, int | str) for index in flat) else None


def _alone(dataset: Any) -> tuple[str, ...]:
    """Digests of the first records of an iterable dataset, twice as many as a worker reads."""
    with _random_anew():
        return tuple(digest(record) for record in _within_time(iter(dataset), 2 * RECORDS))


def _within_time(records: Iterator[Any], most: int) -> Iterator[Any]:
    end = time.monotonic() + _LONGEST_S
    for record in islice(records, most):
        yield record
        if time.monotonic() > end:
            return


@contextmanager
def _random_anew(seed: int = _SEED) -> Iterator[None]:
    """Random numbers of the process begun anew for so long: an order of another loader is not to repeat."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    _begin_random(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _begin_random(seed: int = _SEED) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def digest(record: Any) -> str:
    """A hash of all values in a record; of what has none, of its text."""
    content = hashlib.blake2b(digest_size=16)
    leaves, structure = _pytree.tree_flatten(record)
    content.update(str(structure).encode())
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu()
            leaf = leaf.view(torch.uint8).numpy() if leaf.dtype is torch.bfloat16 else leaf.numpy()
        if isinstance(leaf, np.ndarray):
            content.update(f"{leaf.dtype}{leaf.shape}".encode())
            content.update(np.ascontiguousarray(leaf).tobytes())
        elif hasattr(leaf, "tobytes"):
            content.update(leaf.tobytes())
        else:
            content.update(repr(leaf).encode())
    return content.hexdigest()


class _Probe(IterableDataset[Any]):  # type: ignore[misc,unused-ignore]
    """Reads in a worker process, for `workers_of`."""

    def __init__(self, dataset: Any, begin: Callable[[int], Any] | None) -> None:
        self.dataset = dataset
        self._users_begin = begin

    def begin(self, index: int) -> None:
        """The `worker_init_fn`: that of the user, which finds its own dataset in the worker's info."""
        info = get_worker_info()
        assert info is not None
        object.__setattr__(info, "dataset", self.dataset)
        if self._users_begin is not None:
            self._users_begin(index)

    def __iter__(self) -> Iterator[Worker]:
        info = get_worker_info()
        dataset = self.dataset if info is None else info.dataset
        began = _states(dataset)
        _begin_random()
        before = _states(dataset)
        if isinstance(dataset, IterableDataset):
            records = _within_time(iter(dataset), RECORDS)
        else:
            records = _within_time((dataset[index] for index in range(len(dataset))), _READ)
        digests = tuple(map(digest, records))
        after = _states(dataset)
        drawn = frozenset(name for name, state in after.items() if state != before.get(name))
        yield Worker(began, drawn, digests)


def _unchanged(one: Any) -> Any:
    return one


def _states(dataset: Any) -> dict[str, str]:
    """The states of all random generators that a dataset may draw from."""
    found = _states_of_process()
    for layer in layers_of(dataset):
        things = [dataset] if layer.name == "getitem" else [hook.target for hook in layer.hooks]
        for thing in things:
            for name, value in (*_members(thing), *_globals(layer.code), *_globals(thing)):
                state = _state_of(value)
                if state is not None:
                    found[name] = _hash(state)
    return found


def _states_of_process() -> dict[str, str]:
    """Those of the generators that everything in a process shares."""
    states = {
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "torch": torch.get_rng_state().numpy(),
    }
    return {name: _hash(state) for name, state in states.items()}


def _members(thing: Any) -> list[tuple[str, Any]]:
    try:
        return [(f"{type(thing).__name__}.{name}", value) for name, value in vars(thing).items()]
    except TypeError:
        return []


def _globals(thing: Any) -> list[tuple[str, Any]]:
    """What a function uses of its module, or the call of an object."""
    function = thing if hasattr(thing, "__code__") else vars(type(thing)).get("__call__")
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return []
    space = getattr(function, "__globals__", {})
    return [(name, space[name]) for name in code.co_names if name in space]


def _state_of(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy()
    return None


def _hash(state: Any) -> str:
    return hashlib.blake2b(pickle.dumps(state), digest_size=16).hexdigest()
