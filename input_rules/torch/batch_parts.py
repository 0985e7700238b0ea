"""Flatten the batches of a torch DataLoader to named tensors and arrays, as they are streamed."""

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

# Name of a batch that is a single tensor; other names begin with it, such as `element['x'][0]`.
ELEMENT = "element"


# Kinds of NumPy types that are numbers; V is bfloat16 and other types of packages.
_NUMBERS = "biufcV"

_CONTAINERS = (
    "build it from tensors, arrays and numbers, in tuples, lists, mappings, named tuples or dataclasses, in "
    "the collate_fn"
)
_NO_NUMBERS = "leave it out of the batch, or convert it to numbers, in the collate_fn"


def flatten_batch(batch: Any) -> dict[str, Any]:
    """Return the tensors and arrays of a batch by their names, in the order in which they are streamed.

    Tuples, lists, mappings, named tuples, dataclasses and containers that torch's pytree knows are searched.
    Numbers become arrays without dimensions, nested lists of numbers arrays, strings and lists of strings
    `Texts`; None is skipped.

    Raises:
        ComponentError: it holds something else, or nothing that can be streamed.
    """
    found = {name: _convert_leaf(value, name) for name, value in walk_batch(batch) if value is not None}
    if not found:
        raise ComponentError(ELEMENT, f"{_type_name(batch)} without a tensor", _CONTAINERS)
    return found


def walk_batch(value: Any, name: str = ELEMENT) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested containers with their names; lists of numbers or strings are values."""
    parts = None if isinstance(value, _VALUES) else _split_container(value)
    if parts is None:
        yield name, value
    else:
        for part, item in parts:
            yield from walk_batch(item, name + part)


_VALUES = (torch.Tensor, np.ndarray, np.generic, Number, str, bytes)


def _split_container(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the items of a container with the suffixes of their names; None for other values."""
    if isinstance(value, Mapping):
        return ((f"[{key!r}]", value[key]) for key in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ((f".{field}", getattr(value, field)) for field in value._fields)
    if isinstance(value, list | tuple):
        # torch collates strings into tuples.
        if value and (as_texts(value) or (isinstance(value, list) and _is_numeric(value))):
            return None
        return ((f"[{index}]", item) for index, item in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
    items = _pytree.tree_flatten_with_path(value)[0]
    if any(item is value for _, item in items):
        return None
    return ((_pytree.keystr(path), item) for path, item in items)


def _convert_leaf(value: Any, name: str) -> Any:
    if (texts := as_texts(value)) is not None:
        return texts
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
            dense = "make it dense, e.g. with to_dense(), in the collate_fn"
            raise ComponentError(name, f"a {layout} tensor", dense)
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in _NUMBERS:
            raise ComponentError(name, f"an array of {value.dtype}", _NO_NUMBERS)
        return value
    if isinstance(value, Number):
        return np.asarray(value)
    if isinstance(value, list):
        try:
            return np.asarray(value)
        except ValueError:
            pad = "pad them to one length in the collate_fn"
            raise ComponentError(name, "lists of numbers of different lengths", pad) from None
    raise ComponentError(name, _type_name(value), _CONTAINERS)


def _is_numeric(value: list[Any] | tuple[Any, ...]) -> bool:
    """Return True for a list of numbers, nested to any depth."""
    if all(isinstance(item, list | tuple) for item in value):
        return bool(value) and all(map(_is_numeric, value))
    return all(isinstance(item, Number) for item in value)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
