"""Data sets and attributes by HDF5's own calls: h5py's objects take three times as long for thousands."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5p, h5s, h5t

_TEXT = h5py.string_dtype()
_STORED_TEXT = h5t.py_create(_TEXT, logical=True)
_TRUE = np.array(True)
_STORED_TRUTH = h5t.py_create(_TRUE.dtype, logical=True)
_SCALAR = h5s.create(h5s.SCALAR)
_LINKS = h5p.create(h5p.LINK_CREATE)
_LINKS.set_create_intermediate_group(True)
_LINKS.set_char_encoding(h5t.CSET_UTF8)


def put_text(place: Any, name: str, value: str) -> None:
    """Writes a text as an attribute of an open file or data set, given by its `id`."""
    h5a.create(place, name.encode(), _STORED_TEXT, _SCALAR).write(np.array(value, _TEXT))


def put_mark(place: Any, name: str) -> None:
    """Writes an attribute that is true."""
    h5a.create(place, name.encode(), _STORED_TRUTH, _SCALAR).write(_TRUE)


def put_array(file: h5py.File, name: str, array: np.ndarray[Any, Any]) -> Any:
    """Writes an array as one contiguous data set, whose `id` it returns; a slash in the name makes a group.

    Raises:
        ValueError: the name is empty, or taken.
    """
    space = h5s.create_simple(array.shape) if array.ndim else _SCALAR
    stored = h5t.py_create(array.dtype, logical=True)
    data = h5d.create(file.id, name.encode(), stored, space, lcpl=_LINKS)
    if array.size:
        data.write(h5s.ALL, h5s.ALL, np.asarray(array, order="C"))
    return data


def text(place: Any, name: str) -> str:
    """An attribute that is a text.

    Raises:
        KeyError: there is no such attribute.
    """
    attribute = h5a.open(place, name.encode())
    found = np.empty((), attribute.dtype)
    attribute.read(found)
    value = found.item()
    return value.decode() if isinstance(value, bytes) else str(value)


def data_set(file: h5py.File, name: str) -> Any:
    """The `id` of a data set.

    Raises:
        KeyError: there is no such data set.
    """
    return h5d.open(file.id, name.encode())


def read_array(data: Any) -> np.ndarray[Any, Any]:
    """All elements of a data set, given by its `id`, in this machine's order of bytes."""
    found = np.empty(data.shape, data.dtype.newbyteorder("="))
    if found.size:
        data.read(h5s.ALL, h5s.ALL, found)
    return found
