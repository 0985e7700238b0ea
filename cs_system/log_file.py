"""The file of a log, with its rotation."""

from __future__ import annotations

import logging
import logging.handlers
import os
from pathlib import Path


class LogFile(logging.handlers.RotatingFileHandler):
    """A log file that is rotated at a size, and opened again when another program has moved or removed it.

    Several processes may append to it, of which one rotates it.
    """

    def __init__(self, file: Path, max_bytes: int, files: int) -> None:
        # Opened now, so that a file that cannot be written is an error of the command.
        super().__init__(
            file, maxBytes=max_bytes, backupCount=files, encoding="utf-8", errors="backslashreplace"
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the file that has the name now."""
        if self.stream is not None and not self._is_current(self.stream.fileno()):
            self.stream.close()
            self.stream = self._open()
        super().emit(record)

    def _is_current(self, descriptor: int) -> bool:
        try:
            found, own = Path(self.baseFilename).stat(), os.fstat(descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
