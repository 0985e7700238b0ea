"""The first import of TensorFlow in a process, quietly and without what no program here uses."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

from cs_runtime.garbage import seldom_searched

# TensorFlow 2.21 writes these at every start, whatever TF_CPP_MIN_LOG_LEVEL says.
_START_UP_LINES = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")

_LATE_MODULES = frozenset(["keras.wrappers", "keras._tf_keras.keras.wrappers"])
"""Keras's estimators for scikit-learn, for which it imports that and half of SciPy: a fifth of the time."""


@seldom_searched()
def import_tensorflow() -> None:
    """Imports TensorFlow without the lines on how it was built; everything else that it writes appears.

    For the first import in a process; C++ writes past Python to the descriptor of stderr. What Keras has for
    scikit-learn is loaded when something of it is used first.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with _without_start_up_lines(), _late_modules():
        import_module("tensorflow")


@contextmanager
def _without_start_up_lines() -> Iterator[None]:
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


@contextmanager
def _late_modules() -> Iterator[None]:
    finder = _LateFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _LateFinder(MetaPathFinder):
    """Finds modules that are to be loaded when an attribute of them is used first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Like Python's own; None for all other modules."""
        if fullname not in _LATE_MODULES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, Loader):
            spec.loader = LazyLoader(spec.loader)
        return spec
