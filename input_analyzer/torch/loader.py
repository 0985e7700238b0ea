"""The Pipeline of a torch DataLoader: sampler, dataset, collate function, workers."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from input_analyzer.pipeline import Pipeline, Stage, Tensor, Value
from input_analyzer.source_lines import is_users, shown

SAMPLER, GETITEM, COLLATE, WORKERS = "sampler", "getitem", "collate", "workers"
"""Stages in pipeline order: indices, records, batches, and the processes that make them."""


@dataclass(frozen=True)
class Parts:
    """What a DataLoader is made of.

    Attributes:
        loader: The DataLoader.
        iterable: Whether its dataset is an iterable one, without indices.
        batches: Whether it makes batches itself.
    """

    loader: Any
    iterable: bool
    batches: bool


def parts_of(loader: Any) -> Parts:
    """Tells the kinds of DataLoader apart."""
    from torch.utils.data import IterableDataset

    batches = loader.batch_size is not None or (
        loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)
    )
    return Parts(loader, isinstance(loader.dataset, IterableDataset), batches)


def pipeline_of(loader: Any, first_batch: Any = None) -> Pipeline:
    """The stages of a DataLoader.

    Args:
        loader: The DataLoader.
        first_batch: A batch of it, for the tensors; without one there are none.
    """
    parts = parts_of(loader)
    stages: list[Stage] = []
    if not parts.iterable:
        order = getattr(loader.batch_sampler, "sampler", None) or loader.sampler
        attributes: dict[str, Value] = {"kind": type(order).__name__, "random": _is_random(order)}
        if (count := _length(order)) is not None:
            attributes["records"] = count
        stages.append(_stage(SAMPLER, stages, order, attributes))
    stages.append(_stage(GETITEM, stages, _record_function(parts), {"iterable": parts.iterable}))
    collate: dict[str, Value] = {"drop_remainder": bool(loader.drop_last)} if parts.batches else {}
    if loader.batch_size is not None:
        collate["batch_size"] = int(loader.batch_size)
    stages.append(_stage(COLLATE, stages, loader.collate_fn, collate))
    workers: dict[str, Value] = {
        "num_workers": int(loader.num_workers),
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
    }
    stages.append(_stage(WORKERS, stages, None, workers))
    element = () if first_batch is None else tuple(_tensors(first_batch))
    size = next((t.shape[0] for t in element if t.shape and t.shape[0]), None) if parts.batches else None
    return Pipeline("torch", tuple(stages), element, size or 1)


def _stage(op: str, before: list[Stage], made_by: Any, attributes: dict[str, Value]) -> Stage:
    inputs = (before[-1].name,) if before else ()
    return Stage(op, op, len(before), inputs, source_of(made_by), attributes)


def _record_function(parts: Parts) -> Any:
    dataset = parts.loader.dataset
    if parts.iterable:
        return type(dataset).__iter__
    batched = getattr(type(dataset), "__getitems__", None) if parts.batches else None
    return batched or type(dataset).__getitem__


def _is_random(sampler: Any) -> bool:
    from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    shuffles = bool(getattr(sampler, "shuffle", False))
    return shuffles or isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except TypeError:
        return None


def _tensors(batch: Any) -> list[Tensor]:
    from torch.utils import _pytree

    leaves = _pytree.tree_flatten_with_path(batch)[0]
    found = []
    for path, leaf in leaves:
        if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
            name = f"element{_pytree.keystr(path)}"
            found.append(Tensor(name, str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)))
    return found


def source_of(function: Any) -> str | None:
    """The user's line where a function, or the class of an object, is defined; None for a library's."""
    if function is None:
        return None
    is_code = inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function)
    target = inspect.unwrap(function) if is_code else type(function)
    try:
        path = inspect.getsourcefile(target)
        line = inspect.getsourcelines(target)[1]
    except (TypeError, OSError):
        return None
    return f"{shown(path)}:{line}" if path is not None and is_users(path) else None
