"""Executables of artifacts that clients have sent, kept on disk by content so that they travel once."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path

from cs_toolkit.files import replace_file

log = logging.getLogger("cs_system.server")


def default_cache_dir() -> Path:
    """`cs_system` in the user's cache directory, as the XDG base directory specification has it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "cs_system"


class ExecutableStore:
    """Files named by their SHA-256; the longest unused ones go when the limit is passed.

    A cache and nothing more: what cannot be read or written is warned about and sent again.

    Args:
        directory: Created when missing; None keeps nothing.
        limit_bytes: Sum of the file sizes.
    """

    def __init__(self, directory: Path | None, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes

    def get(self, sha256: str) -> bytes | None:
        """The bytes with this digest; None when they are not here, or not intact."""
        if self._directory is None:
            return None
        path = self._directory / sha256
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != sha256:
            log.warning("%s is damaged; the executable is sent again", path)
            path.unlink(missing_ok=True)
            return None
        # The modification time is the time of the last use; the access time may be off on this mount.
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, sha256: str, data: bytes) -> None:
        """Keeps `data`, whose digest the caller has checked."""
        if self._directory is None or len(data) > self._limit_bytes:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._directory / sha256, data)
            keep_newest(self._directory, self._limit_bytes)
        except OSError as error:
            log.warning("the executable is not kept in %s: %s", self._directory, error)


def keep_newest(directory: Path, limit_bytes: int) -> None:
    """Deletes the files of a directory with the oldest modification times until the rest fits the limit."""
    entries = []
    for path in directory.iterdir():
        # Another server on the same directory may have removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            entries.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
