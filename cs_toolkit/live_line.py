"""The live line: the last line of a terminal, which shows the current state below all other output.

It is plain ANSI, because the launcher draws it as well and imports only the standard library. A process whose
output others have references to (logging handlers, progress bars) cannot redirect them all, so the line never
relies on that: it is erased before any output, and drawn again once the output has ended its line.
"""

from __future__ import annotations

import os

from cs_toolkit.log_lines import LOG_FORMAT_VARIABLE, escape_controls

PROGRESS_VARIABLE = "CS_PROGRESS"
FORMS = ("live", "log")
STDOUT, STDERR = 1, 2
REDRAW_EVERY_S = 0.2

_DEFAULT_COLUMNS = 80
_ERASE = "\r\x1b[K"


def has_live_line() -> bool:
    """Return True if progress is shown as a live line on stderr, by the terminal and the user's settings.

    Stdout must be the terminal as well: in `run.py | tee log` another process writes to it.
    """
    return (
        os.environ.get(PROGRESS_VARIABLE) != "log"
        and os.environ.get(LOG_FORMAT_VARIABLE) != "json"
        and os.environ.get("TERM", "dumb") != "dumb"
        and os.isatty(STDOUT)
        and os.isatty(STDERR)
    )


def terminal_columns() -> int:
    """Return the present width of the terminal."""
    try:
        return os.get_terminal_size(STDERR).columns or _DEFAULT_COLUMNS
    except OSError:
        return _DEFAULT_COLUMNS


class LiveLine:
    """The state of a live line; the methods return what to write to the terminal.

    Attributes:
        text: What the line shows; "" hides it.
    """

    def __init__(self) -> None:
        self.text = ""
        self._drawn = False
        self._in_line = False

    def erase(self) -> str:
        """Return the text that erases the line, before any other output."""
        drawn, self._drawn = self._drawn, False
        return _ERASE if drawn else ""

    def output(self, text: str) -> None:
        """Take note of other output; a line that it has begun must be ended before the live line is drawn."""
        if text:
            self._in_line = not text.endswith("\n")

    def draw(self, columns: int) -> str:
        """Return the text that redraws the line on a terminal of that width."""
        if not self.text or self._in_line:
            return self.erase()
        self._drawn = True
        # One column less: a terminal wraps after its last one, and a wrapped line cannot be erased.
        return _ERASE + escape_controls(self.text)[: columns - 1]
