"""Copies of data sets on the disks of workers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def worker_cache_root() -> str:
    """Return the folder of CEREBRAS_WORKER_CACHE_ROOT, or one of the user's own among temporary files.

    The original has `/n0/cache` on the disks of its workers, which a user cannot make on other machines.
    """
    own = Path(tempfile.gettempdir()).absolute() / f"cs_worker_cache_{os.getuid()}"
    return os.environ.get("CEREBRAS_WORKER_CACHE_ROOT") or str(own)


WORKER_CACHE_ROOT = worker_cache_root()
"""Folder that programs copy data sets to, below which a copy has the path of its source."""


def get_dir_size(path: str | os.PathLike[str]) -> int:
    """Return the bytes of all files below a folder; 0 where there is none. Links are not followed."""
    return sum(file.lstat().st_size for file in Path(path).rglob("*") if file.is_file())


def hit_worker_cache_limit(
    src_dir: str | os.PathLike[str], dest_dir: str | os.PathLike[str]
) -> tuple[bool, int, int]:
    """Return whether a folder does not fit into the cache.

    Args:
        src_dir: The folder.
        dest_dir: Where it is to be copied to; what is there now is replaced.

    Returns:
        Whether it does not fit, its bytes, and the bytes that are free for it.
    """
    size = get_dir_size(src_dir)
    place = next(folder for folder in (Path(dest_dir), *Path(dest_dir).absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free + get_dir_size(dest_dir)
    return size > free, size, free
