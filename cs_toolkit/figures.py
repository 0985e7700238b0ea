"""Shares and rates as text that rounding never makes false."""

from __future__ import annotations

import math

_PLAIN_DIGITS = 4


def format_percent(percent: float, decimals: int | None = None, unit: str = " %") -> str:
    """Format a share of 0 to 100 % or more: `68.2 %`, `1.15 %`, `< 0.01 %`, `> 99.9 %`.

    Only zero is shown as 0 %, and only all as 100 %.

    Args:
        percent: The share times 100.
        decimals: Digits after the point; by default two below 10 %, else one.
        unit: Text after the number.
    """
    if decimals is None:
        # Rounding to one decimal makes 9.996 a 10.0.
        decimals = 2 if abs(percent) < 9.995 else 1
    if percent in (0, 100):
        return f"{percent:.0f}{unit}"
    smallest = 10.0**-decimals
    if 0 < percent < smallest / 2:
        return f"< {smallest:.{decimals}f}{unit}"
    if 100 - smallest / 2 <= percent < 100:
        return f"> {100 - smallest:.{decimals}f}{unit}"
    return f"{percent:.{decimals}f}{unit}"


def format_share(part: float) -> str:
    """Format a fraction of 0 to 1 as a whole percentage: `57%`, `< 1%`, `> 99%`."""
    return format_percent(100 * part, 0, "%")


def format_whole_percent(percent: float) -> str:
    """Format a share as a whole percentage; with the necessary digits where that would be a false 0 or 100.

    The result without its last character is a number: `78%`, `0.04%`, `99.96%`.
    """
    distance = min(abs(percent), abs(100 - percent))
    decimals = 0 if distance == 0 or distance > 0.5 else -math.floor(math.log10(distance))
    return f"{percent:.{decimals}f}%"


def format_rate(rate: float) -> str:
    """Format a number with the digits that a reader can use, without an exponent: 1,559,633 or 12.25."""
    if rate == 0 or not math.isfinite(rate):
        return f"{rate:.0f}"
    if abs(rate) >= 999.95:  # four digits would be 1000
        return f"{rate:,.0f}"
    decimals = _PLAIN_DIGITS - 1 - math.floor(math.log10(abs(rate)))
    return f"{rate:.{max(0, decimals)}f}"


def format_table_rate(rate: float) -> str:
    """Format a rate with one decimal, as published reports do; below 10, with four digits."""
    return f"{rate:.1f}" if rate >= 10 or rate == 0 else format_rate(rate)
