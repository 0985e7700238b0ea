"""Limits of log lines that any peer can cause, so that a log does not fill its disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

_WINDOW_S = 60.0


class LineLimiter:
    """Logs a number of lines a minute of one kind, and counts the others. Thread-safe.

    The last line of a minute that is logged says that further ones are left out; the first one after that
    minute says how many.

    Args:
        logger: Where to log.
        per_minute: Maximum number of lines in a minute.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, logger: logging.Logger, per_minute: int = 10, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s = -_WINDOW_S
        self._lines = 0

    def log(self, level: int, message: str, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Log a line unless there were too many in this minute; arguments as of `Logger.log`."""
        if not self._logger.isEnabledFor(level):
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
        self._logger.log(level, message, *args, extra=extra)
