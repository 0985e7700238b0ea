"""Which part of a file the operating system has in its memory."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np


def resident(path: Path) -> float:
    """The part of a file in memory, 0 to 1, as mincore(2) tells its owner."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        content = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        address, length = ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(size)
        refused = ctypes.CDLL(None).mincore(address, length, ctypes.c_void_p(pages.ctypes.data))
        del content  # or the mapping could not be closed
    assert refused == 0
    return float(np.mean(pages & 1))
