"""Self time of the parts of a torch DataLoader.

The parts are called as a worker process calls them, in this process, one thread for torch's operations: the
sampler for indices, the dataset with those within it and their transforms for records, the collate function
for a batch. What it takes to get batches from worker processes is measured on the loader itself.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import numpy as np

from input_analyzer.measure.cpu_time import Profile, Spent
from input_rules.pipeline import Pipeline, StageTime
from input_rules.torch.layers import Hook, Layer, is_function, is_iterable
from input_rules.torch.loader import COLLATE, GETITEM, SAMPLER, WORKERS, LoaderParts, loader_parts

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
        spent = _in_this_process(loader_parts(loader), 0.7 * seconds, tell)
    if loader.num_workers:
        order_ns = [one.cpu for one in spent.get(SAMPLER, [])] or [0]
        spent[WORKERS] = _from_workers(loader, 0.3 * seconds, float(np.mean(order_ns)), tell)
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


def _in_this_process(
    parts: LoaderParts, seconds: float, tell: Callable[[str], None]
) -> dict[str, list[Spent]]:
    """What every part has spent, batch after batch."""
    spent: dict[str, list[Spent]] = defaultdict(list)
    profile = Profile()
    layers = parts.layers
    end = time.monotonic() + seconds
    try:
        with watched(layers, profile):
            for number, records in enumerate(_records(parts, profile)):
                tell("timing the parts of the loader")
                profile.enter(COLLATE)
                parts.loader.collate_fn(records)
                profile.leave()
                taken = profile.take_times()
                for part in (SAMPLER, COLLATE, *(layer.name for layer in layers)):
                    spent[part].append(taken.get(part, Spent(0, 0)))
                enough = number + 1 >= FEWEST_BATCHES and time.monotonic() > end
                if enough or number + 1 >= MOST_BATCHES:
                    break
    finally:
        profile.close()
    # The first one opens files and imports modules.
    return {name: values[1:] or values for name, values in spent.items()}


def _records(parts: LoaderParts, profile: Profile) -> Iterator[Any]:
    """Records of batch after batch, as the collate function gets them; of a short epoch again and again."""
    loader = parts.loader
    while True:
        made = 0
        profile.enter(GETITEM if parts.iterable else SAMPLER)
        source = iter(
            loader.dataset if parts.iterable else loader.batch_sampler if parts.batches else loader.sampler
        )
        profile.leave()
        # Of a whole batch only: the remainder of an epoch is no measure of a sample.
        while (records := _next(parts, source, profile)) is not None:
            made += 1
            yield records
        if not made:
            return


def _next(parts: LoaderParts, source: Iterator[Any], profile: Profile) -> Any:
    """What is collated next; None where the epoch is over."""
    loader = parts.loader
    if parts.iterable:
        profile.enter(GETITEM)
        try:
            if loader.batch_size is None:
                return next(source, None)
            records = list(islice(source, loader.batch_size))
            return records if len(records) == loader.batch_size else None
        finally:
            profile.leave()
    profile.enter(SAMPLER)
    indices = next(source, None)
    profile.leave()
    if indices is None or (loader.batch_size is not None and len(indices) < loader.batch_size):
        return None
    return _fetched(parts, indices, profile)


def _fetched(parts: LoaderParts, indices: Any, profile: Profile) -> Any:
    dataset = parts.loader.dataset
    profile.enter(GETITEM)
    try:
        if not parts.batches:
            return dataset[indices]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(indices)
        return [dataset[index] for index in indices]
    finally:
        profile.leave()


def _from_workers(loader: Any, seconds: float, order_ns: float, tell: Callable[[str], None]) -> list[Spent]:
    """What this process computes to get a batch from the workers; its waiting is for their work.

    With every batch it takes one, the sampler gives the indices of a later one, which take `order_ns`.
    """
    found: list[Spent] = []
    end = time.monotonic() + seconds
    batches = iter(loader)
    next(batches, None)
    while len(found) < MOST_BATCHES and (len(found) < FEWEST_BATCHES or time.monotonic() < end):
        tell("timing the hand-over from the workers")
        before = time.thread_time_ns()
        if next(batches, None) is None:
            break
        found.append(Spent(max(0, time.thread_time_ns() - before - round(order_ns)), 0))
    return found


def _of_sample(name: str, spent: list[Spent], samples: int) -> StageTime:
    """The mean: time that other programs took is not in it, and rare records that take long are."""
    if not spent:
        return StageTime(name, 0.0, 0.0)
    cpu, wait = np.mean([(one.cpu, one.wait) for one in spent], axis=0)
    return StageTime(name, float(cpu) / samples / 1e3, float(wait) / samples / 1e3)


@contextmanager
def watched(layers: tuple[Layer, ...], profile: Profile) -> Iterator[None]:
    """While it is open, every call of a layer but the last is noticed by the profile.

    Objects get a class derived from their own for so long, functions a wrapper in their place. What does not
    let itself be changed so counts for what it is called by.
    """
    undo: list[Callable[[], None]] = []
    try:
        for layer in layers[:-1]:
            for hook in layer.hooks:
                with suppress(TypeError, AttributeError):
                    undo.append(_watch(hook, layer, profile))
        yield
    finally:
        for step in reversed(undo):
            step()


def _watch(hook: Hook, layer: Layer, profile: Profile) -> Callable[[], None]:
    target = hook.target
    if is_function(target):
        return _replace(hook, _timed(target, layer.name, profile))
    kind = type(target)
    if layer.op == "transform":
        methods = {"__call__": _timed(kind.__call__, layer.name, profile)}
    elif is_iterable(target):
        methods = {"__iter__": _timed_steps(kind.__iter__, layer.name, profile)}
    else:
        names = [name for name in ("__getitem__", "__getitems__") if getattr(kind, name, None)]
        methods = {name: _timed(getattr(kind, name), layer.name, profile) for name in names}
    space = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__, **methods}
    make: Any = type(kind)  # its metaclass
    target.__class__ = make(kind.__name__, (kind,), space)
    return functools.partial(setattr, target, "__class__", kind)


def _replace(hook: Hook, wrapper: Any) -> Callable[[], None]:
    owner, place = hook.owner, hook.place
    if isinstance(place, int):
        owner[place] = wrapper
        return functools.partial(owner.__setitem__, place, hook.target)
    setattr(owner, str(place), wrapper)
    return functools.partial(setattr, owner, str(place), hook.target)


def _timed(function: Any, name: str, profile: Profile) -> Any:
    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def timed(*args: Any, **kwargs: Any) -> Any:
        profile.enter(name)
        try:
            return function(*args, **kwargs)
        finally:
            profile.leave()

    return timed


def _timed_steps(function: Any, name: str, profile: Profile) -> Any:
    step = _timed(next, name, profile)

    def steps(self: Any) -> Iterator[Any]:
        records = iter(_timed(function, name, profile)(self))
        while True:
            try:
                record = step(records)
            except StopIteration:
                return
            yield record

    return steps
