"""Which files are the user's, and how their lines are shown."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from pathlib import Path

from cs_toolkit.errors import PACKAGES


def shown(path: str) -> str:
    """A path as the user would type it: below the working directory, relative to it."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return path
    return path if relative.startswith("..") else relative


@cache
def is_users(path: str) -> bool:
    """Whether a file is the user's: neither Python's, nor an installed package's, nor the toolkit's."""
    if path.startswith("<"):
        return False
    parts = Path(path).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    return not any(Path(path).is_relative_to(folder) for folder in _foreign())


@cache
def _foreign() -> tuple[str, ...]:
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return (*(folder for folder in standard if folder), *toolkit_folders())


@cache
def toolkit_folders() -> tuple[str, ...]:
    """Those of the toolkit's packages, which lie beside this one."""
    return tuple(str(Path(__file__).parents[1] / package) for package in PACKAGES)
