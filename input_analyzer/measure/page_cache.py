"""Files dropped from the operating system's page cache, so that the next program reads them from the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cs_toolkit.errors import UsageError

_CHECKED_BEFORE = 1000
"""So many files of a folder are opened before an analysis begins; others that cannot be show when dropped."""
_SAY_EVERY = 1000


@dataclass
class Dropped:
    """Number of the files, and their bytes."""

    files: int = 0
    size_bytes: int = 0


class ColdFiles:
    """Files below some folders; `last` is what was dropped last."""

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
            _with_opened(flag, path, lambda descriptor: None)
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

    def drop_one(descriptor: int) -> None:
        dropped.files += 1
        dropped.size_bytes += os.fstat(descriptor).st_size
        with suppress(OSError):  # what was written a moment ago can be dropped once it is on the disk
            os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    for path in files_below(folders):
        _with_opened(flag, path, drop_one)
        if dropped.files % _SAY_EVERY == 0:
            say(dropped.files)
    return dropped


def _with_opened(flag: str, path: str, act: Callable[[int], None]) -> None:
    """Opens a file to read it; does nothing where it has gone meanwhile.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(flag, Path(path), error) from error
    try:
        act(descriptor)
    finally:
        os.close(descriptor)


def _unreadable(flag: str, path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{flag}: {str(path)!r} cannot be read: {error.strerror}; expected folders whose files we may read: "
        "name only those of the input"
    )
