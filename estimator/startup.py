"""The first import of TensorFlow in a process, quietly and without what few programs use."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from cs_toolkit.garbage import seldom_searched
from cs_toolkit.import_hooks import on_import
from cs_toolkit.random_numbers import random_numbers_kept

# TensorFlow 2.21 writes these at every start, whatever TF_CPP_MIN_LOG_LEVEL says.
_START_UP_LINES = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")

_KERAS = frozenset(["keras", "tf_keras"])

_LATE_MODULES = frozenset(
    [
        *(f"{keras}.wrappers" for keras in ("keras", "keras._tf_keras.keras")),  # for scikit-learn and SciPy
        *(f"tensorflow._api.v2.{version}lite" for version in ("", "compat.v1.", "compat.v2.")),  # for JAX
    ]
)
"""Modules that import others of considerable size, and which few programs use."""


def import_tensorflow() -> None:
    """Imports TensorFlow without the lines on how it was built; everything else that it writes appears.

    For the first import in a process; C++ writes past Python to the descriptor of stderr.
    """
    with without_start_up_lines(), only_what_is_used():
        import_module("tensorflow")


@contextmanager
def only_what_is_used() -> Iterator[None]:
    """An import of TensorFlow in the body takes little more than half of the time.

    Keras, and TensorFlow Lite with JAX, are imported when something of them is used first; what Keras has for
    scikit-learn likewise, from now on. TensorFlow imports Keras at its end because that makes its optimizers
    known to SavedModels, and does without where it is not installed.
    """
    finder = next((found for found in sys.meta_path if isinstance(found, _LateFinder)), None)
    if finder is None:
        finder = _LateFinder()
        sys.meta_path.insert(0, finder)
        # The import draws numbers, and a program may have seeded the generators before.
        on_import({}, dict.fromkeys(_KERAS, lambda module: random_numbers_kept()))
    finder.refused = _KERAS
    try:
        with seldom_searched():
            yield
    finally:
        finder.refused = frozenset()


@contextmanager
def without_start_up_lines() -> Iterator[None]:
    """The body imports TensorFlow, which says nothing there or later but warnings and errors.

    TF_CPP_MIN_LOG_LEVEL of the user decides where it is set.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            kept = [line for line in written if not any(known in line for known in _START_UP_LINES)]
            os.write(2, b"".join(kept))


class _LateFinder(MetaPathFinder):
    """Finds modules that are imported when an attribute of them is used first, and refuses others.

    Attributes:
        refused: Packages that are found, as far as a search goes, and cannot be imported.
    """

    def __init__(self) -> None:
        self.refused: frozenset[str] = frozenset()
        self._late = set(_LATE_MODULES)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Like Python's own; None for all other modules."""
        if fullname not in self._late and fullname not in self.refused:
            return None
        if fullname == "tensorflow._api.v2.lite":
            import_module("tensorflow.lite")  # else it would take the name `tf.lite` when it comes later
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Refusal() if fullname in self.refused else _LateLoader(self._late)
        return spec


class _Refusal(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise ImportError(f"{spec.name} is imported when a program uses it", name=spec.name)


class _LateLoader(Loader):
    def __init__(self, late: set[str]) -> None:
        self._late = late

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LateModule(spec.name, self._late)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _LateModule(ModuleType):
    """Stands for a module until something of it is used; after that it is another name of the module.

    Not `importlib.util.LazyLoader`: modules of TensorFlow put an object in their own place, and whoever looks
    through all modules for the file of one (`inspect`) would import them.
    """

    def __init__(self, name: str, late: set[str]) -> None:
        super().__init__(name)
        self._late = late

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        return getattr(self._module(), name)

    def __dir__(self) -> list[str]:
        return dir(self._module())

    def _module(self) -> ModuleType:
        if self.__name__ in self._late:
            self._late.discard(self.__name__)
            sys.modules.pop(self.__name__, None)
        return import_module(self.__name__)
