"""The folder of the files that AutoGraph generates, which a killed process does not leave for long.

TensorFlow writes a Python file for each function that it converts, and removes it when the process ends
normally. Here each process has a folder that it locks. The kernel releases the lock when the process ends in
any way, and the next process that generates a file removes the folders that are not locked.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from cs_toolkit.import_hooks import on_import

_LOADER = "tensorflow.python.autograph.pyct.loader"
_PREFIX = "autograph-"


@cache
def contain_generated_files() -> None:
    """Let AutoGraph write to a folder of this process, also if TensorFlow is imported later."""
    if _LOADER in sys.modules:
        _change(sys.modules[_LOADER])
    else:
        on_import({_LOADER: _change})


def _change(loader: ModuleType) -> None:
    # Not `tempfile.tempdir`, which temporary files of the program use, too.
    vars(loader)["tempfile"] = _TemporaryFiles


class _TemporaryFiles:
    """Replaces the module `tempfile` in TensorFlow's loader of generated files."""

    @staticmethod
    def NamedTemporaryFile(**arguments: Any) -> Any:  # noqa: N802 - the name in `tempfile`
        """Open a temporary file in the folder of this process."""
        return tempfile.NamedTemporaryFile(**arguments, dir=_own_folder(os.getpid()))


@cache
def _own_folder(pid: int) -> str:
    """Make the folder of this process, and remove those of processes that have ended."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        # The descriptor stays open until the process ends. Another process may have removed the folder
        # before it was locked.
        if _lock(Path(folder)) is not None and Path(folder).is_dir():
            # TensorFlow registers the removal of its files later, so they are removed before.
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return folder


def _lock(folder: Path) -> int | None:
    """Return a descriptor that holds the lock of a folder; None if it is locked, or is not of this user."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
        except OSError:
            pass
        os.close(descriptor)
    return None
