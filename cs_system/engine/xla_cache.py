"""The programs that XLA has compiled, on disk: JAX writes them and deletes none."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from cs_system.engine.machine import cpu_digest
from cs_toolkit.files import keep_newest

log = logging.getLogger("cs_system")


@dataclass(frozen=True)
class XlaCache:
    """A directory of compiled programs with a limit.

    Attributes:
        directory: The directory.
        limit_bytes: Limit for the sum of the file sizes, which `trim` enforces.
    """

    directory: Path
    limit_bytes: int

    @classmethod
    def of_this_cpu(cls, parent: Path, limit_bytes: int) -> XlaCache | None:
        """Make the cache for this machine's CPU below a directory; return None if that is not possible."""
        directory = parent / cpu_digest()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("compiled programs cannot be stored in %s: %s", directory, error.strerror)
            return None
        cache = cls(directory, limit_bytes)
        cache.trim()
        return cache

    def trim(self) -> None:
        """Delete the oldest programs if all of them exceed the limit."""
        try:
            keep_newest(self.directory, self.limit_bytes)
        except OSError as error:
            log.warning("old programs in %s cannot be deleted: %s", self.directory, error.strerror)
