"""Output of the launcher on the terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress

from cs_toolkit.live_line import LiveLine, terminal_columns

# Time since the start of a command after which it says what it does. The interpreter takes up to a second
# before, and a user gets a first line within two.
SIGN_OF_LIFE_S = 1.0
_STARTED_S = time.monotonic()
BACKLOG_LIMIT_BYTES = 4 * 1024 * 1024
STDOUT = 1
STDERR = 2


def say(program: str, text: str) -> None:
    """Write one line of a launcher to stderr, unbuffered."""
    write_text(STDERR, f"{program}: {text}\n")


class SignOfLife:
    """Says what a command is doing once a second has passed. Use it in a `with` statement.

    A command that is quick says nothing; after the first line each further activity is said when it begins.

    Args:
        program: in front of the lines.
        after_s: time until the first line; None for `SIGN_OF_LIFE_S` after the start of this process.
    """

    def __init__(self, program: str, after_s: float | None = None) -> None:
        if after_s is None:
            after_s = max(0.0, _STARTED_S + SIGN_OF_LIFE_S - time.monotonic())
        self._program = program
        self._activity = ""
        self._is_slow = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(after_s, self._become_slow)
        self._timer.daemon = True

    def __enter__(self) -> SignOfLife:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        self._timer.join()  # a launcher forks later

    def doing(self, activity: str) -> None:
        """Set the activity that begins, such as "asking the CS system at 192.0.2.7"."""
        with self._lock:
            self._activity = activity
            if self._is_slow:
                say(self._program, activity)

    def _become_slow(self) -> None:
        with self._lock:
            self._is_slow = True
            if self._activity:
                say(self._program, self._activity)


def write_text(descriptor: int, text: str) -> None:
    """Write text unbuffered; a closed pipe is not an error."""
    data = _encode(text)
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def occupy_closed_descriptors() -> None:
    """Open /dev/null for each closed one of 0, 1 and 2."""
    # Otherwise a pipe of the launcher could get that number, and its messages with it.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def wants_color(descriptor: int) -> bool:
    """Return True for a terminal with colors, unless the user has set NO_COLOR."""
    return os.isatty(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _encode(text: str) -> bytes:
    # Arguments of the user may contain bytes that are not UTF-8; they are written unchanged.
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, which a record in JSON may contain
        return text.encode("utf-8", "backslashreplace")


class Console:
    """Writes to stdout and stderr in the order of the calls, from its own thread.

    `write` never blocks. `full` is true while the reader does not keep up: callers stop writing until it is
    false again. Output to a closed pipe is dropped. A live line, if one is shown, is below all output.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[int, bytes]] = deque()
        self._line = LiveLine()
        self._line_changed = False
        self._backlog_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._closed_descriptors: set[int] = set()
        # A terminal that the user has stopped (Ctrl-S) blocks this thread, never the launcher.
        self._thread = threading.Thread(target=self._write_all, name="console", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """True if the backlog exceeds its limit."""
        return self._backlog_bytes > BACKLOG_LIMIT_BYTES

    def write(self, descriptor: int, text: str) -> None:
        """Queue text for a file descriptor."""
        if not text:
            return
        data = _encode(text)
        with self._changed:
            self._queue.append((descriptor, data))
            self._backlog_bytes += len(data)
            self._changed.notify()

    def show(self, text: str) -> None:
        """Show a live line on stderr, which must be a terminal; "" removes it."""
        with self._changed:
            if text != self._line.text:
                self._line.text, self._line_changed = text, True
                self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Remove the live line, and wait until everything is written; False if that exceeds `timeout_s`."""
        self.show("")
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing and not self._line_changed:
                    self._changed.wait()
                if not self._queue and not self._line_changed:
                    return
                item = self._queue.popleft() if self._queue else None
                line = self._line.erase()
                if not self._queue:  # not between pieces of output that are written together
                    line_after, self._line_changed = self._line.draw(terminal_columns()), False
                else:
                    line_after = ""
            self._write(STDERR, _encode(line))
            if item is not None:
                self._write(*item)
                with self._changed:
                    self._backlog_bytes -= len(item[1])
            self._write(STDERR, _encode(line_after))

    def _write(self, descriptor: int, data: bytes) -> None:
        while data and descriptor not in self._closed_descriptors:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # another process has made the terminal non-blocking
                time.sleep(0.01)
            except OSError:
                self._closed_descriptors.add(descriptor)


def flush_standard_streams() -> None:
    """Flush Python's buffers before the process is replaced or ends without clean-up."""
    for stream in (sys.stdout, sys.stderr):
        if stream:  # None if the descriptor was closed at the start
            with suppress(OSError, ValueError):
                stream.flush()
