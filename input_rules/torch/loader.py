"""Read the Pipeline of a torch DataLoader: sampler, datasets and transforms, collate function, workers.

The stages of every loader are `sampler` (indices), `getitem` (records), `collate` (batches) and `workers`
(the processes that make them). Before `getitem` come the datasets and transforms that it uses.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from cs_toolkit.source_files import is_user_file
from input_rules.batches import SampleCounter, batch_bytes
from input_rules.formatting import display_path
from input_rules.pipeline import Pipeline, Stage, Tensor, Value
from input_rules.torch.batch_forms import takes_indices
from input_rules.torch.batch_parts import flatten_batch
from input_rules.torch.layers import Layer, find_layers

SAMPLER, GETITEM, COLLATE, WORKERS = "sampler", "getitem", "collate", "workers"


@dataclass(frozen=True)
class LoaderParts:
    """The parts of a DataLoader.

    Attributes:
        loader: The DataLoader.
        iterable: Its dataset is iterable, without indices.
        batches: The loader itself makes batches.
    """

    loader: Any
    iterable: bool
    batches: bool

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The stages of the work on a record; the loader's own dataset is the last."""
        return find_layers(self.loader.dataset, self.batches and not self.iterable)

    @property
    def order(self) -> Any:
        """The sampler of single indices; a batch sampler if that has none."""
        loader = self.loader
        if loader.batch_size is None and self.batches:  # the user's own batch sampler
            return getattr(loader.batch_sampler, "sampler", None) or loader.batch_sampler
        return loader.sampler


def loader_parts(loader: Any) -> LoaderParts:
    """Classify a DataLoader."""
    from torch.utils.data import IterableDataset

    iterable = isinstance(loader.dataset, IterableDataset)
    batches = loader.batch_size is not None or (loader.batch_sampler is not None and not iterable)
    return LoaderParts(loader, iterable, batches)


def dataset_makes_batches(loader: Any) -> bool:
    """Return True if a loader relies on an iterable dataset for batches."""
    parts = loader_parts(loader)
    return parts.iterable and not parts.batches


def find_open_handle(loader: Any) -> str | None:
    """Return an attribute of the dataset that is open when workers are forked, such as "Records.file".

    None if there is no such attribute.
    """
    context = loader.multiprocessing_context or multiprocessing
    # Only forked processes share the position in a file, and a connection.
    if loader.num_workers < 2 or context.get_start_method() != "fork":
        return None
    dataset = loader.dataset
    for name, value in getattr(dataset, "__dict__", {}).items():
        is_open = type(value).__module__.partition(".")[0] in _OPENING
        with suppress(AttributeError, OSError, ValueError, TypeError):  # closed, in memory, or no file
            is_open = is_open or value.fileno() >= 0
        if is_open:
            return f"{type(dataset).__name__}.{name}"
    return None


# Libraries whose objects have open files or connections.
_OPENING = frozenset({"h5py", "lmdb", "netCDF4", "rasterio", "sqlite3", "tables"})


def read_pipeline(
    loader: Any,
    first_batch: Any = None,
    facts: Mapping[str, Mapping[str, Value]] | None = None,
    unused: Collection[str] = (),
) -> Pipeline:
    """Read the stages of a DataLoader.

    Args:
        loader: The DataLoader.
        first_batch: One of its batches, for the tensors; without it there are none.
        facts: Further attributes, by the name of the stage.
        unused: Names of datasets and transforms to leave out, because nothing calls them.
    """
    parts = loader_parts(loader)
    line = call_line(loader)
    stages: list[Stage] = []
    if not parts.iterable:
        stages.append(
            Stage(SAMPLER, SAMPLER, 0, (), definition_line(parts.order) or line, _read_sampler(parts))
        )
    sampler = tuple(stage.name for stage in stages)
    reads: dict[str, tuple[str, ...]] = {}  # the layer itself, or the inputs of an unused one
    for layer in parts.layers:
        before = tuple(dict.fromkeys(name for one in layer.inputs for name in reads[one])) or sampler
        reads[layer.name] = before if layer.name in unused else (layer.name,)
        if layer.name in unused:
            continue
        attributes: dict[str, Value] = {}
        if layer.name == GETITEM:
            attributes = {"iterable": parts.iterable}
            if parts.batches and not parts.iterable:
                attributes["batch_form"] = takes_indices(loader.dataset)
        source = definition_line(layer.code)
        stages.append(Stage(layer.name, layer.op, len(stages), before, source, attributes))
    own = definition_line(loader.collate_fn)
    stages.append(
        Stage(COLLATE, COLLATE, len(stages), (GETITEM,), own or line, _read_collate(parts, own is not None))
    )
    leaves = {} if first_batch is None else flatten_batch(first_batch)
    element = tuple(
        Tensor(name, str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape))
        for name, leaf in leaves.items()
    )
    together = common_size(element)
    workers = _read_workers(parts, batch_bytes(tuple(leaves.values())))
    if not parts.batches and first_batch is not None and "iterated" not in workers:
        workers["batched_by_dataset"] = together is not None
    stages.append(Stage(WORKERS, WORKERS, len(stages), (COLLATE,), line, workers))
    if parts.batches and leaves:
        together = SampleCounter(batch_size_of(loader))(tuple(leaves.values()))
    pipeline = Pipeline("torch", tuple(stages), element, together or 1)
    known = facts or {}
    return replace(
        pipeline,
        stages=tuple(
            replace(stage, attributes={**stage.attributes, **known.get(stage.name, {})})
            for stage in pipeline.stages
        ),
    )


def _read_sampler(parts: LoaderParts) -> dict[str, Value]:
    order = parts.order
    attributes: dict[str, Value] = {"kind": type(order).__name__, "random": is_random(order)}
    attributes["seeded"] = is_seeded(order)
    attributes["takes_generator"] = False
    with suppress(TypeError, ValueError):  # a class without a signature
        attributes["takes_generator"] = "generator" in inspect.signature(type(order)).parameters
    # If the loader made the sampler, `generator` of the DataLoader determines the order.
    by_loader = makes_sampler(parts.loader)
    if by_loader is None:
        source = getattr(order, "data_source", None)
        by_loader = source is parts.loader.dataset and is_torch_class(order)
    attributes["made_by_loader"] = by_loader
    if (count := length_or_none(order)) is not None:
        attributes["records"] = count
    return attributes


def _read_collate(parts: LoaderParts, is_users: bool) -> dict[str, Value]:
    loader = parts.loader
    attributes: dict[str, Value] = {"users": is_users}
    if loader.batch_size is not None:
        attributes["batch_size"] = int(loader.batch_size)
        attributes["drop_remainder"] = bool(loader.drop_last)
    elif parts.batches and hasattr(loader.batch_sampler, "drop_last"):
        attributes["batch_size"] = getattr(loader.batch_sampler, "batch_size", None)
        attributes["drop_remainder"] = bool(loader.batch_sampler.drop_last)
        attributes["batch_sampler"] = True
    return attributes


def _read_workers(parts: LoaderParts, size_bytes: int) -> dict[str, Value]:
    loader = parts.loader
    attributes: dict[str, Value] = {
        "num_workers": int(loader.num_workers),
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": bool(loader.persistent_workers),
        "cpus": len(os.sched_getaffinity(0)),
        "batch_bytes": size_bytes,
    }
    # Elements with a length may be batches, or never end, if the loader makes no batches itself.
    size = loader.batch_size
    records = length_or_none(loader.dataset if parts.iterable else parts.order) if size else None
    if records is not None:
        attributes["epoch_samples"] = records // size * size if loader.drop_last else records
    if (iterated := getattr(loader, "iterated", None)) is not None:  # see cstorch.input.analysis
        attributes["iterated"] = type(iterated).__name__
    return attributes


def batch_size_of(loader: Any) -> int | None:
    """Return the records of a full batch; None if it is unknown, or the loader makes no batches."""
    parts = loader_parts(loader)
    size = loader.batch_size
    if size is None and parts.batches:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def common_size(element: tuple[Tensor, ...]) -> int | None:
    """Return the first size that all tensors share, as those of a batch do; None if they differ.

    A single tensor needs two dimensions: a vector is more likely a record.
    """
    first = {tensor.shape[0] if tensor.shape else None for tensor in element}
    single = len(element) == 1 and len(element[0].shape or ()) < 2
    return next(iter(first)) if len(first) == 1 and not single else None


def is_batch(loader: Any, leaves: Sequence[Any]) -> bool:
    """Return True if a loader delivers batches: its own, or those of the dataset."""
    made = tuple(Tensor("", "", tuple(leaf.shape)) for leaf in leaves)
    return loader_parts(loader).batches or common_size(made) is not None


def is_random(sampler: Any) -> bool:
    """Return True if a sampler shuffles, as far as its class shows."""
    from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    shuffles = bool(getattr(sampler, "shuffle", False))
    return shuffles or isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)


def is_seeded(sampler: Any) -> bool | None:
    """Return True if a sampler has its own generator or seed; None if its class does not show that."""
    if any(getattr(sampler, name, None) is not None for name in ("generator", "seed")):
        return True
    return False if is_torch_class(sampler) or hasattr(sampler, "generator") else None


def is_torch_class(sampler: Any) -> bool:
    """Return True if torch defines the class of a sampler, so that its random numbers are known."""
    return type(sampler).__module__.startswith("torch.utils.data")


def length_or_none(sized: Any) -> int | None:
    """Return the length of a dataset or sampler; None if it has none."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


@dataclass(frozen=True)
class _Call:
    """A call of DataLoader: the user's line, and whether a sampler was given."""

    line: str | None
    given_order: bool


_CALLS: WeakKeyDictionary[Any, _Call] = WeakKeyDictionary()


@contextmanager
def record_calls() -> Iterator[None]:
    """Record the call of every DataLoader for the duration of the context."""
    from torch.utils.data import DataLoader

    original = DataLoader.__init__
    signature = inspect.signature(original)

    @wraps(original)
    def record_call(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        orders = (given.get("sampler"), given.get("batch_sampler"))
        line = None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and line is None:
            # A class derived from DataLoader calls it in its own __init__: the line that made that object
            # counts.
            by_itself = any(value is self for value in frame.f_locals.values())
            if not by_itself and is_user_file(frame.f_code.co_filename):
                line = f"{display_path(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        _CALLS[self] = _Call(line, any(order is not None for order in orders))

    DataLoader.__init__ = record_call
    try:
        yield
    finally:
        DataLoader.__init__ = original


def call_line(loader: Any) -> str | None:
    """Return the user's `file:line` that made a DataLoader; None if it was not recorded."""
    call = _CALLS.get(loader)
    return None if call is None else call.line


def makes_sampler(loader: Any) -> bool | None:
    """Return True if a DataLoader made its sampler, by `shuffle`; None if its call was not recorded."""
    call = _CALLS.get(loader)
    return None if call is None else not call.given_order


def definition_line(function: Any) -> str | None:
    """Return the user's line that defines a function, or the class of an object; None for a library's."""
    if function is None:
        return None
    is_code = inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function)
    target = inspect.unwrap(function) if is_code else type(function)
    try:
        path = inspect.getsourcefile(target)
        line = inspect.getsourcelines(target)[1]
    except (TypeError, OSError):
        return None
    return f"{display_path(path)}:{line}" if path is not None and is_user_file(path) else None
