"""How a program ends: errors become a message, an exit code and `error.json`.

`error.json` is for programs that start runs and want the cause of a failed compile in a structured form. It
is written to the compile directory, and next to the logs of a launcher's job.
"""

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
from cs_runtime.keywords import unknown_keyword_error
from cs_toolkit import __version__
from cs_toolkit.errors import EXIT_FAILURE, ProgramFault, WriteError, exit_code_of
from cs_toolkit.garbage import leave_at_exit
from cs_toolkit.source_files import innermost_user_line
from csrun.errors import RoleError
from csrun.missing_modules import hint
from csrun.tasks.roles import TaskInfo

_NAMES_A_LINE = re.compile(r"\.py:\d+")

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# Returns the message of a framework's error in one line, without the framework's additions.
Essence = Callable[[Exception], str]


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class name if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def report_errors(crash_dir: Path | str | None = None, essence: Essence = first_line) -> Iterator[None]:
    """Report an error of the body and exit as the toolkit's commands do; usable as a decorator of `main`.

    An error with an `exit_code` prints its message and exits with that code. Ctrl-C exits with 130. An error
    raised by the program's code or its framework prints its traceback and exits with 1. An error raised by
    the toolkit's code is a bug of the toolkit: the traceback is also written to a crash file, and the exit
    code is 3. In a launcher's job the chief writes `error.json` next to the logs.

    Args:
        crash_dir: Directory for a crash file; the current directory when None.
        essence: Extracts the message of a framework's error.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(report_error(error, crash_dir, essence))


def report_at_exit(failed: Callable[[BaseException], None], essence: Essence = first_line) -> None:
    """Make this process end as under `report_errors`, for a program whose `main` is not ours to decorate.

    Call this before other exit handlers are registered: the exit code is set after all of them have run.

    Args:
        failed: Called with the error that ends the program.
        essence: Extracts the message of a framework's error.
    """
    if failed not in _failure_handlers:
        _failure_handlers.append(failed)
    leave_at_exit()  # its memory is left to the operating system
    # An exception hook of the program is kept; that of the launchers calls `report_uncaught_error`.
    if sys.excepthook is not sys.__excepthook__:
        return
    code = 0

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        nonlocal code
        code = report_uncaught_error(error, essence)

    # Exit handlers run in the reverse order of their registration; only os._exit sets the exit code in one.
    def leave() -> None:
        if code:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    sys.excepthook = report
    atexit.register(leave)


_failure_handlers: list[Callable[[BaseException], None]] = []


def report_uncaught_error(error: BaseException, essence: Essence = first_line) -> int:
    """Report an error that a program with its own `main` did not catch, and return the exit code.

    Args:
        error: The error.
        essence: Extracts the message of a framework's error.
    """
    for handle in _failure_handlers:
        handle(error)
    return report_error(error, essence=essence, in_program=True)


def report_error(
    error: BaseException,
    crash_dir: Path | str | None = None,
    essence: Essence = first_line,
    in_program: bool = False,
) -> int:
    """Write an error that ends the program to stderr, and return the exit code.

    Args:
        error: The error.
        crash_dir: Directory for a crash file; the current directory when None.
        essence: Extracts the message of a framework's error.
        in_program: The program's own code called the toolkit, so a message without a source line gets the
            innermost line of the program.
    """
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader of the output exited, as in `run.py | head`; without this Python reports it at exit too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    if not isinstance(error, Exception):
        raise error
    error = unknown_keyword_error(error) or error
    write_error_to_log_dir(error)
    code = exit_code_of(error)
    if hasattr(error, "exit_code"):
        sys.stdout.flush()
        sys.stderr.write(f"error: {error}\n")
        if in_program and not _NAMES_A_LINE.search(str(error)):
            line = innermost_user_line(traceback.extract_tb(error.__traceback__))
            sys.stderr.write(f"  at {line}\n" if line else "")
    elif code == EXIT_FAILURE:
        traceback.print_exception(error)
        # Repeated at the end, because a framework's message can be many lines long.
        text = hint(error) or essence(error)
        sys.stderr.write(f"error: {type(error).__name__}: {text}\n")
    else:
        sys.stderr.write(_write_crash_file(error, Path(crash_dir or ".")))
    return code


def _write_crash_file(error: Exception, directory: Path) -> str:
    """Write a crash file for an unexpected error if possible, and return the text for stderr."""
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
def record_failures(compile_dir: Path) -> Iterator[None]:
    """Write `error.json` for an error of the body, and remove an old one if the body succeeds.

    Args:
        compile_dir: Directory of the artifacts.
    """
    paths = [compile_dir / ERROR_FILE]
    if os.environ.get(_LOG_DIR):
        paths.append(Path(os.environ[_LOG_DIR]) / ERROR_FILE)
    try:
        yield
    except Exception as error:
        _write_reports(paths, error)
        raise
    for path in paths:
        with suppress(OSError):  # an old file must not fail a successful compile
            path.unlink(missing_ok=True)


def write_error_to_log_dir(error: Exception) -> None:
    """Write `error.json` for an error that ends this process, if it is the chief of a launcher's job."""
    directory = os.environ.get(_LOG_DIR)
    with suppress(RoleError):
        if directory and TaskInfo.from_environment().role == "chief":
            _write_reports([Path(directory) / ERROR_FILE], error)


def error_report(error: Exception) -> dict[str, Any]:
    """Return the contents of `error.json`.

    `kind` is the class of the error, `exit_code` that of the process, and `message` the text for the user.
    `faults` has one entry per problem, with the fields of `cs_toolkit.errors.ProgramFault`; unknown fields
    are null. If kernels do not fit on the wafer, `shortage` has the figures (`cgc.errors.Shortage`).
    """
    faults: tuple[ProgramFault, ...] = getattr(error, "details", ())
    if not faults:
        fields: Mapping[str, Any] = getattr(error, "fault_fields", {})
        faults = (ProgramFault(kind=type(error).__name__, message=str(error), **fields),)
    report = {
        "kind": type(error).__name__,
        "message": str(error),
        "exit_code": exit_code_of(error),
        "toolkit_version": __version__,
        "faults": [asdict(fault) for fault in faults],
    }
    shortage = getattr(error, "shortage", None)
    if shortage is not None:
        report["shortage"] = asdict(shortage)
    return report


def _write_reports(paths: list[Path], error: Exception) -> None:
    for path in paths:
        try:
            write_json(path, error_report(error))
        except ModelDirError as second:
            if not isinstance(error, WriteError):  # a WriteError has the same cause
                log.warning("%s was not written: %s", path, second)
