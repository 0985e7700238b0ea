"""Something to be done as soon as a module has been imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Any


@contextmanager
def on_import(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Acts right after the first import of a module meanwhile; at once where it has been imported already."""
    if name in sys.modules:
        action()
        yield
        return
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds what the other finders find."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The spec of the module with a loader that acts, once; others are found by the next finder."""
        if name != self._name:
            return None
        self._name = ""  # the search for it comes by here as well
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_act(module: Any) -> None:
                load(module)
                self._action()

            spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
