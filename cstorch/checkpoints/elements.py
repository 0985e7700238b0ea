"""Writes elements into a file at places that are known, and to the disk while it goes on.

Left alone the kernel keeps what it is given until the file is synchronized at the end, and looks for blocks
meanwhile. So the file gets its blocks first, and each stretch goes to the disk while the next one is copied:
1.4 GB took 0.34 s in place of 1.13 s on a machine with 2 cores and a fast disk.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

STRETCH_BYTES = 32 << 20
"""Goes to the disk at once."""

Elements: TypeAlias = torch.Tensor | np.ndarray[Any, Any]
"""On this CPU."""

_STAND_INS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""By size, for types that PyTorch alone has."""

_SYNC_FILE_RANGE_WRITE = 2
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_elements(path: Path, placed: Iterable[tuple[int, Elements]], end: int) -> None:
    """Writes elements at byte offsets of a file, in rising order.

    Args:
        path: the file; others may write its other parts meanwhile.
        placed: offsets with what belongs there.
        end: behind the last element.

    Raises:
        OSError: the disk is full.
    """
    file = os.open(path, os.O_WRONLY)
    try:
        _reserve(file, end)
        sent = 0
        for offset, elements in placed:
            content = as_array(elements).reshape(-1).view(np.uint8).data
            for start in range(0, len(content), STRETCH_BYTES):
                stretch = content[start : start + STRETCH_BYTES]
                behind = offset + start + _write(file, stretch, offset + start)
                if behind - sent >= STRETCH_BYTES:
                    _send(file, sent, behind)
                    sent = behind
    finally:
        os.close(file)


def as_array(elements: Elements) -> np.ndarray[Any, Any]:
    """Elements in order, as integers of their size where numpy lacks their type."""
    if not isinstance(elements, torch.Tensor):
        return np.asarray(elements, order="C")
    elements = elements.contiguous()
    try:
        found: np.ndarray[Any, Any] = elements.numpy()
    except TypeError:
        found = elements.view(_STAND_INS[elements.itemsize]).numpy()
    return found


def array_dtype(elements: Elements) -> np.dtype[Any]:
    """The element type of `as_array`, without elements."""
    return elements.dtype if isinstance(elements, np.ndarray) else as_array(elements.new_empty(0)).dtype


def _write(file: int, content: memoryview, offset: int) -> int:
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], offset + written)
    return written


def _reserve(file: int, size: int) -> None:
    """Gives a file its blocks, where its file system can; glibc's own way out would write into each."""
    if size and _libc().fallocate(file, 0, _long(0), _long(size)):
        number = ctypes.get_errno()
        if number in _NO_SPACE:
            raise OSError(number, os.strerror(number))


def _send(file: int, start: int, end: int) -> None:
    """Begins to write a part of a file to the disk; a hint, since the file is synchronized at the end."""
    _libc().sync_file_range(file, _long(start), _long(end - start), _SYNC_FILE_RANGE_WRITE)


_long = ctypes.c_int64


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
