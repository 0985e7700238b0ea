"""Import hooks: functions after the import of a module, contexts around it, and further import paths.

It imports very little: the launchers' interpreter loads it at every start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]
Around = Callable[[ModuleType], AbstractContextManager[None]]

USER_PATHS_VARIABLE = "CSRUN_PYTHONPATH"
"""Passes the user's PYTHONPATH from a launcher to the interpreter of programs."""


def append_user_paths() -> None:
    """Append the user's PYTHONPATH to `sys.path`.

    Folders of another version of Python are omitted: their extensions cannot be loaded.
    """
    # Last, because modules of a site's `module load` could replace packages that the toolkit needs.
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for entry in os.environ.get(USER_PATHS_VARIABLE, "").split(os.pathsep):
        path = os.path.abspath(entry)  # noqa: PTH100 - pathlib is slow to import
        versions = [part for part in path.split("/") if part.startswith("python3.")]
        if entry and path not in sys.path and versions in ([], [own]):
            sys.path.append(path)


def on_import(after: Mapping[str, Change], around: Mapping[str, Around] | None = None) -> None:
    """Install functions to call after the import of modules, and contexts for their import.

    Args:
        after: Function by the name of the module; it is not called for modules that are imported already.
        around: Context by the name of the module; `package.*` means all modules directly in a package.
    """
    finder: Any = _Finder(around or {}, after)
    sys.meta_path.insert(0, finder)


# Without the base classes of importlib.abc, whose import takes 20 ms at every start of an interpreter.
class _Finder:
    """Finder that wraps the loaders of modules with contexts and functions."""

    def __init__(self, around: Mapping[str, Around], after: Mapping[str, Change]) -> None:
        self._around = around
        self._after = after
        self._searching: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module with a wrapped loader; None for other modules."""
        own = self._around.get(fullname) or self._around.get(f"{fullname.rpartition('.')[0]}.*")
        if fullname in self._searching or not (own or fullname in self._after):
            return None
        self._searching.add(fullname)
        try:
            spec = next(filter(None, (self._ask(finder, fullname, path) for finder in sys.meta_path)), None)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            around: Around = own or (lambda module: nullcontext())
            loader: Any = _Loader(spec.loader, around, self._after.get(fullname))
            spec.loader = loader
        return spec

    @staticmethod
    def _ask(finder: Any, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        spec: ModuleSpec | None = finder.find_spec(fullname, path, None)
        return spec


class _Loader:
    """Wrapper of a loader with a context and a function; restores the loader before the module runs."""

    def __init__(self, own: Any, around: Around, after: Change | None) -> None:
        self._own = own
        self._around = around
        self._after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with the wrapped loader."""
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module in the context, then the function."""
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        with self._around(module):
            self._own.exec_module(module)
        if self._after is not None:
            self._after(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
