"""Format numbers and paths for readers."""

from __future__ import annotations

import math
import os

from cs_toolkit import figures


def format_bytes(value: float) -> str:
    """Format a number of bytes in the unit that suits it."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def display_path(path: str) -> str:
    """Return a path as the user would type it: relative to the working directory if it is below that."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return path
    return path if relative.startswith("..") else relative


def format_number(value: float) -> str:
    """Format a number with the digits that a reader can use, never an exponent: 1,559,633 or 12.25."""
    if abs(value) >= 999.95:  # would be 1000 with four digits
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    if "e" not in text:
        return text
    decimals = 3 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}".rstrip("0")


def format_percent(part: float) -> str:
    """Format a fraction as percent: 85 %, 0.61 %, 1,250 %; never 0 or 100 % unless it is."""
    value = 100 * part
    if 99 < value <= 100:
        return figures.format_percent(value, 0)
    if abs(value) >= 10:
        return f"{value:,.0f} %"
    return f"{value:.2g} %" if abs(value) >= 1e-4 or not value else "< 0.0001 %"


def plural(count: int, noun: str) -> str:
    """Count a noun: "1 node", "2 nodes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
