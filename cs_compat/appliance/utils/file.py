"""Helpers for files."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any


def create_symlink(
    src: str | os.PathLike[str], dst: str | os.PathLike[str], num_retries: int = 5, **kwargs: Any
) -> None:
    """Make a symbolic link, in the place of one that exists.

    The new link replaces the old one in one step, so that several processes may do it simultaneously and a
    reader always finds one.

    Args:
        src: Path of the link.
        dst: What it points to.
        num_retries: Taken for programs that give it: a replacement needs no second try.
        **kwargs: As for `Path.symlink_to`.
    """
    link = Path(src)
    made = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}")
    made.symlink_to(dst, **kwargs)
    try:
        made.replace(link)
    except OSError:
        made.unlink()
        raise
