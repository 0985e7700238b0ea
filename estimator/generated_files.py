"""The folder of the files that AutoGraph generates, which a killed process does not leave for long.

TensorFlow writes a Python file for each function that it converts, and removes it when the process ends
normally. Here each process has a temporary directory for them.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from contextlib import ExitStack
from functools import cache
from types import ModuleType
from typing import Any

from cs_toolkit.import_hooks import on_import
from cs_toolkit.temporary import temporary_directory

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
    """Make the folder of this process."""
    stack = ExitStack()
    # TensorFlow registers the removal of its files later, so they are removed before.
    atexit.register(stack.close)
    return str(stack.enter_context(temporary_directory(_PREFIX)))
