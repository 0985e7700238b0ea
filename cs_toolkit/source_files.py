"""Whose a source file is, and which line of the user's program is behind a stack of frames."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from cs_toolkit.errors import PACKAGES


@cache
def toolkit_folders() -> tuple[str, ...]:
    """Those of the toolkit's packages, which lie beside this one."""
    return tuple(str(Path(__file__).parents[1] / package) for package in PACKAGES)


@cache
def _foreign() -> tuple[str, ...]:
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return tuple(f"{folder}/" for folder in (*standard, *toolkit_folders()))


@lru_cache(maxsize=4096)
def is_users_file(path: str) -> bool:
    """Whether a file of a traceback is the user's: neither Python's, nor an installed package's, nor ours."""
    if "/site-packages/" in path or "/dist-packages/" in path or path.startswith("<"):
        return False
    return not path.startswith(_foreign())


@lru_cache(maxsize=4096)
def library_file(path: str) -> str | None:
    """A file of an installed package, from its name on; None for others, and for those of the frameworks."""
    for folder in ("/site-packages/", "/dist-packages/"):
        _, found, inside = path.rpartition(folder)
        if found and not inside.startswith(_FRAMEWORKS):
            return inside
    return None


_FRAMEWORKS = ("torch/", "tensorflow/", "keras/", "tf_keras/")


def innermost_user_line(frames: Sequence[Any]) -> str | None:
    """Returns `file:line` of the last frame in a user's file; frames run from the outermost inwards."""
    for frame in reversed(frames):
        if is_users_file(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return None
