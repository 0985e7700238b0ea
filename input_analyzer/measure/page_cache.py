"""Files dropped from the operating system's page cache, so that the next program reads them from the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cs_toolkit.errors import UsageError

_SAY_EVERY = 1000


class ColdFiles:
    """Files below some folders; `files` and `size_bytes` are of what was dropped last."""

    def __init__(self, flag: str, folders: Sequence[Path]) -> None:
        self._flag = flag
        self.folders = tuple(folders)
        self.files = self.size_bytes = 0

    def drop(self, say: Callable[[str], None]) -> None:
        """Drops all of them; takes the kernel some 10 us for a file, and more over a network.

        Args:
            say: Told now and then what is being done.

        Raises:
            UsageError: a file cannot be read.
        """
        self.files = self.size_bytes = 0
        for path in files_below(self.folders):
            if self.files % _SAY_EVERY == 0:
                say("dropping files from the memory")
            self._drop(path)

    def _drop(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # it has gone meanwhile
        except OSError as error:
            raise UsageError(
                f"{self._flag}: {path!r} cannot be read: {error.strerror}; expected folders whose files we "
                "may read: name only those of the input"
            ) from error
        try:
            self.files += 1
            self.size_bytes += os.fstat(descriptor).st_size
            with suppress(OSError):  # what was written a moment ago can be dropped once it is on the disk
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def check_folders(flag: str, folders: Sequence[Path]) -> None:
    """Whether there are files below each of them.

    Raises:
        UsageError: there are not.
    """
    for folder in folders:
        if next(files_below([folder]), None) is None:
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
