"""Atomic publishing of directories, with a lock for one writer at a time.

A directory is written under a hidden name next to its target and synced to disk, then renamed. A writer that
is killed leaves a hidden directory, which the next writer removes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cgc.errors import ArtifactLockError, ArtifactWriteError

# Prefix of all artifact directories; nothing else is ever removed.
NAME_PREFIX = "cs_"

_POLL_S = 0.05
_REPORT_EVERY_S = 10.0
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
_LOCK_SUFFIX = ".lock"
_TEMPORARY_MARK = ".tmp-"


class DirectoryLock:
    """The right to write the directory `target`, from `directory_lock`.

    Attributes:
        target: the directory.
        exclusive: False on a file system without flock, where other tasks may hold it as well.
    """

    def __init__(self, target: Path, exclusive: bool) -> None:
        self.target = target
        self.exclusive = exclusive


@contextlib.contextmanager
def directory_lock(
    target: Path, timeout_s: float, on_wait: Callable[[str], None] | None = None
) -> Iterator[DirectoryLock]:
    """Hold the lock of a directory, which need not exist; create its parents.

    The lock is an flock of a hidden file next to the directory. The kernel releases it with the process, so a
    killed task blocks no other. On a file system without flock all tasks get it, and the rename decides.

    Args:
        target: the directory to be written.
        timeout_s: time to wait for another holder.
        on_wait: called with the name of the holder, before the wait and then every ten seconds.

    Raises:
        ArtifactLockError: another task held the lock for longer.
        ArtifactWriteError: the parent directory cannot be created or written.
    """
    path = target.parent / f".{target.name}{_LOCK_SUFFIX}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, exclusive = _acquire(path, timeout_s, on_wait)
    except OSError as error:
        raise write_error(target, error) from error
    try:
        yield DirectoryLock(target, exclusive)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while still held: waiters see that their file is gone and open the new one
        os.close(descriptor)


def publish_directory(lock: DirectoryLock, files: Mapping[str, bytes]) -> Path:
    """Write the locked directory, replacing an existing one.

    Returns:
        The directory.

    Raises:
        ArtifactWriteError: the disk is full, or permission is missing; no partial directory is left, and an
            existing one is kept.
    """
    target = lock.target
    if lock.exclusive:
        remove_stale(target)
    try:
        temporary = target.parent / f".{target.name}{_TEMPORARY_MARK}{secrets.token_hex(8)}"
        temporary.mkdir()
    except OSError as error:
        raise write_error(target, error) from error
    try:
        for name, data in files.items():
            with (temporary / name).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _sync_directory(temporary)
        _rename_over(temporary, target)
    except OSError as error:
        raise write_error(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def remove_stale(target: Path) -> None:
    """Remove temporary directories of killed writers next to `target`, except those that are being written.

    The caller holds the lock of `target`.
    """
    for leftover in target.parent.glob(f".{NAME_PREFIX}*{_TEMPORARY_MARK}*"):
        name = leftover.name[1:].split(_TEMPORARY_MARK)[0]
        if name == target.name:
            shutil.rmtree(leftover, ignore_errors=True)
            continue
        with (
            contextlib.suppress(ArtifactLockError, ArtifactWriteError),
            directory_lock(target.parent / name, timeout_s=0),
        ):
            shutil.rmtree(leftover, ignore_errors=True)


def write_error(target: Path, error: OSError) -> ArtifactWriteError:
    """Return the error for a `target` that cannot be written, with advice."""
    advice = {
        errno.ENOSPC: "free some space there, or choose another compile_dir",
        errno.EDQUOT: "your disk quota is used up: free some space, or choose another compile_dir",
        errno.EACCES: "choose a compile_dir that you may write, or correct its permissions",
        errno.EPERM: "choose a compile_dir that you may write, or correct its permissions",
        errno.EROFS: "the file system is read-only: choose another compile_dir",
        errno.ENOTDIR: "a part of the path is a file: choose another compile_dir",
        errno.EEXIST: "a file is in the way: remove it, or choose another compile_dir",
    }.get(error.errno or 0, "choose another compile_dir")
    return ArtifactWriteError(
        f"cannot write the compile artifact {target}: {error.strerror or error}; nothing was written", advice
    )


# `filelock` does not replace this lock: it does not report to a waiting task who holds the lock, leaves the
# file in place, and refuses file systems without locks unless they report ENOSYS, so all of that would remain
# here. Importing it takes 24 ms. Its lock costs 0.1 ms, and this one 4 ms because it removes its file; a
# compile takes it once.
def _acquire(path: Path, timeout_s: float, on_wait: Callable[[str], None] | None) -> tuple[int, bool]:
    """Return (descriptor of `path` with the lock, whether the lock is exclusive)."""
    deadline = time.monotonic() + timeout_s
    report_at = 0.0
    while True:
        # A symbolic link could name any file of this user, which would be overwritten.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        done = False
        try:
            locked = _try_lock(descriptor)
            done = locked is None or (locked and _is_open_on(descriptor, path))
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another task"
            if done:
                _sign(descriptor)
                return descriptor, bool(locked)
        finally:
            if not done:
                os.close(descriptor)
        if time.monotonic() >= deadline:
            raise ArtifactLockError(
                f"{holder} has been compiling the same program for more than {timeout_s:g} s (lock {path}); "
                "wait for it, or end it and start again"
            )
        if on_wait is not None and time.monotonic() >= report_at:
            on_wait(holder)
            report_at = time.monotonic() + _REPORT_EVERY_S
        time.sleep(_POLL_S)


def _try_lock(descriptor: int) -> bool | None:
    """Return True if locked, False if another task holds the lock, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True


def _is_open_on(descriptor: int, path: Path) -> bool:
    """Return True if `path` still names the open file, which the previous holder may have removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write the holder into the lock file, for the messages of waiting tasks; ignore a full disk."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _rename_over(temporary: Path, target: Path) -> None:
    """Rename `temporary` to `target`; an existing target is moved aside first, then removed."""
    aside = temporary.with_name(temporary.name + "-old")
    if target.is_symlink() or target.exists():
        target.rename(aside)
    try:
        temporary.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    _sync_directory(target.parent)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
