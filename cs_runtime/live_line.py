"""The live line of a training run whose program writes to a terminal itself, without a launcher."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cs_toolkit.live_line import REDRAW_EVERY_S, LiveLine, has_live_line, terminal_columns


class TerminalLine:
    """Shows a live line on stderr. Output of the program to `sys.stdout` and `sys.stderr` appears above it.

    The line is removed by `close`, which is also called at exit.
    """

    def __init__(self) -> None:
        self._line = LiveLine()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._drawn_at_s = float("-inf")
        self._terminal = sys.stderr
        self._write_to_terminal = sys.stderr.write
        self._restore = [self._watch(stream) for stream in {sys.stdout, sys.stderr}]
        atexit.register(self.close)

    def show(self, compose: Callable[[int], str], *, now: bool = False) -> None:
        """Show a text, unless the line was drawn less than 0.2 s ago.

        Args:
            compose: Returns the text for a number of columns.
            now: Draw it in any case.
        """
        if not now and time.monotonic() - self._drawn_at_s < REDRAW_EVERY_S:
            return
        with self._lock:
            columns = terminal_columns()
            self._line.text = compose(columns)
            self._put(self._line.draw(columns))
            self._drawn_at_s = time.monotonic()

    def close(self) -> None:
        """Remove the line, and stop watching the output."""
        atexit.unregister(self.close)
        with self._lock:
            self._line.text = ""
            if os.getpid() == self._pid:
                self._put(self._line.erase())
            for restore in self._restore:
                restore()
            self._restore = []

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a terminal that is gone, a stream that the program has closed
            self._write_to_terminal(text)
            self._terminal.flush()

    def _watch(self, stream: Any) -> Callable[[], None]:
        """Erase the line before each write to a stream, and draw it afterwards; return what ends that."""
        # `write` of the stream itself is replaced, not `sys.stderr`: handlers of logging keep the stream that
        # was there when they were created.
        own_write = stream.__dict__.get("write")
        write = stream.write

        def write_above(text: str) -> int:
            # A forked process has a copy of the line, and perhaps of a lock that another thread held.
            if os.getpid() != self._pid or not self._line.text:
                self._line.output(text)
                return int(write(text))
            with self._lock:
                self._put(self._line.erase())
                count = int(write(text))
                stream.flush()
                self._line.output(text)
                self._put(self._line.draw(terminal_columns()))
            return count

        def restore() -> None:
            if stream.__dict__.get("write") is not write_above:
                return  # replaced by the program meanwhile
            if own_write is None:
                del stream.write
            else:
                stream.write = own_write

        stream.write = write_above
        return restore


def open_terminal_line() -> TerminalLine | None:
    """Open a live line; None where progress is only logged: pipes, jobs, dumb terminals, CS_PROGRESS=log."""
    streams = (sys.stdout, sys.stderr)
    # A notebook or a test may have replaced the streams.
    if not has_live_line() or not all(hasattr(s, "__dict__") and s.isatty() for s in streams if s):
        return None
    return TerminalLine() if all(streams) else None
