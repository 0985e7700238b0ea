"""The outer edge of a `run.py` with TensorFlow: `cs_runtime.exits`, given the essence of its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cs_runtime import exits
from estimator.errors import essence


@contextmanager
def report_errors(crash_dir: Path | str | None = None) -> Iterator[None]:
    """Ends the process as the toolkit's own commands do, see `cs_runtime.exits.report_errors`."""
    with exits.report_errors(crash_dir, essence):
        yield


def told(error: BaseException, crash_dir: Path | str | None = None) -> int:
    """Writes what a user has to know of an error that ends the program; the exit code."""
    return exits.told(error, crash_dir, essence)
