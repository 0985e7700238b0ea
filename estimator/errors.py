"""What can go wrong in the TensorFlow front end, under the names that its programs catch.

What any front end may have to tell is defined in `cs_runtime.errors`.
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
    suggestion,
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
    "suggestion",
]


class ModelFnError(CallError):
    """`model_fn` has the wrong arguments or returned something that cannot be used."""


def essence(error: Exception) -> str:
    """What an error says, without the graph and the stacks that TensorFlow puts around it."""
    text = str(getattr(error, "message", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip() not in ("", "Graph execution error:")]
    after_node = [later for line, later in pairwise(lines) if line.startswith("Node: ")]
    return next(iter(after_node or lines), type(error).__name__)


@contextmanager
def report_errors(crash_dir: Path | str | None = None) -> Iterator[None]:
    """Ends the process as the toolkit's own commands do, see `cs_runtime.exits.report_errors`."""
    with exits.report_errors(crash_dir, essence):
        yield


def told(error: BaseException, crash_dir: Path | str | None = None) -> int:
    """Writes what a user has to know of an error that ends the program; the exit code."""
    return exits.report_error(error, crash_dir, essence)
