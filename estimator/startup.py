"""The first import of TensorFlow in a process, without start-up lines and rarely used modules."""

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

from cs_toolkit.garbage import infrequent_collection
from cs_toolkit.import_hooks import on_import
from cs_toolkit.random_numbers import preserve_random_state

# TensorFlow 2.21 writes these at every start, regardless of TF_CPP_MIN_LOG_LEVEL.
_START_UP_LINES = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")

_KERAS = frozenset(["keras", "tf_keras"])

# Modules that import large packages and that few programs use.
_LAZY_MODULES = frozenset(
    [
        *(f"{keras}.wrappers" for keras in ("keras", "keras._tf_keras.keras")),  # for scikit-learn and SciPy
        *(f"tensorflow._api.v2.{version}lite" for version in ("", "compat.v1.", "compat.v2.")),  # for JAX
    ]
)


def import_tensorflow() -> None:
    """Import TensorFlow, as the first import in a process, without the lines on how it was built."""
    with suppress_start_up_lines(), lazy_submodules():
        import_module("tensorflow")


@contextmanager
def lazy_submodules() -> Iterator[None]:
    """Import TensorFlow in the body in little more than half of the time, by making submodules lazy.

    Keras, its wrappers for scikit-learn, and TensorFlow Lite with JAX are imported on first use.
    """
    # TensorFlow imports Keras last, to register Keras' optimizers for SavedModels, and works without it.
    finder = next((found for found in sys.meta_path if isinstance(found, _LazyFinder)), None)
    if finder is None:
        finder = _LazyFinder()
        sys.meta_path.insert(0, finder)
        # Importing Keras draws random numbers, and the program may have seeded the generators before.
        on_import({}, dict.fromkeys(_KERAS, lambda module: preserve_random_state()))
    finder.refused = _KERAS
    try:
        with infrequent_collection():
            yield
    finally:
        finder.refused = frozenset()


@contextmanager
def suppress_start_up_lines() -> Iterator[None]:
    """Import TensorFlow in the body without start-up lines; later it logs warnings and errors only.

    If the user has set TF_CPP_MIN_LOG_LEVEL, it stays as it is. All other output appears after the import.
    """
    # TensorFlow's C++ code writes to the file descriptor of stderr, bypassing Python.
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


class _LazyFinder(MetaPathFinder):
    """Finds modules that are imported on first use of an attribute, and refuses packages.

    Attributes:
        refused: Packages that can be found but not imported.
    """

    def __init__(self) -> None:
        self.refused: frozenset[str] = frozenset()
        self._lazy = set(_LAZY_MODULES)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a lazy or refused module; None for all other modules."""
        if fullname not in self._lazy and fullname not in self.refused:
            return None
        if fullname == "tensorflow._api.v2.lite":
            # Otherwise its later import would rebind the name `tf.lite`.
            import_module("tensorflow.lite")
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Refusal() if fullname in self.refused else _LazyLoader(self._lazy)
        return spec


class _Refusal(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise ImportError(f"{spec.name} is imported on first use", name=spec.name)


class _LazyLoader(Loader):
    def __init__(self, lazy: set[str]) -> None:
        self._lazy = lazy

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name, self._lazy)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _LazyModule(ModuleType):
    """A proxy of a module, which imports the module on first use of an attribute."""

    # Not importlib.util.LazyLoader: modules of TensorFlow replace themselves in sys.modules, and `inspect`,
    # which asks every module for its file, would import them all.

    def __init__(self, name: str, lazy: set[str]) -> None:
        super().__init__(name)
        self._lazy = lazy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        return getattr(self._module(), name)

    def __dir__(self) -> list[str]:
        return dir(self._module())

    def _module(self) -> ModuleType:
        if self.__name__ in self._lazy:
            self._lazy.discard(self.__name__)
            sys.modules.pop(self.__name__, None)
        return import_module(self.__name__)
