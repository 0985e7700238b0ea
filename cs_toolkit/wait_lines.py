"""When a blocked task logs what it waits for: soon, when the reason changes, and then ever more rarely."""

from __future__ import annotations

import re

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
        reason = _PROGRESS.sub("", text)
        if now_s < self._first_at_s:
            return False
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
