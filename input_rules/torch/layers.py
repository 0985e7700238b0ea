"""Find the datasets within a dataset, and the transforms that they call.

A dataset that reads another one (`Subset`, `ConcatDataset`, a user's wrapper) has it as an attribute;
transforms are callable attributes, as in torchvision and programs that use it. `Compose` and similar classes
hold a list of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

# Deeper or further layers count as part of the layer that calls them.
MOST_LAYERS = 24

_MOST_MEMBERS = 1000  # members of a list that are searched; lists of file names are longer


@dataclass
class Layer:
    """A stage of the work on a record.

    Attributes:
        name: `getitem` of the loader's own dataset, `getitem.Subset` of one within, `transform`,
            `transform.Normalize` of a part of that.
        op: `getitem` or `transform`.
        code: The executed object, for its line.
        inputs: Names of the layers that it reads.
        hooks: Objects that the layer covers, with the place where they are called from.
    """

    name: str
    op: str
    code: Any
    inputs: tuple[str, ...] = ()
    hooks: list[Hook] = field(default_factory=list)


@dataclass(frozen=True)
class Hook:
    """An object, or a function in an attribute or a list, whose calls are observed."""

    target: Any
    owner: Any = None
    place: str | int | None = None


def find_layers(dataset: Any, batched: bool = False) -> tuple[Layer, ...]:
    """Return the layers of a loader's dataset in pipeline order, its own last.

    Args:
        dataset: The dataset of a loader.
        batched: The loader asks it for whole batches if it supports them (`__getitems__`).
    """
    finder = _LayerSearch()
    inner = finder.search(dataset)
    own = Layer("getitem", "getitem", record_function(dataset, batched), inner)
    return (*finder.layers, own)


def record_function(dataset: Any, batched: bool) -> Any:
    """Return the function of a dataset that makes records."""
    kind = type(dataset)
    if is_iterable(dataset):
        return kind.__iter__
    many = getattr(kind, "__getitems__", None) if batched else None
    return many or getattr(kind, "__getitem__", None)


class _LayerSearch:
    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self._by_key: dict[tuple[Any, ...], Layer] = {}
        self._seen: dict[Any, tuple[str, ...]] = {}

    def search(self, dataset: Any) -> tuple[str, ...]:
        """Add the layers that a dataset uses; return the names of those that it reads directly."""
        from torch.utils.data import Dataset

        self._seen[id(dataset)] = ()
        if is_pipe(dataset):  # its class cannot be replaced
            return ()
        inner_datasets = []
        for value in _attributes(dataset).values():
            values = tuple(value.values()) if isinstance(value, dict) else value
            for one in values[:_MOST_MEMBERS] if isinstance(values, list | tuple) else (values,):
                if isinstance(one, Dataset) and one is not dataset:
                    inner_datasets.append(one)
        reads: list[str] = []
        for inner in inner_datasets:
            if id(inner) not in self._seen and len(self.layers) < MOST_LAYERS:
                inputs = self.search(inner)
                name, code = f"getitem.{type(inner).__name__}", record_function(inner, False)
                own = self._add((type(inner), inputs), name, "getitem", code, inputs, Hook(inner))
                self._seen[id(inner)] = (own,)
            reads += self._seen.get(id(inner), ())
        before = tuple(dict.fromkeys(reads))
        for attribute, function in _callables_in(dataset):
            before = self._transform(dataset, attribute, function, before)
        return before

    def _transform(
        self, owner: Any, attribute: str, function: Any, before: tuple[str, ...]
    ) -> tuple[str, ...]:
        parts = getattr(function, "transforms", None)  # those of a composed transform
        if not (isinstance(parts, list) and parts and all(callable(part) for part in parts)):
            parts = [function]
        for number, part in enumerate(parts):
            whole = part is function
            hook = Hook(part, owner, attribute) if whole else Hook(part, parts, number)
            # Calls of a function are observed at its place, calls of an object everywhere.
            seen = id(part) if not is_function(part) else (id(hook.owner), hook.place)
            if seen in self._seen or len(self.layers) >= MOST_LAYERS:
                before = self._seen.get(seen, before)
                continue
            own = part
            while isinstance(own, functools.partial):
                own = own.func
            own_name = getattr(own, "__name__", type(own).__name__)
            name = attribute if whole else f"{attribute}.{own_name}"
            kind = getattr(part, "__code__", part) if is_function(part) else type(part)
            key = (type(owner), attribute, number, kind)
            before = (self._add(key, name, "transform", part, before, hook),)
            self._seen[seen] = before
        return before

    def _add(
        self,
        key: tuple[Any, ...],
        name: str,
        op: str,
        code: Any,
        inputs: tuple[str, ...],
        hook: Hook,
    ) -> str:
        layer = self._by_key.get(key)
        if layer is None:
            taken = {one.name for one in self.layers}
            unique, count = name, 1
            while unique in taken or unique == "getitem":
                count += 1
                unique = f"{name}_{count}"
            layer = self._by_key[key] = Layer(unique, op, code, inputs)
            self.layers.append(layer)
        layer.hooks.append(hook)
        return layer.name


def is_pipe(dataset: Any) -> bool:
    """Return True if a dataset is one of torch's data pipes."""
    from torch.utils.data import IterDataPipe, MapDataPipe

    return isinstance(dataset, IterDataPipe | MapDataPipe)


def is_iterable(dataset: Any) -> bool:
    """Return True if a dataset yields records in sequence, without indices."""
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)


def _callables_in(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield attributes that a dataset may call for a record, except those of torch's own datasets."""
    from torch.utils.data import Dataset

    if type(dataset).__module__.startswith("torch.utils.data"):
        return
    for name, value in _attributes(dataset).items():
        skipped = inspect.isclass(value) or isinstance(value, Dataset) or inspect.ismodule(value)
        if callable(value) and not skipped and not name.startswith("__"):
            yield name, value


def _attributes(thing: Any) -> dict[str, Any]:
    with suppress(TypeError):
        return dict(vars(thing))
    return {}


def is_function(thing: Any) -> bool:
    """Return True if an object is called directly, and not by a method of its class."""
    return inspect.isroutine(thing) or isinstance(thing, functools.partial)
