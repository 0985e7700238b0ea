"""Helpers for files."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any


def create_symlink(
    src: str | os.PathLike[str], dst: str | os.PathLike[str], num_retries: int = 5, **kwargs: Any
) -> None:
    """Create a symbolic link, replacing an existing one atomically.

    Args:
        src: Path of the link.
        dst: Target of the link.
        num_retries: Accepted without effect.
        **kwargs: Keyword arguments of `Path.symlink_to`.
    """
    link = Path(src)
    # Several processes may do this simultaneously, and readers always find a link.
    new_link = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}")
    new_link.symlink_to(dst, **kwargs)
    try:
        new_link.replace(link)
    except OSError:
        new_link.unlink()
        raise
