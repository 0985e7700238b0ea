"""Copies of datasets on the disks of workers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def worker_cache_root() -> str:
    """Return the directory in CEREBRAS_WORKER_CACHE_ROOT, or a temporary directory of this user."""
    # The original has `/n0/cache` on the disks of its workers, which users cannot create on other machines.
    own = Path(tempfile.gettempdir()).absolute() / f"cs_worker_cache_{os.getuid()}"
    return os.environ.get("CEREBRAS_WORKER_CACHE_ROOT") or str(own)


WORKER_CACHE_ROOT = worker_cache_root()
"""Directory that programs copy datasets to; a copy has the path of its source below it."""


def get_dir_size(path: str | os.PathLike[str]) -> int:
    """Return the bytes of all files below a directory, 0 if there are none; links are not followed."""
    return sum(file.lstat().st_size for file in Path(path).rglob("*") if file.is_file())


def hit_worker_cache_limit(
    src_dir: str | os.PathLike[str], dest_dir: str | os.PathLike[str]
) -> tuple[bool, int, int]:
    """Check if a directory is too large for the cache.

    Args:
        src_dir: The directory.
        dest_dir: Destination, whose present content would be replaced.

    Returns:
        True if it does not fit, its size in bytes, and the bytes that are free for it.
    """
    size = get_dir_size(src_dir)
    place = next(folder for folder in (Path(dest_dir), *Path(dest_dir).absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free + get_dir_size(dest_dir)
    return size > free, size, free
