"""What happens when the launchers' interpreter starts: nothing visible; changes wait for their modules,
and what a program does not catch ends it as the toolkit's own commands end.

A program that does not import TensorFlow notices nothing, and pays some milliseconds.
"""

from __future__ import annotations

# modelzoo/__init__.py of the public clients uses importlib.util without importing it.
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import PathFinder
from types import ModuleType, TracebackType
from typing import Any

from cs_toolkit.import_hooks import append_user_paths, on_import

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"

# Modules of the front end that are imported here.
_OWN_IMPORTS = frozenset({"estimator", "estimator.startup"})


def start(sitecustomize: str) -> None:
    """Installs the changes, and runs the sitecustomize module that this one stands in front of, if any.

    Args:
        sitecustomize: path of the one in `modules`.
    """
    # Only here: this module itself has to stay importable without them.
    from cs_compat.tensorflow.changes import CHANGES
    from cs_compat.torch import changes, placeholders

    on_import({**CHANGES, **changes.CHANGES}, {"tensorflow": _first_import, **changes.AROUND})
    placeholders.install()
    hidden: Any = _OneGeneration()
    sys.meta_path.insert(0, hidden)
    sys.excepthook = end_program
    own = os.path.dirname(sitecustomize)  # noqa: PTH120 - pathlib would have to be imported for it
    others = [folder for folder in sys.path if folder != own]
    found = PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))
    append_user_paths()
    # Before the program's folder enters sys.path: a package of this name there is merged, replacing none.
    importlib.import_module("cerebras")


class _OneGeneration:
    """Hides `cerebras.framework` from TensorFlow programs of the appliance generation.

    They ask which of the original's packages exists: the one with that name, or `cerebras_appliance`. Release
    1.8 has no TensorFlow branch for the former; its programs name a device as a word of their command line.
    """

    _DEVICES = frozenset({"CSX", "CPU", "GPU"})

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Find nothing; the search goes on with the next finder.

        Raises:
            ModuleNotFoundError: The module is hidden.
        """
        if fullname != "cerebras.framework" or "torch" in sys.modules or "tensorflow" not in sys.modules:
            return
        if self._DEVICES.intersection(sys.argv):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def end_program(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ends a program with an error that nobody has caught, as `estimator.report_errors` does.

    So an expected error is one message with its exit code in programs that know nothing of `report_errors`.
    Errors of programs that do not use the toolkit are Python's matter, but for a missing module.
    """
    if any(name.startswith("estimator.") for name in sys.modules.keys() - _OWN_IMPORTS):
        from estimator.errors import report_error

        # Python takes the exit code of a SystemExit that its hook raises.
        raise SystemExit(report_error(error.with_traceback(trace)))
    if "cstorch" in sys.modules:
        from cs_runtime.exits import report_uncaught_error
        from cstorch.errors import essence

        raise SystemExit(report_uncaught_error(error.with_traceback(trace), essence))
    sys.__excepthook__(kind, error, trace)
    if isinstance(error, ImportError | AttributeError):
        from csrun.missing_modules import hint

        if text := hint(error):
            sys.stderr.write(f"error: {text}\n")


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
    """Around the import of TensorFlow: which Keras it has, what it need not import and need not say.

    The tasks of a job keep all lines in their logs, and the job's terminal leaves them out.
    """
    from estimator.startup import lazy_submodules, suppress_start_up_lines

    choose_keras(module)
    quiet = nullcontext() if os.environ.get("CSRUN_LOG_DIR") else suppress_start_up_lines()
    with quiet, lazy_submodules():
        yield
