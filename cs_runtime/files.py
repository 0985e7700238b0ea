"""Writing small files whole or not at all."""

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
    """Makes the directory and proves that a file can be written there.

    Raises:
        ModelDirError: it cannot.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".probe-") as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise ModelDirError(directory, error) from error


def write_text(path: Path, text: str) -> None:
    """Replaces a file in one step, so that a reader never sees half of it.

    Raises:
        ModelDirError: the directory is not writable or full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise ModelDirError(path.parent, error) from error


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes sorted, indented JSON, as the original's `performance.json`."""
    write_text(path, json.dumps(data, indent=4, sort_keys=True, default=str) + "\n")


def write_failure(error: Exception) -> str | None:
    """The cause of a failed write in a few words of the operating system; None where it has none.

    Libraries hide it in a text of their own.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    causes = map(os.strerror, _WRITE_FAILURES)
    return next((cause for cause in causes if cause in str(error)), None)
