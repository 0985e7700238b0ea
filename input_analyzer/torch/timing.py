"""Measure the self time of the parts of a torch DataLoader.

The parts are called as a worker process calls them, in this process, with one thread for torch's operations:
the sampler for indices, the dataset with inner datasets and transforms for records, the collate function for
a batch. The cost of receiving batches from worker processes is measured on the loader itself.
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
    """Measure the self time of every part in about this many seconds.

    Args:
        loader: The DataLoader.
        pipeline: Its stages.
        seconds: Time to take; a few batches are made in any case.
        say: Receives progress.

    Raises:
        Exception: anything that the user's dataset or functions raise, unchanged.
    """
    import torch

    report = say or (lambda doing: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        spent = _time_parts(loader_parts(loader), 0.7 * seconds, report)
    finally:
        torch.set_num_threads(threads)
    if loader.num_workers:
        order_ns = [one.cpu for one in spent.get(SAMPLER, [])] or [0]
        spent[WORKERS] = _time_hand_off(loader, 0.3 * seconds, float(np.mean(order_ns)), report)
    times = []
    for stage in pipeline.stages:
        # The mean excludes the time of other programs, and includes rare slow records.
        found = [(one.cpu, one.wait) for one in spent.get(stage.name, [])] or [(0, 0)]
        cpu, wait = np.mean(found, axis=0) / pipeline.samples_per_element / 1e3
        times.append(StageTime(stage.name, float(cpu), float(wait)))
    return tuple(times)


def _time_parts(parts: LoaderParts, seconds: float, report: Callable[[str], None]) -> dict[str, list[Spent]]:
    """Return the time of every part for each batch."""
    spent: dict[str, list[Spent]] = defaultdict(list)
    profile = Profile()
    layers = parts.layers
    end = time.monotonic() + seconds
    try:
        with observe_calls(layers, profile):
            for number, records in enumerate(_read_records(parts, profile)):
                report("timing the parts of the loader")
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
    # The first batch opens files and imports modules.
    return {name: values[1:] or values for name, values in spent.items()}


def _read_records(parts: LoaderParts, profile: Profile) -> Iterator[Any]:
    """Yield the records of each batch, as the collate function receives them; short epochs are repeated."""
    loader = parts.loader
    while True:
        made = 0
        profile.enter(GETITEM if parts.iterable else SAMPLER)
        source = iter(
            loader.dataset if parts.iterable else loader.batch_sampler if parts.batches else loader.sampler
        )
        profile.leave()
        # Only full batches: the remainder of an epoch would distort the time per sample.
        while (records := _next_records(parts, source, profile)) is not None:
            made += 1
            yield records
        if not made:
            return


def _next_records(parts: LoaderParts, source: Iterator[Any], profile: Profile) -> Any:
    """Return the records of the next batch; None at the end of the epoch."""
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
    dataset = loader.dataset
    profile.enter(GETITEM)
    try:
        if not parts.batches:
            return dataset[indices]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(indices)
        return [dataset[index] for index in indices]
    finally:
        profile.leave()


def _time_hand_off(
    loader: Any, seconds: float, order_ns: float, report: Callable[[str], None]
) -> list[Spent]:
    """Measure the CPU time of this process to receive a batch from the workers, without waiting for them.

    Args:
        loader: The DataLoader.
        seconds: Time to take.
        order_ns: Time of the sampler for the indices of a batch, which is subtracted.
        report: Receives progress.
    """
    found: list[Spent] = []
    end = time.monotonic() + seconds
    batches = iter(loader)
    next(batches, None)
    while len(found) < MOST_BATCHES and (len(found) < FEWEST_BATCHES or time.monotonic() < end):
        report("timing the hand-off from the workers")
        before = time.thread_time_ns()
        if next(batches, None) is None:
            break
        found.append(Spent(max(0, time.thread_time_ns() - before - round(order_ns)), 0))
    return found


@contextmanager
def observe_calls(layers: tuple[Layer, ...], profile: Profile) -> Iterator[None]:
    """Observe every call of a layer but the last in the context, for the profile.

    Objects temporarily get a class derived from their own, functions are replaced by a wrapper. Calls of
    objects that do not allow this count for their caller.
    """
    undo: list[Callable[[], None]] = []
    try:
        for layer in layers[:-1]:
            for hook in layer.hooks:
                with suppress(TypeError, AttributeError):
                    undo.append(_observe(hook, layer, profile))
        yield
    finally:
        for step in reversed(undo):
            step()


def _observe(hook: Hook, layer: Layer, profile: Profile) -> Callable[[], None]:
    target = hook.target
    if is_function(target):
        owner, place = hook.owner, hook.place
        wrapper = _wrap_timed(target, layer.name, profile)
        if isinstance(place, int):
            owner[place] = wrapper
            return functools.partial(owner.__setitem__, place, target)
        setattr(owner, str(place), wrapper)
        return functools.partial(setattr, owner, str(place), target)
    kind = type(target)
    if layer.op == "transform":
        methods = {"__call__": _wrap_timed(kind.__call__, layer.name, profile)}
    elif is_iterable(target):
        methods = {"__iter__": _wrap_timed_iterator(kind.__iter__, layer.name, profile)}
    else:
        names = [name for name in ("__getitem__", "__getitems__") if getattr(kind, name, None)]
        methods = {name: _wrap_timed(getattr(kind, name), layer.name, profile) for name in names}
    space = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__, **methods}
    make: Any = type(kind)  # its metaclass
    target.__class__ = make(kind.__name__, (kind,), space)
    return functools.partial(setattr, target, "__class__", kind)


def _wrap_timed(function: Any, name: str, profile: Profile) -> Any:
    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def time_call(*args: Any, **kwargs: Any) -> Any:
        profile.enter(name)
        try:
            return function(*args, **kwargs)
        finally:
            profile.leave()

    return time_call


def _wrap_timed_iterator(function: Any, name: str, profile: Profile) -> Any:
    step = _wrap_timed(next, name, profile)

    def steps(self: Any) -> Iterator[Any]:
        records = iter(_wrap_timed(function, name, profile)(self))
        while True:
            try:
                record = step(records)
            except StopIteration:
                return
            yield record

    return steps
