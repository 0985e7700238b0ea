"""Files dropped from the operating system's page cache, so that the next program reads them from the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from cs_toolkit.errors import UsageError

_CHECKED_BEFORE = 1000
"""So many files of a folder are opened before an analysis begins; others that cannot be show when dropped."""
_WINDOW = 4 << 20
_LOOKED_AT = 16 << 30
"""From so many bytes on fewer and fewer of the windows are looked at: the kernel takes 15 ms for a GiB."""
_SAY_EVERY = 1000


@dataclass
class Dropped:
    """What became of the files.

    Attributes:
        files: number of files.
        size_bytes: of all of them.
        looked_bytes: so much was looked at after it had been dropped; the kernel tells only owners of a file,
            and who may write to it, what is in memory.
        left_bytes: of that so much is still in memory: written and not yet on the disk, mapped by a program,
            or on a file system that is in memory.
    """

    files: int = 0
    size_bytes: int = 0
    looked_bytes: int = 0
    left_bytes: int = 0

    @property
    def left_part(self) -> float:
        """Part that is still in memory, as far as anybody knows."""
        return self.left_bytes / self.looked_bytes if self.looked_bytes else 0.0


class ColdFiles:
    """Files below some folders; `last` is what became of them when they were dropped last."""

    def __init__(self, flag: str, folders: Sequence[Path]) -> None:
        self._flag = flag
        self.folders = tuple(folders)
        self.last = Dropped()

    def drop(self, say: Callable[[str], None]) -> None:
        """Drops all of them. For `say` and what is raised see `drop`."""
        doing = "dropping files from the memory"
        say(doing)
        self.last = drop(self._flag, self.folders, lambda files: say(doing))


def check_folders(flag: str, folders: Sequence[Path]) -> None:
    """Whether there are files below each of them that can be read.

    Raises:
        UsageError: there are not.
    """
    for folder in folders:
        try:
            os.scandir(folder).close()
        except OSError as error:
            raise _unreadable(flag, folder, error) from error
        files = list(islice(files_below([folder]), _CHECKED_BEFORE))
        for path in files:
            _close(_open(flag, path))
        if not files:
            raise UsageError(f"{flag}: there is no file below {str(folder)!r}; expected those of the input")


def files_below(folders: Sequence[Path]) -> Iterator[str]:
    """Regular files, each folder once; links are followed, as a program does that opens them."""
    seen: set[tuple[int, int]] = set()
    waiting = [str(folder) for folder in folders]
    while waiting:
        folder = waiting.pop()
        with suppress(OSError):  # what only others may see is no part of the input
            status = Path(folder).stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        waiting.append(entry.path)
                    elif entry.is_file():
                        yield entry.path


def drop(flag: str, folders: Sequence[Path], say: Callable[[int], None]) -> Dropped:
    """Drops all files below the folders; takes the kernel some 10 us for a file, and more over a network.

    Args:
        flag: what the user has named the folders with.
        folders: as `check_folders` has found them good.
        say: told now and then how many files have been dropped so far.

    Raises:
        UsageError: a file cannot be read.
    """
    dropped = Dropped()
    for path in files_below(folders):
        descriptor = _open(flag, path)
        if descriptor is not None:
            try:
                _drop_one(descriptor, dropped)
            finally:
                _close(descriptor)
        if dropped.files % _SAY_EVERY == 0:
            say(dropped.files)
    return dropped


def _drop_one(descriptor: int, dropped: Dropped) -> None:
    status = os.fstat(descriptor)
    counted = -(-dropped.size_bytes // _WINDOW)  # windows of the files before
    dropped.files += 1
    dropped.size_bytes += status.st_size
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if not status.st_size or not _is_told(descriptor, status):
        return
    every = 1 + dropped.size_bytes // _LOOKED_AT
    looked, left = _resident(descriptor, status.st_size, counted % every, every)
    if left:  # perhaps what was written and is not yet on the disk: only then a wait for that
        with suppress(OSError):
            os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        looked, left = _resident(descriptor, status.st_size, counted % every, every)
    dropped.looked_bytes += looked
    dropped.left_bytes += left


def _is_told(descriptor: int, status: os.stat_result) -> bool:
    """Whether mincore(2) tells us what is in memory: of other files it says that everything is."""
    return status.st_uid == os.geteuid() or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)


def _resident(descriptor: int, size: int, first: int, every: int) -> tuple[int, int]:
    """Bytes that were looked at, and those of them in memory: windows `first`, `first + every`, ..."""
    looked = left = 0
    for begin in range(first * _WINDOW, size, every * _WINDOW):
        length = min(_WINDOW, size - begin)
        with suppress(OSError, ValueError):  # a file system without mmap
            left += min(length, mmap.PAGESIZE * _resident_pages(descriptor, begin, length))
            looked += length
    return looked, left


def _resident_pages(descriptor: int, begin: int, length: int) -> int:
    """Pages of a window in memory. Mapping it reads nothing.

    Raises:
        OSError: it cannot be mapped, or the kernel does not tell.
    """
    with mmap.mmap(descriptor, length, prot=mmap.PROT_READ, offset=begin) as window:
        content = np.frombuffer(window, np.uint8)
        pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        refused = _libc.mincore(
            ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(length), ctypes.c_void_p(pages.ctypes.data)
        )
        del content  # or the window could not be closed
    if refused:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(np.count_nonzero(pages & 1))


_libc = ctypes.CDLL(None, use_errno=True)


def _open(flag: str, path: str) -> int | None:
    """A descriptor to read a file; None where it has gone meanwhile.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(flag, Path(path), error) from error


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _unreadable(flag: str, path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{flag}: {str(path)!r} cannot be read: {error.strerror}; expected folders whose files we may read: "
        "name only those of the input"
    )
