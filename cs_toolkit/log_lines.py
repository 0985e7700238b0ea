"""Log lines: as JSON objects, limited in number, and at intervals while a task is blocked."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

LOG_FORMAT_VARIABLE = "CS_LOG_FORMAT"
FORMATS = ("text", "json")

# Attributes of records, given as `extra`, that are keys of the line.
FIELDS = ("job", "task", "worker", "step")


# Of terminals, and those that break a line or change its direction.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def escape_controls(text: str, keep: str = "") -> str:
    """Return a text from any peer so that it is safe on a terminal: with escapes for control characters.

    Args:
        text: The text.
        keep: Characters that are not escaped.
    """

    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        return found[0] if found[0] in keep else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _CONTROL_CHARACTERS.sub(escape, text)


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects, one a line: time (UTC), level, logger, message, and known fields.

    The fields are job, task, worker and step; `exception` is a traceback.

    Args:
        context: Returns fields of the current job, which lines about it or about no job get.
    """

    def __init__(self, context: Callable[[], Mapping[str, object]] = dict) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        created = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": created.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        own = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        context = self._context()
        # A line about another job, one in the queue, has nothing of the current one.
        line |= own if own.get("job", context.get("job")) != context.get("job") else {**context, **own}
        line["pid"] = record.process
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII keeps lone surrogates of undecodable file names, and a line is never broken by U+2028.
        return json.dumps(line, default=str)


_WINDOW_S = 60.0


class LineLimiter:
    """Logs a number of lines a minute of one kind, and counts the others. Thread-safe.

    The last line that is logged in a minute announces that further ones are left out; the first one after
    that minute has their number.

    Args:
        logger: Where to log.
        per_minute: Maximum number of lines in a minute.
        clock: Returns monotonic seconds.

    Attributes:
        logger: Where to log.
    """

    def __init__(
        self, logger: logging.Logger, per_minute: int = 10, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.logger = logger
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s = -_WINDOW_S
        self._lines = 0

    def log(self, level: int, message: str, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Log a line unless there were too many in this minute; arguments as of `Logger.log`."""
        if not self.logger.isEnabledFor(level):
            return
        with self._lock:
            now_s = self._clock()
            omitted = 0
            if now_s - self._began_s >= _WINDOW_S:
                omitted = max(0, self._lines - self._per_minute)
                self._began_s, self._lines = now_s, 0
            self._lines += 1
            count = self._lines
            rest_s = self._began_s + _WINDOW_S - now_s
        if count > self._per_minute:
            return
        if omitted:
            message, args = f"{message} (%d lines like this one were left out before)", (*args, omitted)
        if count == self._per_minute:
            message = f"{message} (further lines like this one are left out for %.0f s)"
            args = (*args, rest_s)
        self.logger.log(level, message, *args, extra=extra)


FIRST_LINE_S = 7.0
# Interval of lines about a changing reason, at least.
CHANGE_EVERY_S = 10.0
# Interval between the first two lines about the same reason; each further one is twice as long.
_REPEAT_S, _MAX_REPEAT_S = 60.0, 1800.0
# Numbers in a line that change while its reason does not.
_PROGRESS = re.compile(r"\b(for \d+(\.\d+)? s|after \d+ batches|from step \d+ on)\b")


class WaitLines:
    """Decides when a line about a wait is due. Pure: callers pass monotonic times.

    An hour of waiting for the same reason has seven lines.

    Args:
        now_s: The current time, at which the wait begins.
        first_line_s: Time until the first line.
    """

    def __init__(self, now_s: float, first_line_s: float = FIRST_LINE_S) -> None:
        self._first_line_s = first_line_s
        self._reason: str | None = None
        self._repeat_s = _REPEAT_S
        self._line_at_s = -CHANGE_EVERY_S
        self._first_at_s = now_s + first_line_s
        self._repeat_at_s = now_s

    def is_due(self, text: str, now_s: float) -> bool:
        """Return True if a line is due, which the caller then logs.

        Args:
            text: The line; times and counts in it (`for 17 s`, `after 90 batches`) are no part of the reason.
            now_s: The current time.
        """
        if now_s < self._first_at_s:
            return False
        reason = _PROGRESS.sub("", text)
        if reason != self._reason:
            if now_s - self._line_at_s < CHANGE_EVERY_S:
                return False
            self._reason, self._repeat_s = reason, _REPEAT_S
        elif now_s < self._repeat_at_s:
            return False
        else:
            self._repeat_s = min(2 * self._repeat_s, _MAX_REPEAT_S)
        self._line_at_s, self._repeat_at_s = now_s, now_s + self._repeat_s
        return True

    def restart(self, now_s: float) -> None:
        """Begin another wait; if the reason is that of the last line, its line comes within a minute."""
        self._first_at_s = now_s + self._first_line_s
        self._repeat_at_s = min(self._repeat_at_s, now_s + _REPEAT_S)
