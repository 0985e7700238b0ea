"""Writes the log and the exit record of a task in a separate thread."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from cs_toolkit.files import replace_file

BACKLOG_LIMIT_BYTES = 4 * 1024 * 1024


class LogWriter:
    """Writes the log of a task.

    Args:
        log: opened for writing, unbuffered; the writer closes it. None if only an exit record is written.
        complain: called once, in the thread, with the reason if the log can no longer be written.
    """

    def __init__(self, log: BinaryIO | None, complain: Callable[[str], None]) -> None:
        self._log = log
        self._complain = complain
        self._queue: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._record: tuple[Path, dict[str, Any]] | None = None
        # A file system that hangs must not stop the heartbeats, which the thread of the agent's loop sends.
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """True if the backlog exceeds its limit."""
        return self._backlog_bytes > BACKLOG_LIMIT_BYTES

    def write(self, data: bytes) -> None:
        """Queue a piece of the log."""
        with self._changed:
            self._queue.append(data)
            self._backlog_bytes += len(data)
            self._changed.notify()

    def finish(self, path: Path, record: dict[str, Any], limit_s: float) -> None:
        """Write the rest of the log and then the exit record; wait at most `limit_s`."""
        with self._changed:
            self._record = (path, record)
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)

    def _write_all(self) -> None:
        broken = False
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    break
                data = self._queue.popleft()
            try:
                left = memoryview(data)
                while self._log and left and not broken:
                    left = left[self._log.write(left) :]
            except OSError as error:
                broken = True
                self._complain(error.strerror or str(error))
            with self._changed:
                self._backlog_bytes -= len(data)
        if self._log is not None:
            self._log.close()
        if self._record is not None:
            try:
                write_record(*self._record)
            except OSError as error:
                self._complain(error.strerror or str(error))


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file atomically.

    Raises:
        OSError: the directory is not writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(record, indent=2) + "\n")
