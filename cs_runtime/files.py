"""Atomic writes of small files in `model_dir`."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cs_runtime.errors import ModelDirError
from cs_toolkit.files import replace_file

_WRITE_FAILURES = (
    errno.ENOSPC,
    errno.EACCES,
    errno.EROFS,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EPERM,
    errno.ENOENT,
)


def check_writable(directory: Path) -> None:
    """Create the directory if necessary, and check that a file can be written there.

    Raises:
        ModelDirError: The directory is not writable or full.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".probe-") as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise ModelDirError(directory, error) from error


def make_directory(path: Path) -> None:
    """Create a directory, and those above it, unless it exists.

    Raises:
        ModelDirError: The directory cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelDirError(path, error) from error


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a file atomically, so that a reader never sees part of it.

    Args:
        path: Path of the file; its directory is created if necessary.
        text: Content.
        durable: Wait until the file is on the disk.

    Raises:
        ModelDirError: The directory is not writable or full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text, durable=durable)
    except OSError as error:
        raise ModelDirError(path.parent, error) from error


def write_json(path: Path, data: Mapping[str, Any], *, durable: bool = False) -> None:
    """Write sorted, indented JSON, the format of the original's `performance.json`, as `write_text` does."""
    write_text(path, json.dumps(data, indent=4, sort_keys=True, default=str) + "\n", durable=durable)


def write_failure_cause(error: BaseException) -> str | None:
    """Return the operating system's reason for a failed write; None if it gives none."""
    # Libraries raise their own errors, with the operating system's reason somewhere in the message. Errors
    # of PyTorch do not mention it, but occur while that of Python's file is handled.
    found: BaseException | None = error
    while found is not None:
        text = str(found)
        cause = next((cause for cause in map(os.strerror, _WRITE_FAILURES) if cause in text), None)
        if cause is None and isinstance(found, OSError) and found.errno:
            cause = os.strerror(found.errno)
        if cause is not None:
            return cause
        found = found.__cause__ or found.__context__
    return None
