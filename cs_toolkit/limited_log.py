"""A log of events that strangers can cause as often as they like: a line in some seconds, with a count."""

from __future__ import annotations

import logging
import threading
import time


class LimitedLog:
    """Logs the first event at once, and then at most a line in `every_s` seconds, which counts the others.

    Events after the last line are counted in the next one, whenever it comes.

    Args:
        log: Where lines are written.
        every_s: Least time between two lines, in seconds.
    """

    def __init__(self, log: logging.Logger, every_s: float = 10.0) -> None:
        self._log, self._every_s = log, every_s
        self._lock = threading.Lock()
        self._last_s = float("-inf")
        self._left_out = 0

    def warning(self, text: str) -> None:
        """Log an event, or count it; thread-safe."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._last_s < self._every_s:
                self._left_out += 1
                return
            self._last_s, left_out, self._left_out = now_s, self._left_out, 0
        self._log.warning("%s%s", text, f" ({left_out} more like this before)" if left_out else "")
