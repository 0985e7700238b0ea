"""The Pipeline of a torch DataLoader: sampler, datasets and their transforms, collate function, workers."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from cs_toolkit.source_files import is_users_file
from input_rules.batches import SampleCounter, batch_bytes
from input_rules.formatting import display_path
from input_rules.pipeline import Pipeline, Stage, Tensor, Value
from input_rules.torch.batch_parts import leaves_of
from input_rules.torch.layers import Layer, layers_of

SAMPLER, GETITEM, COLLATE, WORKERS = "sampler", "getitem", "collate", "workers"
"""Stages of every loader in pipeline order: indices, records, batches, and the processes that make them.

Before `getitem` stand the datasets and transforms that it uses."""


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

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The stages of the work on a record; the loader's own dataset is the last."""
        return layers_of(self.loader.dataset, self.batches and not self.iterable)

    @property
    def order(self) -> Any:
        """The sampler of single indices; a batch sampler where that has none."""
        loader = self.loader
        if loader.batch_size is None and self.batches:  # the user's own batch sampler
            return getattr(loader.batch_sampler, "sampler", None) or loader.batch_sampler
        return loader.sampler


def parts_of(loader: Any) -> Parts:
    """Tells the kinds of DataLoader apart."""
    from torch.utils.data import IterableDataset

    iterable = isinstance(loader.dataset, IterableDataset)
    batches = loader.batch_size is not None or (loader.batch_sampler is not None and not iterable)
    return Parts(loader, iterable, batches)


def batched_by_dataset(loader: Any) -> bool:
    """Whether a loader leaves it to an iterable dataset to make batches."""
    parts = parts_of(loader)
    return parts.iterable and not parts.batches


def held_open(loader: Any) -> str | None:
    """What a dataset has open when worker processes are forked, as in "Records.file"; None: nothing is seen.

    Forked processes share the position in a file, and a connection.
    """
    context = loader.multiprocessing_context or multiprocessing
    if loader.num_workers < 2 or context.get_start_method() != "fork":
        return None
    dataset = loader.dataset
    opened = (name for name, value in getattr(dataset, "__dict__", {}).items() if _is_open(value))
    return next((f"{type(dataset).__name__}.{name}" for name in opened), None)


_OPENING = frozenset({"h5py", "lmdb", "netCDF4", "rasterio", "sqlite3", "tables"})
"""Libraries whose objects have open files or connections."""


def _is_open(value: Any) -> bool:
    if type(value).__module__.partition(".")[0] in _OPENING:
        return True
    try:
        return bool(value.fileno() >= 0)
    except (AttributeError, OSError, ValueError, TypeError):  # closed, in memory, or no file
        return False


def pipeline_of(
    loader: Any,
    first_batch: Any = None,
    facts: Mapping[str, Mapping[str, Value]] | None = None,
    unused: Collection[str] = (),
) -> Pipeline:
    """The stages of a DataLoader.

    Args:
        loader: The DataLoader.
        first_batch: A batch of it, for the tensors; without one there are none.
        facts: More attributes, by the name of the stage.
        unused: Names of datasets and transforms that are left out, because nothing calls them.
    """
    parts = parts_of(loader)
    called = line_of_call(loader)
    stages: list[Stage] = []
    if not parts.iterable:
        stages.append(Stage(SAMPLER, SAMPLER, 0, (), source_of(parts.order) or called, _of_order(parts)))
    sampler = tuple(stage.name for stage in stages)
    reads: dict[str, tuple[str, ...]] = {}  # by layer, itself or, of one that is left out, what it reads
    for layer in parts.layers:
        before = tuple(dict.fromkeys(name for one in layer.inputs for name in reads[one])) or sampler
        reads[layer.name] = before if layer.name in unused else (layer.name,)
        if layer.name in unused:
            continue
        attributes: dict[str, Value] = {}
        if layer.name == GETITEM:
            attributes = {"iterable": parts.iterable}
        source = source_of(layer.code)
        stages.append(Stage(layer.name, layer.op, len(stages), before, source, attributes))
    own = source_of(loader.collate_fn)
    stages.append(
        Stage(COLLATE, COLLATE, len(stages), (GETITEM,), own or called, _of_collate(parts, own is not None))
    )
    leaves = {} if first_batch is None else leaves_of(first_batch)
    element = tuple(_tensor(name, leaf) for name, leaf in leaves.items())
    together = common_size(element)
    workers = _of_workers(parts, batch_bytes(tuple(leaves.values())))
    if not parts.batches and first_batch is not None and "iterated" not in workers:
        workers["batched_by_dataset"] = together is not None
    stages.append(Stage(WORKERS, WORKERS, len(stages), (COLLATE,), called, workers))
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


def _of_order(parts: Parts) -> dict[str, Value]:
    order = parts.order
    attributes: dict[str, Value] = {"kind": type(order).__name__, "random": is_random(order)}
    attributes["seeded"] = is_seeded(order)
    attributes["takes_generator"] = _takes_generator(type(order))
    attributes["made_by_loader"] = _made_by_loader(parts)
    if (count := length_of(order)) is not None:
        attributes["records"] = count
    return attributes


def _made_by_loader(parts: Parts) -> bool:
    """Whether the order is drawn from `generator` of the DataLoader: one that is given to it is not."""
    noted = made_order_itself(parts.loader)
    source = getattr(parts.order, "data_source", None)
    return source is parts.loader.dataset and is_torchs(parts.order) if noted is None else noted


def _of_collate(parts: Parts, is_users: bool) -> dict[str, Value]:
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


def _of_workers(parts: Parts, batch_bytes: int) -> dict[str, Value]:
    loader = parts.loader
    attributes: dict[str, Value] = {
        "num_workers": int(loader.num_workers),
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": bool(loader.persistent_workers),
        "cpus": len(os.sched_getaffinity(0)),
        "batch_bytes": batch_bytes,
    }
    if (samples := _epoch_samples(parts)) is not None:
        attributes["epoch_samples"] = samples
    if (iterated := getattr(loader, "iterated", None)) is not None:  # see cstorch.input.analysis
        attributes["iterated"] = type(iterated).__name__
    return attributes


def _epoch_samples(parts: Parts) -> int | None:
    """Records that an epoch delivers; None where what has a length may be batches, or is without an end."""
    loader = parts.loader
    size = loader.batch_size
    if size is None:
        return None
    records = length_of(loader.dataset if parts.iterable else parts.order)
    return records // size * size if records is not None and loader.drop_last else records


def batch_size_of(loader: Any) -> int | None:
    """Records of a whole batch; None where the loader does not tell, or makes no batches itself."""
    parts = parts_of(loader)
    size = loader.batch_size
    if size is None and parts.batches:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def common_size(element: tuple[Tensor, ...]) -> int | None:
    """The first size that all tensors share, as those of a batch do; None where they have none in common.

    A single tensor has to have two dimensions: a vector more likely is one record.
    """
    first = {tensor.shape[0] if tensor.shape else None for tensor in element}
    single = len(element) == 1 and len(element[0].shape or ()) < 2
    return next(iter(first)) if len(first) == 1 and not single else None


def is_batch(loader: Any, leaves: Sequence[Any]) -> bool:
    """Whether what a loader delivers is a batch: its own, or one that the dataset has made."""
    made = tuple(Tensor("", "", tuple(leaf.shape)) for leaf in leaves)
    return parts_of(loader).batches or common_size(made) is not None


def is_random(sampler: Any) -> bool:
    """Whether a sampler shuffles, as far as its class tells."""
    from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    shuffles = bool(getattr(sampler, "shuffle", False))
    return shuffles or isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)


def is_seeded(sampler: Any) -> bool | None:
    """Whether a sampler has a generator or a seed of its own; None where its class does not tell."""
    if any(getattr(sampler, name, None) is not None for name in ("generator", "seed")):
        return True
    return False if is_torchs(sampler) or hasattr(sampler, "generator") else None


def is_torchs(sampler: Any) -> bool:
    """Whether a sampler is of a class of torch's, of which it is known what random numbers it draws."""
    return type(sampler).__module__.startswith("torch.utils.data")


def _takes_generator(kind: type) -> bool:
    try:
        return "generator" in inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return False


def length_of(sized: Any) -> int | None:
    """The number of records of a dataset, or of indices of a sampler; None where it does not tell."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def _tensor(name: str, leaf: Any) -> Tensor:
    return Tensor(name, str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape))


@dataclass(frozen=True)
class _Call:
    """How a DataLoader was made: the user's line, and whether a sampler was given."""

    line: str | None
    given_order: bool


_CALLS: WeakKeyDictionary[Any, _Call] = WeakKeyDictionary()


@contextmanager
def noting_calls() -> Iterator[None]:
    """While it is open, it is noted how every DataLoader is made: see `line_of_call`, `made_order_itself`."""
    from torch.utils.data import DataLoader

    original = DataLoader.__init__
    signature = inspect.signature(original)

    @wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        orders = (given.get("sampler"), given.get("batch_sampler"))
        _CALLS[self] = _Call(_users_line(sys._getframe(1), self), any(order is not None for order in orders))

    DataLoader.__init__ = noting
    try:
        yield
    finally:
        DataLoader.__init__ = original


def line_of_call(loader: Any) -> str | None:
    """The user's `file:line` that made a DataLoader; None where nobody has noted it."""
    call = _CALLS.get(loader)
    return None if call is None else call.line


def made_order_itself(loader: Any) -> bool | None:
    """Whether a DataLoader has made its sampler, by `shuffle`; None where nobody has noted it."""
    call = _CALLS.get(loader)
    return None if call is None else not call.given_order


def _users_line(frame: FrameType | None, made: Any) -> str | None:
    while frame is not None:
        # A class derived from DataLoader calls it in its own __init__: the line that made that is wanted.
        by_itself = any(value is made for value in frame.f_locals.values())
        if not by_itself and is_users_file(frame.f_code.co_filename):
            return f"{display_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


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
    return f"{display_path(path)}:{line}" if path is not None and is_users_file(path) else None
