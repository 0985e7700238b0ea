"""How places in a user's files are shown."""

from __future__ import annotations

import os


def shown(path: str) -> str:
    """A path as the user would type it: below the working directory, relative to it."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return path
    return path if relative.startswith("..") else relative
