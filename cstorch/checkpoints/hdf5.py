"""The file format of checkpoints: names of attributes, HDF5 calls, and writes of elements."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
import struct
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import hdf5plugin
import numpy as np
import torch
from h5py import h5a, h5d, h5l, h5p, h5s, h5t, h5z

from cstorch.checkpoints.checksums import Extent, start_checksum

VERSION = 0.5
SPEC, SUCCESS, VERSION_KEY = "__spec__", "__SUCCESS__", "__version__"
CHECKSUMS = "__checksums__"
"""Mark of a file that must end with checksums."""
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

# Most bytes of elements for each byte of a file: 1,032 is the limit of deflate, 255 that of LZ4, which other
# writers use.
_MAX_COMPRESSION = 2048
_LEAST_FILE_BYTES = 1 << 20

# Filters of data sets that are read. Others of `hdf5plugin` are native code that does not expect damage: SZ
# ends the process with exit code 0.
_FILTERS = (
    h5z.FILTER_DEFLATE,
    h5z.FILTER_SHUFFLE,
    h5z.FILTER_FLETCHER32,
    h5z.FILTER_LZF,
    hdf5plugin.LZ4.filter_id,
)

_HEAP = b"GCOL\x01\0\0\0"
_SCAN_BYTES = 4 << 20
# Heaps do not overlap, but the signatures of deleted ones may be left. A file made for it would have millions
# of heaps that all claim the rest of the file.
_MAX_HEAPS = 2


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
    """Return the `id` of a data set whose elements are in the same file.

    Raises:
        KeyError: the data set does not exist.
        ValueError: the name is a link, or the elements are in another file, or compressed in another way than
            with gzip, LZF or LZ4.
    """
    place = name.encode()
    for end in [*(match.start() for match in re.finditer(b"/", place)), len(place)]:
        # HDF5 would open the file that a link names.
        if end and file.id.links.get_info(place[:end]).type != h5l.TYPE_HARD:
            raise ValueError(f"{name!r} is a link, which may lead to another file")
    found = h5d.open(file.id, place)
    stored = found.get_create_plist()
    if stored.get_layout() == h5d.VIRTUAL or stored.get_external_count():
        raise ValueError(f"the elements of {name!r} are in other files")
    for number, _, _, description in map(stored.get_filter, range(stored.get_nfilters())):
        if number not in _FILTERS:
            raise ValueError(
                f"the elements of {name!r} are compressed by filter {number} ({description.decode()}), "
                "expected gzip, LZF or LZ4"
            )
    return found


def read_array(data: Any, file_size: int) -> np.ndarray[Any, Any]:
    """Read all elements of a data set, given by its `id`, in this machine's byte order.

    Raises:
        ValueError: the data set claims more elements than a file of this size can have.
    """
    size = math.prod(data.shape) * data.dtype.itemsize
    if size > _MAX_COMPRESSION * max(file_size, _LEAST_FILE_BYTES):
        raise ValueError(f"a tensor claims {size:,} bytes in a file of {file_size:,}")
    found = np.empty(data.shape, data.dtype.newbyteorder("="))
    if found.size:
        data.read(h5s.ALL, h5s.ALL, found)
    return found


def write_elements(path: Path, placed: Iterable[tuple[str, Extent, Elements]]) -> dict[str, Extent]:
    """Write elements at byte offsets of a file, and hash them.

    Args:
        path: the file; other threads may write its other parts at the same time.
        placed: keys with places and elements.

    Returns:
        The places with their checksums.

    Raises:
        OSError: the disk is full.
    """
    in_order = sorted(placed, key=itemgetter(1))
    written: dict[str, Extent] = {}
    file = os.open(path, os.O_WRONLY)
    try:
        _reserve(file, max((place.offset + place.size for _, place, _ in in_order), default=0))
        sent = 0
        for key, place, elements in in_order:
            content = as_array(elements).reshape(-1).view(np.uint8).data
            state = start_checksum(key, place)
            for start in range(0, len(content), CHUNK_BYTES):
                chunk = content[start : start + CHUNK_BYTES]
                state.update(chunk)
                position = place.offset + start + _write(file, chunk, place.offset + start)
                if position - sent >= CHUNK_BYTES:
                    # Only a hint to start writing to the disk: the file is synchronized at the end.
                    _libc().sync_file_range(file, _long(sent), _long(position - sent), _SYNC_FILE_RANGE_WRITE)
                    sent = position
            written[key] = place._replace(checksum=state.intdigest())
    finally:
        os.close(file)
    return written


def check_heaps(path: Path) -> None:
    """Check the heaps of texts in a file without checksums.

    Raises:
        ValueError: HDF5 would never return from reading a text of a heap.
    """
    # HDF5 1.14 reads the objects of a heap in a loop that does not advance past a free object of size 0, as
    # a page of zeros contains. Heaps have no checksum, unlike the other structures of the format. They are
    # found by their signature: asking HDF5 for the place of the data sets crashes it for some damage.
    with path.open("rb", buffering=0) as raw:
        size, claimed = _used_bytes(raw.read(64), path.stat().st_size), 0
        for begin in range(0, size, _SCAN_BYTES):
            raw.seek(begin)
            scanned = raw.read(min(_SCAN_BYTES + 15, size - begin))
            found = scanned.find(_HEAP)
            while found >= 0:
                length = min(int.from_bytes(scanned[found + 8 : found + 16], "little"), size - begin - found)
                claimed += length
                if claimed > _MAX_HEAPS * size:
                    raise ValueError("its heaps of texts overlap")
                raw.seek(begin + found)
                _check_heap(raw.read(length))
                found = scanned.find(_HEAP, found + 1)


def _used_bytes(start: bytes, size: int) -> int:
    """Return the part of a file that HDF5 uses, given its first bytes: it ignores what follows."""
    places = {0: 40, 1: 44, 2: 28, 3: 28}  # of the end of the file in a superblock, by its version
    at = places.get(start[8] if len(start) > 8 else -1)
    size_of_offsets = start[13 if start[8] < 2 else 9] if at is not None else 0
    if at is None or size_of_offsets != 8:
        return size
    return min(size, int.from_bytes(start[at : at + 8], "little"))


def _check_heap(content: bytes) -> None:
    at = 16
    while at + 16 <= len(content):
        number, length = struct.unpack_from("<H6xQ", content, at)
        if number == length == 0:
            raise ValueError(f"a heap of texts has {len(content) - at:,} bytes without objects")
        at += length if number == 0 else 16 + (length + 7) // 8 * 8


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
