"""What a batch of a torch DataLoader is made of: the tensors and arrays that are streamed, by their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from input_rules.batches import as_texts
from input_rules.errors import ComponentError

ELEMENT = "element"
"""Name of a batch that is a single tensor; those of others begin with it, as `element['x'][0]`."""


_NUMBERS = "biufcV"
"""Kinds of NumPy's types that are numbers; V is bfloat16 and the like, of packages."""

_CONTAINERS = (
    "make it of tensors, arrays and numbers, in tuples, lists, mappings, named tuples or dataclasses, in the "
    "collate_fn"
)
_NO_NUMBERS = "leave it out of the batch, or make numbers of it, in the collate_fn"


def leaves_of(batch: Any) -> dict[str, Any]:
    """The tensors and arrays of a batch by their names, in the order in which they are streamed.

    They are looked for in tuples, lists, mappings, named tuples, dataclasses and whatever torch's pytree
    knows. Numbers are arrays without dimensions, lists of them, or of lists of them, arrays; strings and
    lists of strings are `Texts`; None is nothing.

    Raises:
        ComponentError: something else is in it, or nothing that can be streamed.
    """
    found = {name: _leaf(value, name) for name, value in values_in(batch) if value is not None}
    if not found:
        raise ComponentError(ELEMENT, f"{_type(batch)} without a tensor", _CONTAINERS)
    return found


def values_in(value: Any, name: str = ELEMENT) -> Iterator[tuple[str, Any]]:
    """What is in containers, and in those within them, by its name; lists of numbers or strings are none."""
    parts = None if isinstance(value, _VALUES) else _parts(value)
    if parts is None:
        yield name, value
    else:
        for part, item in parts:
            yield from values_in(item, name + part)


_VALUES = (torch.Tensor, np.ndarray, np.generic, Number, str, bytes)


def _parts(value: Any) -> Iterable[tuple[str, Any]] | None:
    """What is in a container, each with what is to be added to its name; None for what is no container."""
    if isinstance(value, Mapping):
        return ((f"[{key!r}]", value[key]) for key in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ((f".{field}", getattr(value, field)) for field in value._fields)
    if isinstance(value, list | tuple):
        # Of records with texts torch makes tuples of these.
        if value and (as_texts(value) or (isinstance(value, list) and _is_numeric(value))):
            return None
        return ((f"[{index}]", item) for index, item in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
    items = _pytree.tree_flatten_with_path(value)[0]
    if any(item is value for _, item in items):
        return None
    return ((_pytree.keystr(path), item) for path, item in items)


def _leaf(value: Any, name: str) -> Any:
    if (texts := as_texts(value)) is not None:
        return texts
    if isinstance(value, torch.Tensor):
        return _dense(value, name)
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in _NUMBERS:
            raise ComponentError(name, f"an array of {value.dtype}", _NO_NUMBERS)
        return value
    if isinstance(value, Number):
        return np.asarray(value)
    if isinstance(value, list):
        return _array(value, name)
    raise ComponentError(name, _type(value), _CONTAINERS)


def _dense(value: Any, name: str) -> Any:
    if value.layout is not torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise ComponentError(
            name, f"a {layout} tensor", "make it dense, e.g. with to_dense(), in the collate_fn"
        )
    return value


def _is_numeric(value: list[Any] | tuple[Any, ...]) -> bool:
    """Whether there are numbers in a list, in as many lists within as there may be, and nothing else."""
    if all(isinstance(item, list | tuple) for item in value):
        return bool(value) and all(map(_is_numeric, value))
    return all(isinstance(item, Number) for item in value)


def _array(value: list[Any], name: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        pad = "pad them to one length in the collate_fn"
        raise ComponentError(name, "lists of numbers of different lengths", pad) from None


def _type(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
