"""Where a CS system finds MemoryX."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from cs_system.errors import BadOptionError


@dataclass(frozen=True)
class MemoryxPlace:
    """Where a CS system finds MemoryX.

    Attributes:
        address: Of one that runs; None: the system starts its own.
        directory: Where that one keeps state and gradients.
    """

    address: tuple[str, int] | None = None
    directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))


def memoryx_address(text: str) -> tuple[str, int]:
    """The address that `--memoryx` names.

    Raises:
        BadOptionError: it has not the form of one.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadOptionError(
            f"--memoryx={text}: expected HOST:PORT, as `cs_system memoryx serve` prints it "
            "(examples: 10.0.0.5:9002, [::1]:9002)"
        )
    return host.strip("[]"), int(port)
