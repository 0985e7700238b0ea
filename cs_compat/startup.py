"""Start of the launchers' interpreter: installs changes to libraries, which are applied on import.

An error that a program does not catch ends it like a command of the toolkit. A program that imports no
framework sees no difference, except for some milliseconds.
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

# Modules of the front end that this module imports.
_OWN_IMPORTS = frozenset({"estimator", "estimator.startup"})


def start(sitecustomize: str) -> None:
    """Install the changes, and run the sitecustomize module that the one in `modules` hides, if any.

    Args:
        sitecustomize: Path of the one in `modules`.
    """
    # Not at the top: this module has to be importable without them.
    from cs_compat import original_modules
    from cs_compat.tensorflow.changes import CHANGES
    from cs_compat.torch import changes, placeholders

    on_import({**CHANGES, **changes.CHANGES}, {"tensorflow": _first_import, **changes.AROUND})
    placeholders.install()
    hidden: Any = _OneGeneration()
    sys.meta_path.insert(0, hidden)
    sys.excepthook = end_program
    own = os.path.dirname(sitecustomize)  # noqa: PTH120 - pathlib would have to be imported for it
    original_modules.install(
        own,
        weight_streaming=os.environ.get("CSRUN_EXECUTION") == "weight_streaming",
        pytorch=bool(os.environ.get("CSRUN_PT")),
    )
    others = [folder for folder in sys.path if folder != own]
    found = PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))
    append_user_paths()
    # Before the program's folder enters sys.path: a package of this name there is merged with ours.
    importlib.import_module("cerebras")


class _OneGeneration:
    """Hides `cerebras.framework` from TensorFlow programs of the appliance generation.

    They check which of the original's packages exists: this one or `cerebras_appliance`. Release 1.8 has no
    TensorFlow branch for this one; its programs have the name of a device as an argument.
    """

    _DEVICES = frozenset({"CSX", "CPU", "GPU"})

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Find nothing, so that the next finder continues the search.

        Raises:
            ModuleNotFoundError: The module is hidden.
        """
        if fullname != "cerebras.framework" or "torch" in sys.modules or "tensorflow" not in sys.modules:
            return
        if self._DEVICES.intersection(sys.argv):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def end_program(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End a program with an uncaught error as `estimator.report_errors` does.

    An expected error is then one message and its exit code, also in programs that do not use `report_errors`.
    Python reports errors of programs that do not use the toolkit; a hint is added for a missing module.
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
    """Make `tf.keras` Keras 2 (`tf_keras`), for which programs of that time were written.

    Not if the user has set TF_USE_LEGACY_KERAS, if tf_keras is not installed, or if the program has imported
    Keras 3 by its own name before TensorFlow.
    """
    if LEGACY_KERAS in os.environ or "keras" in sys.modules:
        return
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ[LEGACY_KERAS] = "1"


@contextmanager
def _first_import(module: ModuleType) -> Iterator[None]:
    """Import TensorFlow in the body with the right Keras, with lazy submodules and without start-up lines."""
    from estimator.startup import lazy_submodules, suppress_start_up_lines

    choose_keras(module)
    # Tasks of a job write these lines to their logs; the terminal of the job omits them.
    quiet = nullcontext() if os.environ.get("CSRUN_LOG_DIR") else suppress_start_up_lines()
    with quiet, lazy_submodules():
        yield
