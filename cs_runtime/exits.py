"""The outer edge of a user's `run.py`: expected failures become one message and an exit code."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from cs_runtime.errors import ModelDirError
from cs_runtime.files import write_json
from cs_toolkit.errors import EXIT_FAILURE, ProgramFault, WriteError, exit_code_of
from cs_toolkit.garbage import leave_at_exit
from cs_toolkit.source_files import innermost_user_line
from csrun.errors import RoleError
from csrun.missing_modules import hint
from csrun.tasks.roles import TaskInfo

_NAMES_A_LINE = re.compile(r"\.py:\d+")

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

Essence = Callable[[Exception], str]
"""What an error of a framework says, in a line, without what the framework puts around it."""


def first_line(error: Exception) -> str:
    """The first line of a message; of an empty one the name of the class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def report_errors(crash_dir: Path | str | None = None, essence: Essence = first_line) -> Iterator[None]:
    """Ends the process as the toolkit's own commands do; a decorator of `main`, or for a with statement.

    An error with an `exit_code` prints its message and exits with that code. Ctrl-C exits with 130. What the
    program's own code or its framework raises shows its traceback and exits with 1. What the toolkit's code
    raises is a bug of it: the traceback goes into a crash file too, and the exit code is 3. In a job of a
    launcher the chief leaves `error.json` beside the logs.

    Args:
        crash_dir: Where a crash file goes; the current directory when None.
        essence: Of what the framework raises.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(told(error, crash_dir, essence))


def report_at_exit(failed: Callable[[BaseException], None], essence: Essence = first_line) -> None:
    """Ends this process as `report_errors` does, where the program's main is not ours to decorate.

    What is in its memory is left to the operating system, see `leave_at_exit`. A program that has a hook for
    its errors keeps it; the launchers' own asks `program_ended`. Call this before anything else registers
    what is to happen at exit: the exit code is set when all of that has been done.

    Args:
        failed: Is given the error that the program ends by.
        essence: Of what the framework raises.
    """
    if failed not in _failed:
        _failed.append(failed)
    leave_at_exit()
    if sys.excepthook is not sys.__excepthook__:
        return
    code = 0

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        nonlocal code
        code = program_ended(error, essence)

    def leave() -> None:
        if code:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    sys.excepthook = tell
    atexit.register(leave)


_failed: list[Callable[[BaseException], None]] = []


def program_ended(error: BaseException, essence: Essence = first_line) -> int:
    """Tells of an error that a program has not caught, whose main is its own; the exit code.

    Args:
        error: The error.
        essence: Of what the framework raises.
    """
    for failed in _failed:
        failed(error)
    return told(error, essence=essence, in_program=True)


def told(
    error: BaseException,
    crash_dir: Path | str | None = None,
    essence: Essence = first_line,
    in_program: bool = False,
) -> int:
    """Writes what a user has to know of an error that ends the program; the exit code.

    Args:
        error: The error.
        crash_dir: Where a crash file goes; the current directory when None.
        essence: Of what the framework raises.
        in_program: The program's own lines call the toolkit: a message that names none gets the innermost.
    """
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever reads the output has gone, as in `run.py | head`; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    if not isinstance(error, Exception):
        raise error
    note_beside_logs(error)
    code = exit_code_of(error)
    if hasattr(error, "exit_code"):
        sys.stdout.flush()
        sys.stderr.write(f"error: {error}\n")
        if in_program and not _NAMES_A_LINE.search(str(error)):
            line = innermost_user_line(traceback.extract_tb(error.__traceback__))
            sys.stderr.write(f"  at {line}\n" if line else "")
    elif code == EXIT_FAILURE:
        traceback.print_exception(error)
        # Once more at the end: a framework's message may go on for many lines.
        text = hint(error) or essence(error)
        sys.stderr.write(f"error: {type(error).__name__}: {text}\n")
    else:
        sys.stderr.write(_crash(error, Path(crash_dir or ".")))
    return code


def _crash(error: Exception, directory: Path) -> str:
    """What stderr gets of an unexpected error; writes the same into a crash file where it can."""
    trace = "".join(traceback.format_exception(error))
    path = directory / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(f"command: {sys.argv}\npython: {sys.version}\n\n{trace}", encoding="utf-8")
    except OSError as second:
        return f"{trace}error: unexpected {type(error).__name__}; no crash file was written: {second}\n"
    return f"{trace}error: unexpected {type(error).__name__}; the traceback is also in '{path}'\n"


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
