"""The file format of checkpoints: names of attributes, HDF5 calls, and writes of elements."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import torch
from h5py import h5a, h5d, h5p, h5s, h5t

VERSION = 0.5
SPEC, SUCCESS, VERSION_KEY = "__spec__", "__SUCCESS__", "__version__"
BYTES = "__BYTES__"
"""Attribute of a data set that contains the pickle of an object."""

METADATA = ".__metadata__"
"""Suffix of a leaf's key in the name of the attribute that describes it."""

TENSOR, ARRAY, SCALAR, STRING, NONE, OBJECT, LINKED = (
    "TorchTensorSerializer",
    "NumpyArraySerializer",
    "ScalarSerializer",
    "StringSerializer",
    "NoneSerializer",
    "ObjectSerializer",
    "LinkedObject",
)

WIRE_TYPES = {
    torch.bool: 1,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.uint8: 6,
    torch.float16: 10,
    torch.float32: 11,
    torch.float64: 12,
    torch.bfloat16: 15,
}
"""Numbers of element types in the format; other types have none, and other readers may refuse them."""

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

# Without help the kernel keeps written pages until the file is synchronized at the end, and allocates blocks
# meanwhile. So blocks are reserved first, and each chunk is sent to the disk while the next one is copied:
# 1.4 GB took 0.34 s instead of 1.13 s on a machine with 2 cores and a fast disk.
CHUNK_BYTES = 32 << 20
Elements: TypeAlias = torch.Tensor | np.ndarray[Any, Any]
"""Elements on this CPU."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integers by size, which replace element types that numpy lacks."""
_SYNC_FILE_RANGE_WRITE = 2
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_long = ctypes.c_int64


def put_text(place: Any, name: str, value: str) -> None:
    """Write a text as an attribute of an open file or data set, given by its `id`."""
    h5a.create(place, name.encode(), _STORED_TEXT, _SCALAR).write(np.array(value, _TEXT))


def put_mark(place: Any, name: str) -> None:
    """Write an attribute with the value true."""
    h5a.create(place, name.encode(), _STORED_TRUTH, _SCALAR).write(_TRUE)


def make_bytes(file: h5py.File, name: str, kind: str, mark: str, content: bytes) -> None:
    """Create an empty data set with its type and its content as attributes."""
    data = file.create_dataset(name, data=h5py.Empty("f4"))
    data.attrs["__TYPE__"] = kind
    data.attrs[mark] = np.frombuffer(content, "V1")


def make_array(file: h5py.File, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Create a contiguous data set without writing its elements; a slash in the name creates a group.

    Returns:
        Its `id`; `get_offset()` is the offset of its elements in the file, None if it has none.

    Raises:
        ValueError: the name is empty or already exists.
    """
    space = h5s.create_simple(shape) if shape else _SCALAR
    return h5d.create(
        file.id, name.encode(), h5t.py_create(dtype, logical=True), space, dcpl=_PLACED, lcpl=_LINKS
    )


def text(place: Any, name: str) -> str:
    """Read an attribute that is a text.

    Raises:
        KeyError: the attribute does not exist.
    """
    attribute = h5a.open(place, name.encode())
    found = np.empty((), attribute.dtype)
    attribute.read(found)
    value = found.item()
    return value.decode() if isinstance(value, bytes) else str(value)


def data_set(file: h5py.File, name: str) -> Any:
    """Return the `id` of a data set.

    Raises:
        KeyError: the data set does not exist.
    """
    return h5d.open(file.id, name.encode())


def read_array(data: Any) -> np.ndarray[Any, Any]:
    """Read all elements of a data set, given by its `id`, in this machine's byte order."""
    found = np.empty(data.shape, data.dtype.newbyteorder("="))
    if found.size:
        data.read(h5s.ALL, h5s.ALL, found)
    return found


def write_elements(path: Path, placed: Iterable[tuple[int, Elements]], end: int) -> None:
    """Write elements at byte offsets of a file, in ascending order.

    Args:
        path: the file; other threads may write its other parts at the same time.
        placed: offsets with their elements.
        end: offset after the last element.

    Raises:
        OSError: the disk is full.
    """
    file = os.open(path, os.O_WRONLY)
    try:
        _reserve(file, end)
        sent = 0
        for offset, elements in placed:
            content = as_array(elements).reshape(-1).view(np.uint8).data
            for start in range(0, len(content), CHUNK_BYTES):
                chunk = content[start : start + CHUNK_BYTES]
                position = offset + start + _write(file, chunk, offset + start)
                if position - sent >= CHUNK_BYTES:
                    # Only a hint to start writing to the disk: the file is synchronized at the end.
                    _libc().sync_file_range(file, _long(sent), _long(position - sent), _SYNC_FILE_RANGE_WRITE)
                    sent = position
    finally:
        os.close(file)


def as_array(elements: Elements) -> np.ndarray[Any, Any]:
    """Return elements in row-major order, as integers of their size if numpy lacks their type."""
    if not isinstance(elements, torch.Tensor):
        return np.asarray(elements, order="C")
    elements = elements.contiguous()
    try:
        found: np.ndarray[Any, Any] = elements.numpy()
    except TypeError:
        found = elements.view(_INTEGERS[elements.itemsize]).numpy()
    return found


def array_dtype(elements: Elements) -> np.dtype[Any]:
    """Return the element type of `as_array`, without converting the elements."""
    return elements.dtype if isinstance(elements, np.ndarray) else as_array(elements.new_empty(0)).dtype


def _write(file: int, content: memoryview, offset: int) -> int:
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], offset + written)
    return written


def _reserve(file: int, size: int) -> None:
    """Reserve the blocks of a file if its file system can."""
    # Not os.posix_fallocate: on other file systems glibc writes into each block instead.
    if size and _libc().fallocate(file, 0, _long(0), _long(size)):
        number = ctypes.get_errno()
        if number in _NO_SPACE:
            raise OSError(number, os.strerror(number))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
