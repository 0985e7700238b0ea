"""`error.json`: why a program was not compiled, for programs that look at it instead of at the log.

It lies in the compile directory, where artifacts are, and beside the logs where a launcher has started a job:
there the chief leaves it for whatever else ends it, too. A compilation that succeeds removes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cs_runtime.errors import ModelDirError
from cs_runtime.files import write_json
from cs_toolkit.errors import ProgramFault, WriteError, exit_code_of
from csrun.errors import RoleError
from csrun.roles import TaskInfo

log = logging.getLogger("cs_runtime")

ERROR_FILE = "error.json"

_LOG_DIR = "CSRUN_LOG_DIR"


@contextmanager
def noted_failures(compile_dir: Path) -> Iterator[None]:
    """Leaves `error.json` for an error of the body, and removes an older one when the body succeeds.

    Args:
        compile_dir: where artifacts are.
    """
    paths = _paths(compile_dir)
    try:
        yield
    except Exception as error:
        _write(paths, error)
        raise
    for path in paths:
        with suppress(OSError):  # a leftover must not fail a compilation that went well
            path.unlink(missing_ok=True)


def note_beside_logs(error: Exception) -> None:
    """Leaves `error.json` for an error that ends this process, if it is the chief of a launcher's job."""
    directory = os.environ.get(_LOG_DIR)
    with suppress(RoleError):
        if directory and TaskInfo.from_environment().role == "chief":
            _write([Path(directory) / ERROR_FILE], error)


def error_report(error: Exception) -> dict[str, Any]:
    """What `error.json` says of an error.

    `kind` is its class, `exit_code` that of the process, `message` what the user reads. `faults` has an entry
    for everything that is wrong, with the fields of `cs_toolkit.errors.ProgramFault`; null is not known.
    Where kernels do not fit, `shortage` has the figures (`cgc.errors.Shortage`).
    """
    faults: tuple[ProgramFault, ...] = getattr(error, "details", ())
    shortage = getattr(error, "shortage", None)
    report = {
        "kind": type(error).__name__,
        "message": str(error),
        "exit_code": exit_code_of(error),
        "faults": [asdict(fault) for fault in faults or (_only_fault(error),)],
    }
    if shortage is not None:
        report["shortage"] = asdict(shortage)
    return report


def _only_fault(error: Exception) -> ProgramFault:
    """An error without a list of faults as the only one; its `fault_fields` says what it is about."""
    fields: Mapping[str, Any] = getattr(error, "fault_fields", {})
    return ProgramFault(kind=type(error).__name__, message=str(error), **fields)


def _paths(compile_dir: Path) -> list[Path]:
    directories = [compile_dir]
    if os.environ.get(_LOG_DIR):
        directories.append(Path(os.environ[_LOG_DIR]))
    return [directory / ERROR_FILE for directory in directories]


def _write(paths: list[Path], error: Exception) -> None:
    for path in paths:
        try:
            write_json(path, error_report(error))
        except ModelDirError as second:
            if not isinstance(error, WriteError):  # which say so themselves
                log.warning("%s was not written: %s", path, second)
