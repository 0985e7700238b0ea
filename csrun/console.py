"""The launcher's own terminal: one thread writes, so that a stopped terminal never stops the launcher."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress

BACKLOG_LIMIT_BYTES = 4 * 1024 * 1024
STDOUT = 1
STDERR = 2


def say(program: str, text: str) -> None:
    """Writes one line of a launcher to stderr, now."""
    write_text(STDERR, f"{program}: {text}\n")


def write_text(descriptor: int, text: str) -> None:
    """Writes text now and unbuffered; nobody listening any more is no error."""
    data = _encode(text)
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def occupy_closed_descriptors() -> None:
    """Opens /dev/null where 0, 1 or 2 is closed: a pipe would get that number, and our text with it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one


def wants_colour(descriptor: int) -> bool:
    """A terminal, unless the user has set NO_COLOR or it can do nothing (TERM=dumb)."""
    return os.isatty(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _encode(text: str) -> bytes:
    # The user's arguments may hold bytes that are no text; they go out as they came in.
    return text.encode("utf-8", "surrogateescape")


class Console:
    """Writes to stdout and stderr in the order of the calls, from a thread of its own.

    `write` never blocks. A reader that does not keep up makes `full` true; whoever feeds the console stops
    then until it is false again. When nobody reads any more the rest is dropped.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[int, bytes]] = deque()
        self._backlog_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._deaf: set[int] = set()
        self._thread = threading.Thread(target=self._write_all, name="console", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether more waits to be written than is good."""
        return self._backlog_bytes > BACKLOG_LIMIT_BYTES

    def write(self, descriptor: int, text: str) -> None:
        """Queues text for a file descriptor."""
        if not text:
            return
        data = _encode(text)
        with self._changed:
            self._queue.append((descriptor, data))
            self._backlog_bytes += len(data)
            self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Waits until everything is written; False: the reader was too slow for that."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _write_all(self) -> None:
        while (item := self._next()) is not None:
            descriptor, data = item
            while data and descriptor not in self._deaf:
                try:
                    data = data[os.write(descriptor, data) :]
                except BlockingIOError:  # somebody has set the terminal to non-blocking
                    time.sleep(0.01)
                except OSError:
                    self._deaf.add(descriptor)
            with self._changed:
                self._backlog_bytes -= len(item[1])

    def _next(self) -> tuple[int, bytes] | None:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None


def flush_standard_streams() -> None:
    """Writes what Python still buffers, before the process is replaced or ended at once."""
    for stream in (sys.stdout, sys.stderr):
        if stream:  # None where the descriptor was closed from the start
            with suppress(OSError, ValueError):
                stream.flush()
