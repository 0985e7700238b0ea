"""The lock of a `model_dir` during a training run, so that a second job there is noticed."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cs_runtime.errors import ModelDirError, ModelDirInUseError
from cs_toolkit.files import parse_json
from csrun.tasks.roles import TaskInfo

log = logging.getLogger("cs_runtime")

FILE_NAME = ".training.lock"

# Time in which the process of a run that is being ended may still hold the lock.
_GRACE_S = 2.0
_POLL_S = 0.05
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})

# Locks that this process holds, by path: a training run may be within another one.
_held: Counter[Path] = Counter()


@contextmanager
def training_lock(model_dir: Path) -> Iterator[None]:
    """Hold the lock of a directory, which is created if necessary, during the body.

    The kernel releases it when the process ends, in any way. Without locks in the file system, every run gets
    it.

    Raises:
        ModelDirInUseError: Another process holds it.
        ModelDirError: The directory cannot be created or written.
    """
    path = model_dir.absolute() / FILE_NAME
    if _held[path]:
        descriptor = None
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _acquire(path)
        except OSError as error:
            raise ModelDirError(model_dir, error) from error
    _held[path] += 1
    try:
        yield
    finally:
        _held[path] -= 1
        if descriptor is not None:
            with suppress(OSError):
                path.unlink()  # while still held: see `_is_open_on`
            os.close(descriptor)


def _acquire(path: Path) -> int:
    deadline = time.monotonic() + _GRACE_S
    while True:
        # A symbolic link could name any file of this user, which would be overwritten.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            # POSIX locks, not flock: processes that this one forks, such as those of a DataLoader, would keep
            # an flock after the end of this process. They end with the first descriptor of the file that
            # this process closes, so nothing else here may open it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                log.debug("%s cannot be locked: %s", path, error)
                return descriptor
            holder = _read_holder(descriptor)
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            if time.monotonic() > deadline:
                raise ModelDirInUseError(path.parent, holder) from None
            time.sleep(_POLL_S)
            continue
        if _is_open_on(descriptor, path):
            _write_holder(descriptor)
            return descriptor
        os.close(descriptor)


def _is_open_on(descriptor: int, path: Path) -> bool:
    """Return True if `path` still names the open file, which its last holder may have removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int) -> None:
    """Write who holds the lock, for the error of others; ignore a full disk."""
    holder = {
        "job": TaskInfo.from_environment().job_id,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{json.dumps(holder)}\n".encode(), 0)


def _read_holder(descriptor: int) -> str:
    try:
        holder = parse_json(os.pread(descriptor, 4096, 0))
        return f"job {holder['job']}, process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"a process that has locked {FILE_NAME}"
