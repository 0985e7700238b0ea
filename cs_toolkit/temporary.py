"""Temporary files and directories, which a killed process does not leave for long.

A process locks those that it uses. The kernel releases a lock when the process ends in any way, and the next
process that makes a temporary file or directory there removes those that are not locked. On a file system
without locks they stay.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex

_NAME = re.compile(r"\..+\.\d+-[0-9a-f]{8}")


@contextmanager
def temporary_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Make an empty temporary file next to a path; remove it at the end if the body has not renamed it.

    Args:
        path: of the file that it is for; its directory must exist.
        mode: permissions, without those in the umask.

    Raises:
        OSError: the directory is not writable or is full.
    """
    _remove_unlocked(path.parent.absolute())
    while True:
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        # Another process may have taken it for one of a killed process before it was locked.
        if _lock_file(descriptor) is not False and os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)
    try:
        yield temporary
    finally:
        with suppress(OSError):  # an error of the body is the one to report
            temporary.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """Make a directory in TMPDIR, and remove it at the end; first remove those of ended processes.

    Args:
        prefix: of the name; other directories of this user with this prefix are removed if they are not
            locked.
    """
    import shutil  # only here: agents, which start on every node, do not need them
    import tempfile

    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if (descriptor := _lock_directory(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        # As above.
        if (descriptor := _lock_directory(folder)) is not None and folder.is_dir():
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


# Once for each directory: those of jobs may have thousands of files.
@cache
def _remove_unlocked(directory: Path) -> None:
    """Remove temporary files in a directory that no process has locked."""
    with suppress(OSError):
        left = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
        for path in left:
            with suppress(OSError):  # has just been removed or renamed, or is of another user
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    if stat.S_ISREG(os.fstat(descriptor).st_mode) and _lock_file(descriptor):
                        path.unlink()
                finally:
                    os.close(descriptor)


def _lock_file(descriptor: int) -> bool | None:
    """Return True if the file is locked now, False if another process holds it, None if nothing can."""
    # Not flock, which HDF5 takes itself if HDF5_USE_FILE_LOCKING is set, whatever its caller asks for. Not
    # another POSIX lock, which ends when anything in this process closes the file.
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _lock_directory(directory: Path) -> int | None:
    """Return a descriptor that holds the lock of a directory; None if another holds it or owns it."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
        except OSError:
            pass
        os.close(descriptor)
    return None
