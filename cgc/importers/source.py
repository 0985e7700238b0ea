"""Which line of the user's program is behind a stack of frames."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cs_toolkit.errors import PACKAGES

_ROOT = Path(__file__).parents[2]


def _not_the_users() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], *(str(_ROOT / name) for name in PACKAGES)]
    return tuple(f"{folder}/" for folder in dict.fromkeys(folders))


_NOT_THE_USERS = _not_the_users()


@lru_cache(maxsize=4096)
def is_users_file(filename: str) -> bool:
    """Whether a file of a traceback is the user's: not a library's, not Python's, not ours."""
    if "/site-packages/" in filename or "/dist-packages/" in filename or filename.startswith("<"):
        return False
    return not filename.startswith(_NOT_THE_USERS)


def innermost_user_line(frames: Sequence[Any]) -> str | None:
    """Returns `file:line` of the last frame in a user's file; frames run from the outermost inwards."""
    for frame in reversed(frames):
        if is_users_file(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return None
