"""Origin of source files, and the user's line in a stack of frames."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from cs_toolkit.errors import PACKAGES

_FRAMEWORKS = ("torch/", "tensorflow/", "keras/", "tf_keras/")


@cache
def toolkit_folders() -> tuple[str, ...]:
    """Return the folders of the toolkit's packages."""
    return tuple(str(Path(__file__).parents[1] / package) for package in PACKAGES)


@cache
def _foreign() -> tuple[str, ...]:
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return tuple(f"{folder}/" for folder in (*standard, *toolkit_folders()))


@lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """Return True if a file of a traceback is not of Python, an installed package or the toolkit."""
    if "/site-packages/" in path or "/dist-packages/" in path or path.startswith("<"):
        return False
    return not path.startswith(_foreign())


@lru_cache(maxsize=4096)
def library_file(path: str) -> str | None:
    """Return the path of a file within an installed package; None for frameworks and other files."""
    for folder in ("/site-packages/", "/dist-packages/"):
        _, found, inside = path.rpartition(folder)
        if found and not inside.startswith(_FRAMEWORKS):
            return inside
    return None


def innermost_user_line(frames: Sequence[Any]) -> str | None:
    """Return `file:line` of the last frame in a user's file; the frames start with the outermost one."""
    for frame in reversed(frames):
        if is_user_file(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return None
