"""What happens when the launchers' interpreter starts: nothing visible; changes wait for their modules,
and what a program does not catch ends it as the toolkit's own commands end.

A program that does not import TensorFlow notices nothing, and pays some milliseconds.
"""

from __future__ import annotations

# modelzoo/__init__.py of the public clients uses importlib.util without importing it.
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, TracebackType
from typing import Any

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"

Change = Callable[[ModuleType], None]
Around = Callable[[ModuleType], AbstractContextManager[None]]

_OWN_IMPORTS = frozenset({"estimator", "estimator.importing"})
"""Modules of the front end that are imported here."""


def start(sitecustomize: str) -> None:
    """Installs the changes, and runs the sitecustomize module that this one stands in front of, if any.

    Args:
        sitecustomize: path of the one in `modules`.
    """
    # Only here: this module itself has to stay importable without them.
    from cs_compat.tensorflow.changes import CHANGES

    finder: Any = _Finder({"tensorflow": _first_import}, CHANGES)
    sys.meta_path.insert(0, finder)
    sys.excepthook = end_program
    own = os.path.dirname(sitecustomize)  # noqa: PTH120 - pathlib would have to be imported for it
    others = [folder for folder in sys.path if folder != own]
    found = PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


def end_program(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends a program with an error that nobody has caught, as `estimator.report_errors` does.

    So an expected error is one message with its exit code in programs that know nothing of `report_errors`.
    Errors of programs that do not use the toolkit are Python's matter, but for a missing module.
    """
    if any(name.startswith("estimator.") for name in sys.modules.keys() - _OWN_IMPORTS):
        from estimator.cli import told

        # Python takes the exit code of a SystemExit that its hook raises.
        raise SystemExit(told(error.with_traceback(trace)))
    if "cstorch" in sys.modules:
        from cs_runtime.exits import program_ended
        from cstorch.errors import essence

        raise SystemExit(program_ended(error.with_traceback(trace), essence))
    sys.__excepthook__(kind, error, trace)
    if isinstance(error, ModuleNotFoundError):
        from csrun.missing_modules import hint

        sys.stderr.write(f"error: {hint(error)}\n")


def choose_keras(module: ModuleType) -> None:
    """Makes `tf.keras` Keras 2 (`tf_keras`), which programs of that time were written for.

    Not where the user has decided by TF_USE_LEGACY_KERAS, where tf_keras is not installed, and where the
    program has imported Keras 3 by its own name before TensorFlow.
    """
    if LEGACY_KERAS in os.environ or "keras" in sys.modules:
        return
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ[LEGACY_KERAS] = "1"


@contextmanager
def _first_import(module: ModuleType) -> Iterator[None]:
    """Around the import of TensorFlow: which Keras it has, and what it need not import."""
    from estimator.importing import only_what_is_used

    choose_keras(module)
    with only_what_is_used():
        yield


# The base classes of importlib.abc are left out: their import costs 20 ms, at every start of an interpreter.
class _Finder:
    """Lets contexts stand around the import of modules, and functions run right after it."""

    def __init__(self, around: Mapping[str, Around], after: Mapping[str, Change]) -> None:
        self._around = around
        self._after = after
        self._searching: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec with a loader that runs the functions; None for all other modules."""
        if fullname in self._searching or not (fullname in self._around or fullname in self._after):
            return None
        self._searching.add(fullname)
        try:
            spec = next(filter(None, (self._ask(finder, fullname, path) for finder in sys.meta_path)), None)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            around = self._around.get(fullname, lambda module: nullcontext())
            loader: Any = _Loader(spec.loader, around, self._after.get(fullname))
            spec.loader = loader
        return spec

    @staticmethod
    def _ask(finder: Any, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
        spec: ModuleSpec | None = finder.find_spec(fullname, path, None)
        return spec


class _Loader:
    """The module's own loader with a context and a function; gives the module back to it before it runs."""

    def __init__(self, own: Any, around: Around, after: Change | None) -> None:
        self._own = own
        self._around = around
        self._after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader."""
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module in the context, then the function."""
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        with self._around(module):
            self._own.exec_module(module)
        if self._after is not None:
            self._after(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
