"""The log of a CS system's processes: options and format."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cs_system.errors import BadOptionError
from cs_toolkit.log_lines import FORMATS, LOG_FORMAT_VARIABLE, JsonFormatter, escape_controls

_LEVEL_VARIABLE, _FILE_VARIABLE = "CS_LOG_LEVEL", "CS_LOG_FILE"
_LEVELS = ("debug", "info", "warning", "error")
_MIB = 1 << 20

# Names of the loggers of a system.
LOGGERS = ("cs_system", "cs_stream")


@dataclass(frozen=True)
class LogOptions:
    """Where and how a process logs.

    Attributes:
        format: text or json.
        level: debug, info, warning or error.
        file: The file; None: stderr.
        max_bytes: Size at which the file is rotated; 0: never by this process.
        files: Number of older files that are kept.
    """

    format: str = "text"
    level: str = "info"
    file: Path | None = None
    max_bytes: int = 0
    files: int = 0

    @classmethod
    def of_parent(cls, environment: Mapping[str, str]) -> LogOptions:
        """Return the options of a process that a CS system has started; only the system rotates the file."""
        file = environment.get(_FILE_VARIABLE)
        return cls(
            environment.get(LOG_FORMAT_VARIABLE, "text"),
            environment.get(_LEVEL_VARIABLE, "info"),
            Path(file) if file else None,
        )


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with the options of its log, which is set up before the command runs."""

    @click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        default="text",
        show_default=True,
        envvar=LOG_FORMAT_VARIABLE,
        help="Format of the log; json: an object a line, with job, worker and step where they are known.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(_LEVELS),
        default="info",
        show_default=True,
        envvar=_LEVEL_VARIABLE,
        help="Lines of this level and above are logged.",
    )
    @click.option(
        "--log-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=_FILE_VARIABLE,
        help="File of the log; it may be moved or removed at any time, by logrotate for example.  "
        "[default: stderr]",
    )
    @click.option(
        "--log-max-mib",
        type=click.IntRange(0),
        default=64,
        show_default=True,
        metavar="MIB",
        help="Size at which the file is renamed to FILE.1 and a new one is started; 0: never.",
    )
    @click.option(
        "--log-files",
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="Number of renamed files that are kept.",
    )
    @functools.wraps(command)
    def with_log(
        *arguments: Any,
        log_format: str,
        log_level: str,
        log_file: Path | None,
        log_max_mib: int,
        log_files: int,
        **others: Any,
    ) -> None:
        file = None if log_file is None else log_file.absolute()
        options = LogOptions(log_format, log_level, file, log_max_mib * _MIB, log_files)
        try:
            set_up_logging(options)
        except OSError as error:
            raise BadOptionError(f"--log-file={log_file}: cannot be written: {error.strerror}") from error
        # For the processes that this one starts.
        values = {LOG_FORMAT_VARIABLE: log_format, _LEVEL_VARIABLE: log_level}
        os.environ.update(values if file is None else {**values, _FILE_VARIABLE: str(file)})
        command(*arguments, **others)

    return with_log


def set_up_logging(options: LogOptions) -> None:
    """Log the lines of this toolkit, and warnings of everything else.

    Raises:
        OSError: the file cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if options.file is not None:
        from cs_system.log_file import LogFile  # logging.handlers imports pickle and socket

        handler = LogFile(options.file, options.max_bytes, options.files)
    handler.setFormatter(JsonFormatter(_current_run) if options.format == "json" else _TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in LOGGERS:
        logging.getLogger(name).setLevel(options.level.upper())


# The job that holds the system and its step, for lines in JSON.
_current: Callable[[], Mapping[str, object]] = dict


def name_current_run(read: Callable[[], Mapping[str, object]]) -> None:
    """Set the function that returns job and step of the current run, for all lines in JSON."""
    global _current
    _current = read


def _current_run() -> Mapping[str, object]:
    return _current()


class _TextFormatter(logging.Formatter):
    """Formats `2026-01-31 12:00:00.123 INFO    job-17  text`, with `-` for lines that belong to no job.

    Further lines of a text are indented, and control characters escaped.
    """

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(job)s  %(message)s", defaults={"job": "-"})

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, a name of logging
        """Return the line of a record, without its traceback."""
        # Names in texts come from any client: they must not control a terminal or look like a line.
        return escape_controls(super().formatMessage(record), keep="\t\n").replace("\n", "\n    ")
