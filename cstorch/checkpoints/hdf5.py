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
_PLACED = h5p.create(h5p.DATASET_CREATE)
_PLACED.set_layout(h5d.CONTIGUOUS)
_PLACED.set_alloc_time(h5d.ALLOC_TIME_EARLY)
_PLACED.set_fill_time(h5d.FILL_TIME_NEVER)


def put_text(place: Any, name: str, value: str) -> None:
    """Writes a text as an attribute of an open file or data set, given by its `id`."""
    h5a.create(place, name.encode(), _STORED_TEXT, _SCALAR).write(np.array(value, _TEXT))


def put_mark(place: Any, name: str) -> None:
    """Writes an attribute that is true."""
    h5a.create(place, name.encode(), _STORED_TRUTH, _SCALAR).write(_TRUE)


def make_bytes(file: h5py.File, name: str, kind: str, mark: str, content: bytes) -> None:
    """Make an empty data set that has its type and its content as attributes."""
    data = file.create_dataset(name, data=h5py.Empty("f4"))
    data.attrs["__TYPE__"] = kind
    data.attrs[mark] = np.frombuffer(content, "V1")


def make_array(file: h5py.File, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Makes a contiguous data set without writing its elements; a slash in the name makes a group.

    Returns:
        Its `id`; `get_offset()` is where its elements belong in the file, None where it has none.

    Raises:
        ValueError: the name is empty, or taken.
    """
    space = h5s.create_simple(shape) if shape else _SCALAR
    return h5d.create(
        file.id, name.encode(), h5t.py_create(dtype, logical=True), space, dcpl=_PLACED, lcpl=_LINKS
    )


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
