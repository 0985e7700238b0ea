"""Format numbers and paths for readers."""

from __future__ import annotations

import os


def format_bytes(value: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def display_path(path: str) -> str:
    """A path as the user would type it: below the working directory, relative to it."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return path
    return path if relative.startswith("..") else relative
