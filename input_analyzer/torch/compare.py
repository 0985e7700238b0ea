"""Compare the rates of a torch DataLoader with and without what findings recommend.

Both loaders are made once and read as a worker reads them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader

from cs_toolkit.random_numbers import preserve_random_state
from input_analyzer.changed_source import changed_source, method_of
from input_analyzer.errors import InputEndedError
from input_analyzer.gains import WORKER_COUNTS, Ratio, measure_ratio
from input_rules.input_export import InputProgram, Shard
from input_rules.torch.loader import loader_parts


def compare(
    program: InputProgram,
    findings: Mapping[str, int | None],
    seconds: float,
    say: Callable[[], None],
    files: Mapping[str, str] = MappingProxyType({}),
) -> Ratio | None:
    """Measure the ratio of the rates with and without some changes, and its 95 % interval.

    Args:
        program: The input.
        findings: Identifiers of findings, with the numbers that they recommend.
        seconds: Time to take.
        say: Called now and then.
        files: Changed sources of the program by path, for findings that change these.

    Returns:
        None if nothing changes, or batches are too slow for the time.
    """
    with program.role(Shard(1, 0)):
        plain = program.build(Shard(1, 0))
        loader = _build_changed(program, files) if files else program.build(Shard(1, 0))
        other = apply_findings(loader, findings)
        if other is None:
            if not files:
                return None
            other = loader
        before, after = (partial(next, _repeat_epochs(loader, say)) for loader in (plain, other))
        return measure_ratio(before, after, seconds, say)


def choose_form(program: InputProgram, forms: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the first form of a change of the source with which the input delivers the same batches.

    Args:
        program: The input.
        forms: Changed sources by form and path.

    Returns:
        None if there is none: the changed program fails, or its batches differ.
    """
    with program.role(Shard(1, 0)):
        with _equal_random_numbers():
            plain = program.build(Shard(1, 0))
        for form, files in forms.items():
            # The change may be anything but right.
            with suppress(Exception), _equal_random_numbers():
                other = _build_changed(program, files)
                if other.collate_fn is not plain.collate_fn and all(
                    _are_equal(_make_batch(plain, indices), _make_batch(other, indices))
                    for whole in islice(plain.batch_sampler, _FEW_BATCHES)
                    # Of another size, too: with as many columns as records, each row could be combined with
                    # a value of each record, which weights of 1 would hide.
                    for indices in (whole, whole[: len(whole) // 2 + 1])
                ):
                    return form
    return None


_FEW_BATCHES = 8
_SEED = 20190731


@contextmanager
def _equal_random_numbers() -> Iterator[None]:
    """Seed Python, NumPy and torch with a fixed value for the duration of the context."""
    with preserve_random_state(), torch.random.fork_rng(devices=[]):
        random.seed(_SEED)
        np.random.seed(_SEED)
        torch.manual_seed(_SEED)
        yield


def _build_changed(program: InputProgram, files: Mapping[str, str]) -> Any:
    """Return a loader that reads whole batches, as the changed source would make it."""
    with changed_source(files):
        loader = program.build(Shard(1, 0))
    dataset = loader.dataset
    if not hasattr(dataset, "__getitems__"):
        # Only for this loader: the one without the change has a dataset of the same class, perhaps the same.
        kind = type(dataset)
        method = method_of(files, kind, "__getitems__", kind.__getitem__) or kind.__getitem__
        members = {"__getitems__": method, "__module__": kind.__module__}
        dataset = copy(dataset)
        dataset.__class__ = type(kind.__name__, (kind,), members)
        object.__setattr__(loader, "dataset", dataset)  # DataLoader allows no change itself
    return loader


def _make_batch(loader: Any, indices: Any) -> Any:
    """Make the batch of some indices as worker processes do (torch/utils/data/_utils/fetch.py)."""
    dataset = loader.dataset
    if hasattr(dataset, "__getitems__"):
        return loader.collate_fn(dataset.__getitems__(indices))
    return loader.collate_fn([dataset[index] for index in indices])


def _are_equal(batch: Any, other: Any) -> bool:
    """Return True if two batches have the same structure, and are equal up to rounding."""
    (leaves, structure), (others, other_structure) = tree_flatten(batch), tree_flatten(other)
    return structure == other_structure and all(
        isinstance(one, torch.Tensor)
        and isinstance(two, torch.Tensor)
        and one.dtype == two.dtype
        and one.shape == two.shape
        and torch.allclose(one, two, rtol=1e-5, atol=1e-6, equal_nan=True)
        for one, two in zip(leaves, others, strict=True)
    )


def _repeat_epochs(loader: Any, say: Callable[[], None]) -> Iterator[Any]:
    """Yield batches epoch after epoch."""
    while True:
        made = 0
        for batch in loader:
            made += 1
            say()
            yield batch
        if not made:
            raise InputEndedError(0, 0)


def apply_findings(loader: Any, findings: Mapping[str, int | None]) -> Any:
    """Return a loader with other worker processes.

    Args:
        loader: Made by the user's function, and not used any more.
        findings: Identifiers of findings, with the numbers that they recommend.

    Returns:
        None if nothing changes, or the loader has a class of the user's.
    """
    if type(loader) is not DataLoader:
        return None
    arguments: dict[str, Any] = {}
    count = next((findings[name] for name in WORKER_COUNTS if findings.get(name)), None)
    if count is not None and count != loader.num_workers:
        arguments["num_workers"] = count
        if not loader.num_workers:
            arguments |= {"persistent_workers": True, "prefetch_factor": None}
    if "loader-workers-restarted" in findings and loader.num_workers and not loader.persistent_workers:
        arguments["persistent_workers"] = True
    if not arguments:
        return None
    names = (
        *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"),
        *("multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order"),
    )
    own = {name: getattr(loader, name) for name in names}
    parts = loader_parts(loader)
    if loader.batch_size is None and parts.batches:
        own["batch_sampler"] = loader.batch_sampler
    else:
        own |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if not parts.iterable:
            own["sampler"] = loader.sampler
    return DataLoader(**own | arguments)
