"""Errors of the TensorFlow front end, under the names that programs catch, and the end of a program.

Those that any front end can raise are defined in `cs_runtime.errors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from cs_runtime import exits
from cs_runtime.errors import (
    CallError,
    CheckpointReadError,
    CheckpointWriteError,
    ComponentTypeError,
    CpuLimitError,
    InputFnError,
    InputShapeError,
    UnknownFieldError,
    UnsupportedOnCsError,
)
from cs_runtime.errors import FrontEndError as EstimatorError

__all__ = [
    "CallError",
    "CheckpointReadError",
    "CheckpointWriteError",
    "ComponentTypeError",
    "CpuLimitError",
    "EstimatorError",
    "InputFnError",
    "InputShapeError",
    "ModelFnError",
    "UnknownFieldError",
    "UnsupportedOnCsError",
    "essence",
]


class ModelFnError(CallError):
    """`model_fn` has the wrong arguments or returned something unusable."""


def essence(error: Exception) -> str:
    """Return the message of an error without the graph and stacks that TensorFlow adds to it."""
    text = str(getattr(error, "message", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip() not in ("", "Graph execution error:")]
    after_node = [later for line, later in pairwise(lines) if line.startswith("Node: ")]
    return next(iter(after_node or lines), type(error).__name__)


@contextmanager
def report_errors(crash_dir: Path | str | None = None) -> Iterator[None]:
    """Report errors in the body as the toolkit's own commands do, and exit with their exit code.

    Args:
        crash_dir: Directory of a crash file, for errors of the toolkit; None for the current directory.
    """
    with exits.report_errors(crash_dir, essence):
        yield


def report_error(error: BaseException, crash_dir: Path | str | None = None) -> int:
    """Print the error that ends a program, for the user; return the exit code."""
    return exits.report_error(error, crash_dir, essence)
